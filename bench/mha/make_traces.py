#!/usr/bin/env python3
"""Writes traces/DRAFT/KIND-N.jsonl: the rounds of real runs, which run.py replays.

    bench/mha/make_traces.py          # those that are missing: 2 minutes on an idle machine

`vericache run --trace`, as it is, on the first prompt of each kind of
bench/compressors/workloads.py.
All runs of a prompt must give the same tokens and logits. Standard library only.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import run

HERE = pathlib.Path(__file__).resolve().parent


def first_request(kind, length):
    workloads = HERE.parent / "compressors/workloads.py"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "requests.jsonl")
        subprocess.run([sys.executable, str(workloads), kind, length, "-o", str(path)], check=True,
                       stdout=subprocess.DEVNULL)
        return json.loads(path.read_text("utf-8").splitlines()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--vericache", type=pathlib.Path,
        default=HERE.parent.parent / "build/release/vericache")
    add("-m", "--model", default="qwen2.5-coder-0.5b")
    add("--drafts", type=run.words, default=run.DRAFTS)
    add("--kinds", type=run.words, default=["code", "prose"])
    add("--draft-lens", type=run.words, default=["8", "16", "32", "64"])
    add("--length", default="8k", help="of the prompts")
    add("--tokens", type=int, default=200, help="of an answer at most")
    add("--traces", type=pathlib.Path, default=HERE / "traces")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as store:
        for kind in args.kinds:
            make(args, kind, store)


def make(args, kind, store):
    """All traces of a kind that are not there."""
    system, user = (m["content"] for m in first_request(kind, args.length)["messages"][:2])
    hashes = set()
    for draft in args.drafts:
        folder = args.traces / draft.replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        for length in args.draft_lens:
            path = folder / f"{kind}-{length}.jsonl"
            if path.is_file():
                continue
            command = [args.vericache, "run", "-m", args.model, "--system", system, "-p", user]
            command += ["--prefix-store", store, "-n", args.tokens, "--draft", draft, "--json"]
            command += ["--draft-len", length, "--propose", "off", "--trace", path]
            done = subprocess.run([str(word) for word in command], check=True,
                                  stdout=subprocess.PIPE)
            hashes.add(json.loads(done.stdout)["logits_hash"])
            lines = path.read_text("utf-8").splitlines()
            print(f"{draft} {kind}, {length} drafted: {len(lines)} rounds of "
                  f"{run.run_length(lines):.1f} tokens", flush=True)
    if len(hashes) > 1:
        raise SystemExit(f"bench/mha/make_traces.py: drafts changed the answer to {kind}")


if __name__ == "__main__":
    main()
