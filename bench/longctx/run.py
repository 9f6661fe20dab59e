#!/usr/bin/env python3
"""Long contexts in a fixed budget of KV memory, beside all in RAM; see README.md.

    bench/longctx/run.py -m qwen2.5-coder-0.5b --contexts 8k --requests 1,4 --tokens 48 --repeats 2

A record (a JSON line) is one round: all variants of one model, context and number of requests,
one after another. A run that was stopped goes on after its last complete round. Standard library
only.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import sys
import time

import bench_path
import command
import contexts
import engines
import machine
import model_files
import names
import quiet
import record_files
import variants

BUSY = 0.1  # share of all cores in other hands above which no ratio is trusted
WIDTHS = [1, 8, 16, 32, 64]  # of a verification, for the bound made of parts
CONTEXTS = {"4k": 4096, "8k": 8192, "16k": 16384, "32k": 32768}
# What must be the same for records to stand in one file.
SETTINGS = ("model_sha256", "threads", "num_tokens", "read_limit", "draft", "kind", "shares")
SETTINGS += ("draft_lens",)


def die(text):
    raise SystemExit(f"bench/longctx/run.py: {text}")


def words(text):
    return [word for word in text.split(",") if word]


def numbers(text):
    return [int(word) for word in words(text)]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("-m", "--model", default="qwen2.5-coder-0.5b", help="name or path")
    add("--contexts", type=words, default=["8k"], help=f"some of {','.join(CONTEXTS)}")
    add("--requests", type=numbers, default=[1, 4], help="how many at once, comma-separated")
    add("--shares", type=numbers, default=[8, 4],
        help="budgets: 8 is an eighth of the full KV of all requests of a round")
    add("--tokens", type=int, default=48, help="of each answer")
    add("--repeats", type=int, default=2)
    add("--documents", type=int, default=0, help="use at most so many; 0: all there are")
    add("--kind", choices=workloads(), default="code")
    add("--draft", default="verify:0.25+int4")
    add("--draft-lens", type=words, default=["auto", "32"], help="auto or a number")
    add("--read-limit", type=int, default=1_000_000_000,
        help="bytes a second from the spill file at most; 0: what the device gives")
    add("--kv-dir", type=pathlib.Path, help="folder of the spill files")
    add("--threads", type=int, default=2)
    add("--peers", type=words, default=["off", "on"],
        help="flash attention of llama.cpp: off, on; '' for no peer")
    add("--peer-python", default=os.environ.get("VERICACHE_PEER_PYTHON"),
        help="a Python that has llama_cpp")
    add("--only", default="", help="only variants whose name has this regular expression")
    add("--no-parts", action="store_true", help="no `vericache bench` at the end of a round")
    add("--vericache", type=pathlib.Path,
        default=bench_path.BENCH.parent / "build/release/vericache")
    add("--work", type=pathlib.Path, default=model_files.cache_folder() / "longctx",
        help="prefix stores and prepared requests")
    add("-o", "--output", type=pathlib.Path,
        help="records (default bench/results/longctx-MODEL-TOKENS.jsonl)")
    add("--label", default="", help="words for the record, as 'quick look on a busy machine'")
    add("--busy-ok", action="store_true", help="measure on a busy machine too")
    args = parser.parse_args()
    if args.peers and not args.peer_python:
        die("--peers needs --peer-python: a Python that has llama_cpp; or give --peers ''")
    if unknown := [c for c in args.contexts if c not in CONTEXTS]:
        die(f"no context {unknown[0]}")
    return args


def workloads():
    return list(contexts.workloads.WORKLOADS)


def common_of(args, model, model_sha256):
    git = ("git", "-C", str(bench_path.BENCH.parent))
    sizes = json.loads(machine.output_of(str(args.vericache), "inspect", str(model), "--json"))
    return {
        "commit": machine.output_of(*git, "rev-parse", "HEAD"),
        "uncommitted_changes": bool(machine.output_of(*git, "status", "--porcelain", "-uno")),
        "cpu": machine.cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "compiler": machine.compiler(args.vericache.parent),
        "model": model.name,
        "model_sha256": model_sha256,
        "model_bytes": model.stat().st_size,
        "heads_per_kv_head": sizes["num_heads"] // sizes["num_kv_heads"],
        "threads": args.threads,
        "num_tokens": args.tokens,
        "read_limit": args.read_limit,
        "draft": args.draft,
        "kind": args.kind,
        "shares": args.shares,
        "draft_lens": args.draft_lens,
        "label": args.label,
    }


def key_of(record):
    return record["context"], record["num_requests"], record["repeat"]


def parts_of(args, setup, results):
    """What the parts of a round take alone, by `vericache bench`, on as long a context."""
    specs = [r["draft_spec"] for name, r in results.items()
             if name.startswith("VeriCache") and "draft_spec" in r]
    found = list(dict.fromkeys(s for s in map(names.sink_of, specs) if s))
    depth = max(len(r.prompt_ids) for r in setup.requests)
    parts = setup.vericache.parts(depth, WIDTHS, found, 8)
    return {"depth": depth, "sinks": found} | {k: v for k, v in parts.items() if v is not None}


class Rounds:
    """Measures rounds and appends their records."""

    def __init__(self, args, common, path, peers):
        self.args, self.common, self.path, self.peers = args, common, path, peers
        self.done = {key_of(r) for r in record_files.read_again(path, common, SETTINGS, die)}

    def measure(self, context, setup, repeat):
        num = len(setup.requests)
        if (context, num, repeat) in self.done:
            return
        base = setup.vericache.base_rss_bytes()
        others = quiet.Others([p.pid for p in self.peers])
        chosen = variants.of_round(setup, self.args.shares, self.args.draft_lens, self.peers)
        measured = [n for n in chosen if re.search(self.args.only, n)]
        first = repeat % max(len(measured), 1)
        results = {}
        for name in measured[first:] + measured[:first]:  # the first place goes round
            results[name] = self.one(f"{context}, {num}, repeat {repeat + 1}", name, chosen[name])
        parts = {} if self.args.no_parts else parts_of(self.args, setup, results)
        results = {name: results[name] for name in measured}
        self.add(context, setup, repeat, others, {"variants": results, "parts": parts,
                                                  "base_rss_bytes": base})

    def one(self, where, name, measure):
        start = time.monotonic()
        try:
            result = measure()
            said = f"{result['tok_s']:.1f} tok/s"
        except variants.Wrong as wrong:
            die(f"{name}: {wrong}: no time")
        except command.Failed as failed:
            result = {"error": str(failed)}
            said = f"failed: {failed}"
        print(f"  {where}: {name}: {said} ({time.monotonic() - start:.0f} s)", flush=True)
        return result

    def add(self, context, setup, repeat, others, found):
        record = {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        record |= self.common | {"context": context, "num_requests": len(setup.requests)}
        record |= {
            "repeat": repeat,
            "prompt_tokens": [len(r.prompt_ids) for r in setup.requests],
            "custom_ids": [r.custom_id for r in setup.requests],
            "full_bytes": [r.full_bytes for r in setup.requests],
            "answers_sha256": engines.token_hash(
                [token for r in setup.requests for token in r.token_ids]),
            "load": os.getloadavg()[0],
            "others_cpu_share": others.share(),
        } | found
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")


def setups(args, model, model_sha256, context):
    """The requests of a context, prepared, for each number of them."""
    work = args.work / f"{model.stem}-{model_sha256[:12]}"
    work.mkdir(parents=True, exist_ok=True)
    ours = command.Vericache(args.vericache, model, args.threads, work / f"store-{context}",
                             args.read_limit, args.kv_dir)
    prepared = contexts.prepare(
        work / f"{args.kind}-{context}-{args.tokens}.jsonl",
        max(args.requests),
        contexts.candidates(args.kind, context, args.documents),
        lambda text: ours.answer(text, args.tokens),
        args.tokens,
        lambda text: print(f"  {context}: {text}", flush=True),
    )
    for num in args.requests:
        yield variants.Setup(ours, prepared[:num], args.tokens, args.draft)


def main():
    args = parse_args()
    share = 0 if args.busy_ok else quiet.share_now()
    if share > BUSY:
        die(f"other work takes {share:.0%} of the CPU: wait for it to end, or add --busy-ok")
    model = model_files.find_model(args.model, die)
    model_sha256 = machine.sha256_file(model)
    path = args.output or (
        bench_path.BENCH / "results" / f"longctx-{model.stem}-{args.tokens}.jsonl")
    peers = [
        variants.Llama(names.PEERS[name], args.peer_python, model, model_sha256, args.threads,
                       engines.states_folder())
        for name in args.peers
    ]
    rounds = Rounds(args, common_of(args, model, model_sha256), path, peers)
    for context in args.contexts:
        made = list(setups(args, model, model_sha256, context))
        for repeat in range(args.repeats):
            for setup in made:
                rounds.measure(context, setup, repeat)
    print(f"records: {path}")


if __name__ == "__main__":
    sys.exit(main())
