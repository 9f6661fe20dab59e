#!/usr/bin/env python3
"""Plain decoding and VeriCache, all K/V in RAM, by heads per KV head and depth; see README.md.

    bench/mha/run.py --shapes mha --depths 8k --repeats 2        # a quick look

A record (a JSON line) is one shape, depth and draft spec: one process of `vericache bench
--replay`, in which plain decoding and the rounds of every trace take turns. A run that was stopped
goes on after its last record. Standard library only.
"""

import argparse
import datetime
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import machine  # noqa: E402
import quiet  # noqa: E402

BUSY = 0.1  # share of all cores in other hands above which no ratio is trusted
DEPTHS = {"8k": 8192, "16k": 16384, "32k": 32768}
SHAPES = {
    "mha": "random weights, 24 layers, 16 heads of 64 with a KV head each",
    "smollm2-135m": "30 layers, 9 heads of 64 on 3 KV heads",
}
# One that is chosen anew after every verification, one that is not, one that drops nothing.
DRAFTS = ["verify:0.25+int4", "snapkv:0.25+int4", "int4"]
# What must be the same for records to stand in one file.
SETTINGS = ("threads", "tokens", "kinds", "draft_lens", "repeats")


def die(text):
    raise SystemExit(f"bench/mha/run.py: {text}")


def words(text):
    return [word for word in text.split(",") if word]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    build = HERE.parent.parent / "build/release"
    add("--vericache", type=pathlib.Path, default=build / "vericache")
    add("--make-model", type=pathlib.Path, default=build / "bench/mha_model")
    add("--shapes", type=words, default=list(SHAPES), help=", ".join(SHAPES))
    add("--depths", type=words, default=list(DEPTHS), help=", ".join(DEPTHS))
    add("--kinds", type=words, default=["code", "prose"], help="of traces/DRAFT/KIND-N.jsonl")
    add("--draft-lens", type=words, default=["8", "16", "32", "64"])
    add("--traces", type=pathlib.Path, default=HERE / "traces")
    add("--tokens", type=int, default=128, help="of each trace, whole rounds of them")
    add("--drafts", type=words, default=DRAFTS, help=" ".join(DRAFTS))
    add("--repeats", type=int, default=5)
    add("--threads", type=int, default=os.cpu_count())
    add("--label", default="", help="words for the record, as 'quick look on a busy machine'")
    add("--busy-ok", action="store_true", help="measure on a busy machine too")
    add("-o", "--output", type=pathlib.Path)
    args = parser.parse_args()
    for chosen, known in ((args.shapes, SHAPES), (args.depths, DEPTHS)):
        if unknown := [name for name in chosen if name not in known]:
            die(f"there is no {unknown[0]}, only {', '.join(known)}")
    return args


def shortened(lines, tokens):
    """The first whole rounds that emit at least `tokens`; all of a shorter trace."""
    kept, emitted = [], 0
    for line in lines:
        if emitted >= tokens:
            break
        kept.append(line)
        emitted += json.loads(line)["accepted"] + 1
    return kept


def run_length(lines):
    """Tokens that a round emits, on the mean."""
    return sum(json.loads(line)["accepted"] + 1 for line in lines) / len(lines)


def read_traces(args, draft):
    """{name: lines} of all kinds and draft lengths."""
    traces = {}
    for kind in args.kinds:
        for length in args.draft_lens:
            path = args.traces / draft.replace(":", "-") / f"{kind}-{length}.jsonl"
            if not path.is_file():
                die(f"no trace at {path}; README.md says how one is made")
            traces[path.stem] = shortened(path.read_text("utf-8").splitlines(), args.tokens)
    return traces


def models_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache, "vericache/models")


def flags_of(shape, depth, args, folder):
    """The model of a shape. A context beyond the trained one costs the same time a token."""
    if shape == "mha":
        model = folder / "mha.gguf"
        if not model.is_file():
            subprocess.run([str(args.make_model), str(model)], check=True)
        return ["-m", model]
    model = models_folder() / f"{shape}.gguf"
    if not model.is_file():
        die(f"no model at {model}; fetch it by `vericache pull {shape}`")
    return ["-m", model, "--rope-scaling", "linear", "--rope-scale", 2 * depth // 8192]


def bench(shape, depth, draft, args, traces, folder):
    """What `vericache bench` says, as JSON."""
    files = []
    for name, lines in traces.items():
        files.append(folder / f"{name}.jsonl")
        files[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [args.vericache, "bench", *flags_of(shape, depth, args, folder)]
    command += ["--threads", args.threads, "--depths", depth, "--repeat", args.repeats, "--json"]
    command += ["--prefill", 16, "--decode", 8, "--widths", "none", "--draft-specs", "none"]
    command += ["--replay", ",".join(map(str, files)), "--replay-draft", draft]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        die(f"vericache bench ended with {done.returncode}")
    return json.loads(done.stdout)


def result_of(found, depth, traces):
    """The part of a record that was measured: medians, [lowest, highest]."""

    def pair(name):
        if found.get(name) is None:
            die(f"vericache bench gave no {name}: does {depth} fit into the context?")
        return [found[name], *found["spread"][name]]

    return {
        "read_gbps": pair("read_gbps"),
        "cpu_wait_share": found["cpu_wait_share"],
        "weight_bytes": found["weight_bytes"],
        "full_bytes": found["kv_bytes_per_token"] * depth,
        "plain_tok_s": pair(f"replay_plain_tps_{depth}"),
        "traces": {
            name: {
                "run_length": run_length(lines),
                "tokens": sum(json.loads(line)["accepted"] + 1 for line in lines),
                "tok_s": pair(f"replay_tps_{depth}_{name}"),
                "speedup": pair(f"replay_speedup_{depth}_{name}"),
                "draft_s": pair(f"replay_draft_s_{depth}_{name}")[0],
                "verify_s": pair(f"replay_verify_s_{depth}_{name}")[0],
            }
            for name, lines in traces.items()
        },
    }


def common(args):
    git = ["git", "-C", str(HERE)]
    return {
        "commit": machine.output_of(*git, "rev-parse", "HEAD"),
        "uncommitted_changes": bool(machine.output_of(*git, "status", "--porcelain", "-uno")),
        "cpu": machine.cpu_name(),
        "compiler": machine.compiler(args.vericache.parent),
        "label": args.label,
        "threads": args.threads,
        "tokens": args.tokens,
        "kinds": args.kinds,
        "draft_lens": args.draft_lens,
        "repeats": args.repeats,
    }


def records_of(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def main():
    args = parse_args()
    share = 0 if args.busy_ok else quiet.share_now()
    if share > BUSY:
        die(f"other work takes {share:.0%} of the CPU: wait for it to end, or add --busy-ok")
    traces = {draft: read_traces(args, draft) for draft in args.drafts}
    settings = common(args)
    path = args.output or HERE.parent / "results" / f"mha-{args.tokens}.jsonl"
    old = records_of(path)
    for record in old:
        if any(record[key] != settings[key] for key in SETTINGS):
            die(f"{path} holds records of other settings: give another file by -o")
    done = {(record["shape"], record["depth"], record["draft"]) for record in old}
    with tempfile.TemporaryDirectory() as temporary:
        depths = [DEPTHS[name] for name in args.depths]
        for shape, depth, draft in itertools.product(args.shapes, depths, args.drafts):
            if (shape, depth, draft) in done:
                continue
            others = quiet.Others([])
            time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            found = bench(shape, depth, draft, args, traces[draft], pathlib.Path(temporary))
            record = {"time": time, **settings, "shape": shape, "depth": depth, "draft": draft}
            record |= result_of(found, depth, traces[draft])
            record["others_cpu_share"] = others.share()
            with open(path, "a", encoding="utf-8") as f:
                f.write(json.dumps(record) + "\n")
            best = max(record["traces"].values(), key=lambda t: t["speedup"][0])
            print(f"{shape} {depth} {draft}: plain {record['plain_tok_s'][0]:.1f} tok/s, "
                  f"best {best['speedup'][0]:.2f}x", flush=True)


if __name__ == "__main__":
    main()
