"""What run.py and agent_trace.py share: options, facts of the run, JSON lines that are added to."""

import argparse
import datetime
import json
import os
import pathlib
import platform

import bench_path
import machine
import quiet
import servers

BUSY = 0.1  # share of all cores in other hands above which no ratio is trusted


def die(text):
    raise SystemExit(f"bench/serving: {text}")


def words(text):
    return [word.strip() for word in text.split(";") if word.strip()]


def parser(summary, variants):
    made = argparse.ArgumentParser(description=summary)
    add = made.add_argument
    add("-m", "--model", default="qwen2.5-coder-0.5b", help="name or path")
    add("--variants", type=words, default=variants,
        help=f"with semicolons between; of: {'; '.join(servers.VARIANTS)}")
    add("--repeats", type=int, default=1)
    add("--threads", type=int, default=2)
    add("--peer-python", default=os.environ.get("VERICACHE_PEER_PYTHON"),
        help="a Python that has llama-cpp-python[server]")
    add("--vericache", type=pathlib.Path,
        default=bench_path.BENCH.parent / "build/release/vericache")
    add("-o", "--output", type=pathlib.Path, help="records, which are added to")
    add("--label", default="", help="words for the records, as 'quick look on a busy machine'")
    add("--busy-ok", action="store_true", help="measure on a busy machine too")
    return made


def check(args):
    """What must be true before anything is measured."""
    if unknown := [v for v in args.variants if v not in servers.VARIANTS]:
        die(f"no variant {unknown[0]}; there are: {'; '.join(servers.VARIANTS)}")
    if not args.vericache.is_file():
        die(f"no command at {args.vericache}: build it, or name it with --vericache")
    if any(v in servers.LLAMA_FLAGS for v in args.variants):
        if not args.peer_python or not servers.peer_version(args.peer_python):
            die("--peer-python must name a Python that has llama-cpp-python[server]")
    if not {servers.OURS, servers.PLAIN} <= set(args.variants):
        die(f"the variants need '{servers.OURS}; {servers.PLAIN}': equal answers come before times")
    share = 0 if args.busy_ok else quiet.share_now()
    if share > BUSY:
        die(f"other work takes {share:.0%} of the CPU: wait for it to end, or add --busy-ok")


def common_of(args, model, benchmark):
    git = ("git", "-C", str(bench_path.BENCH.parent))
    with_peer = any(v in servers.LLAMA_FLAGS for v in args.variants)
    return {
        "benchmark": benchmark,
        "commit": machine.output_of(*git, "rev-parse", "HEAD"),
        "uncommitted_changes": bool(machine.output_of(*git, "status", "--porcelain", "-uno")),
        "cpu": machine.cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "compiler": machine.compiler(args.vericache.resolve().parent),
        "python": platform.python_version(),
        "peer_version": servers.peer_version(args.peer_python) if with_peer else "",
        "model": model.name,
        "model_sha256": machine.sha256_file(model),
        "threads": args.threads,
        "label": args.label,
    }


class Records:
    """A file of JSON lines. Only records of one kind and one set of settings stand in a file."""

    def __init__(self, path, common, settings):
        self.path, self.common = path, common
        self.settings = ("benchmark", "model_sha256", "threads") + settings
        self.found = self._read()

    def _read(self):
        if not self.path.is_file():
            return []
        records, kept = [], []
        for line in self.path.read_text("utf-8").splitlines():
            try:
                records.append(json.loads(line))
                kept.append(line + "\n")
            except ValueError:
                print(f"{self.path}: a line that is not complete is measured again", flush=True)
        for record in records:
            if other := [key for key in self.settings if record[key] != self.common[key]]:
                die(f"{self.path} has records of another {other[0]}: give another file with -o")
        self.path.write_text("".join(kept), encoding="utf-8")
        return records

    def having(self, **fields):
        return [r for r in self.found if all(r[k] == v for k, v in fields.items())]

    def drop(self, **fields):
        """Takes out what is to be measured again."""
        gone = self.having(**fields)
        self.found = [r for r in self.found if r not in gone]
        if gone:
            lines = [json.dumps(record) + "\n" for record in self.found]
            self.path.write_text("".join(lines), encoding="utf-8")

    def add(self, **fields):
        record = {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        record |= self.common | {"load": os.getloadavg()[0]} | fields
        self.found.append(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")


def default_path(benchmark, model):
    return bench_path.BENCH / "results" / f"serving-{benchmark}-{model.stem}.jsonl"


def milliseconds(seconds):
    return None if seconds is None else round(seconds * 1000, 2)


def receipt_of(answer):
    return ((answer.usage or {}).get("vericache") or {}).get("receipt") or {}


def result_of(request_id, answer, start):
    """One request's part of a record; times in ms, `start` is the phase's."""
    if answer.error:
        die(f"request {request_id}: {answer.error}: no times")
    usage, receipt = answer.usage or {}, receipt_of(answer)
    # llama server streams no usage; it sends one event a token but for those that share a
    # character, and nothing for the end token.
    tokens = usage.get("completion_tokens", len(answer.texts) + (answer.finish_reason == "stop"))
    result = {
        "id": request_id,
        "start_ms": milliseconds(answer.start - start),
        "ttft_ms": milliseconds(answer.ttft),
        "end_to_end_ms": milliseconds(answer.end_to_end),
        "gaps_ms": [milliseconds(gap) for gap in answer.gaps],
        "tokens": tokens,
        "finish_reason": answer.finish_reason,
        "text": answer.text,
        "text_sha256": answer.text_sha256,
    }
    if receipt:
        stats = usage["vericache"]
        result |= {
            "token_ids": receipt["token_ids"],
            "logits_hash": receipt["logits_hash"],
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "rounds": stats["rounds"],
            "drafted": stats["drafted"],
            "accepted": stats["accepted"],
        }
    return result


def difference(ours, plain):
    """The first request whose answer is not bit for bit the plain one's, or None."""
    for one, other in zip(ours, plain, strict=True):
        for key in ("id", "prompt_tokens", "token_ids", "logits_hash", "text_sha256"):
            if key not in one or one[key] != other[key]:
                return one["id"]
    return None


def agreement(ours, theirs):
    """(answers alike to the end of the shorter, all answers)"""
    alike = sum(
        a["text"].startswith(b["text"]) or b["text"].startswith(a["text"])
        for a, b in zip(ours, theirs, strict=True))
    return alike, len(ours)
