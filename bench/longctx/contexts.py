"""The requests that are measured: one long document and a question each, as one user message.

They come from bench/compressors/workloads.py. A request is used if its answer on the full KV is
at least as long as what is measured, so that all variants decode the same number of tokens. The
first answer leaves the K/V of the prompt in a prefix store: no document is prefilled twice.
"""

import json

import bench_path  # noqa: F401  (finds the modules of bench)
import workloads


def candidates(kind, context, num_documents=0):
    """Requests in the order of use: each document once before any comes a second time.

    num_documents: the first so many documents only; 0: all.
    """
    by_document = {}
    for request in workloads.requests(kind, context):
        by_document.setdefault(request["document"], []).append(request)
    rows = list(by_document.values())[: num_documents or None]
    ordered = [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]
    return [(r["custom_id"], "\n\n".join(m["content"] for m in r["messages"])) for r in ordered]


class Prepared:
    """A request with what the full KV answers to it: what every variant must give again."""

    FIELDS = ("custom_id", "text", "prompt_ids", "token_ids", "logits_hash", "full_bytes")

    def __init__(self, custom_id, text, prompt_ids, token_ids, logits_hash, full_bytes):
        self.custom_id, self.text, self.prompt_ids = custom_id, text, prompt_ids
        self.token_ids, self.logits_hash, self.full_bytes = token_ids, logits_hash, full_bytes

    def to_json(self):
        return {field: getattr(self, field) for field in self.FIELDS}

    def line(self, num_tokens, draft, draft_len):
        """Its line of a file for `vericache batch`."""
        message = {"role": "user", "content": self.text}
        line = {"custom_id": self.custom_id, "messages": [message], "max_tokens": num_tokens}
        line["draft"] = draft
        if draft_len != "auto":
            line["draft_len"] = int(draft_len)
        return json.dumps(line) + "\n"


def load(path):
    """What an earlier run has prepared; [] where there is nothing."""
    if not path.is_file():
        return []
    return [Prepared(**line) for line in map(json.loads, path.read_text("utf-8").splitlines())]


def prepare(path, count, asked, answer, num_tokens, say):
    """`count` prepared requests, kept in the file `path`; `answer(text)` asks the full KV.

    asked: candidates(); those whose answer ends early are passed over.
    """
    found = load(path)
    done = {p.custom_id for p in found}
    passed = path.with_suffix(".short")  # custom_id of those that ended early
    short = set(passed.read_text("utf-8").split()) if passed.is_file() else set()
    for custom_id, text in asked:
        if len(found) >= count:
            break
        if custom_id in done | short:
            continue
        say(f"prefill of {custom_id} and its answer on the full KV")
        result = answer(text)
        if result["finish_reason"] != "length" or len(result["token_ids"]) != num_tokens:
            say(f"{custom_id} ends after {len(result['token_ids'])} tokens: not used")
            with open(passed, "a", encoding="utf-8") as f:
                f.write(custom_id + "\n")
            continue
        found.append(
            Prepared(
                custom_id,
                text,
                result["prompt_ids"],
                result["token_ids"],
                result["logits_hash"],
                result["stats"]["full_bytes"],
            )
        )
        with open(path, "a", encoding="utf-8") as f:
            f.write(json.dumps(found[-1].to_json()) + "\n")
    if len(found) < count:
        raise SystemExit(
            f"bench/longctx/run.py: {len(found)} of {count} requests have answers of {num_tokens} "
            "tokens: ask for fewer --tokens or --requests"
        )
    return found[:count]
