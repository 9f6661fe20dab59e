"""The prefix that is measured, and short questions on it with what the full KV answers to each.

A prefix is a document of bench/compressors/workloads.py (Python sources), once prefilled by
`vericache prefix push` into a Redis whose file is kept; a question asks for a function of it with
one change. Only questions whose answer is as long as what is measured are used. Both are prepared
on the store's side, over no slow link, once.
"""

import json
import time

import bench_path  # noqa: F401  (finds the modules of bench)
import documents
import far_side
import workloads


def die(text):
    raise SystemExit(f"bench/prefix: {text}")


def text_of(context):
    document = documents.documents(context)[0]
    return workloads.SYSTEM.format(text=document.text), document


def candidates(context):
    """[(id, question)], those of other functions before those of another edit."""
    _, document = text_of(context)
    groups = workloads.choose(document, "code", workloads.PROMPTS_PER_DOCUMENT[context])
    found = []
    for edit in range(len(workloads.EDITS)):
        for i, group in enumerate(groups):
            asked, _ = workloads.code_prompt(group, edit)
            if asked not in [text for _, text in found]:
                found.append((f"{context}-{edit}-{i}", asked))
    return found


class Question:
    """A question, and the answer that every variant must give again."""

    FIELDS = ("id", "text", "prompt_tokens", "token_ids", "logits_hash")

    def __init__(self, **fields):
        for field in self.FIELDS:
            setattr(self, field, fields[field])

    def to_json(self):
        return {field: getattr(self, field) for field in self.FIELDS}


class Prefix:
    """A pushed prefix: its text, its file for Redis, its questions."""

    def __init__(self, folder, context, vericache, model, draft, num_tokens, ctx):
        self.folder, self.context, self.draft = folder, context, draft
        self.vericache, self.model, self.num_tokens, self.ctx = vericache, model, num_tokens, ctx
        self.text, _ = text_of(context)
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "prefix.txt"
        self.file.write_text(self.text, encoding="utf-8")
        self.redis_folder = folder / "redis"
        self.pushed_file = folder / "pushed.json"

    def run(self, space, *words):
        done = space.run([self.vericache, *words])
        if done.returncode != 0:
            die(f"vericache {words[0]}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)

    def store(self):
        return far_side.redis_url(("127.0.0.1", far_side.REDIS_PORT))

    def push(self, space, redis, threads, say):
        """Prefills and stores it unless an earlier run has; its facts."""
        if self.pushed_file.is_file():
            return json.loads(self.pushed_file.read_text("utf-8"))
        say(f"{self.context}: push, the one prefill of this prefix")
        start = time.monotonic()
        found = self.run(space, "prefix", "push", "-m", self.model, "-f", self.file, "--draft",
                         self.draft, "--prefix-store", self.store(), "--threads", threads, "--ctx",
                         self.ctx, "--json")
        found |= {"push_s": time.monotonic() - start, "push_threads": threads}
        redis.save()
        self.pushed_file.write_text(json.dumps(found), encoding="utf-8")
        return found

    def questions(self, space, count, threads, say):
        """`count` of them, prepared now or by an earlier run."""
        path = self.folder / f"questions-{self.num_tokens}.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        known = {line["id"]: line for line in map(json.loads, lines)}
        found = []
        for name, text in candidates(self.context):
            if name not in known:
                known[name] = self.prepare(space, name, text, threads, say)
                with open(path, "a", encoding="utf-8") as f:
                    f.write(json.dumps(known[name]) + "\n")
            if len(known[name]["token_ids"]) == self.num_tokens:
                found.append(Question(**known[name]))
            if len(found) == count:
                return found
        die(f"{self.context}: {len(found)} of {count} questions have answers of "
            f"{self.num_tokens} tokens: ask for fewer --tokens or --requests")

    def prepare(self, space, name, text, threads, say):
        found = self.run(space, "run", "-m", self.model, "-f", self.file, "-p", text, "-n",
                         self.num_tokens, "--draft", "off", "--threads", threads, "--ctx", self.ctx,
                         "--prefix-store", self.store(), "--prefix-store-mode", "ro", "--json")
        tokens = found["token_ids"]
        if found["finish_reason"] != "length":
            say(f"{name} ends after {len(tokens)} tokens: not used")
            tokens = []
        return {"id": name, "text": text, "prompt_tokens": found["usage"]["prompt_tokens"],
                "token_ids": tokens, "logits_hash": found["logits_hash"]}
