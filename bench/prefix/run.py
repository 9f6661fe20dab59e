#!/usr/bin/env python3
"""A prefix behind a slow link: what serving it takes, done in every way we know; see README.md.

    bench/prefix/run.py -m qwen2.5-coder-0.5b --contexts 4k --rates 100mbit --requests 1 --repeats 1

A record (a JSON line) is one round: all variants of one context, link, number of requests and of
nodes, one after another. A run that was stopped goes on after its last complete round. Needs root
(network namespaces), redis-server and iproute2; standard library only.
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
import far_side
import links
import machine
import model_files
import names
import prefixes
import quiet
import record_files
import scene
import servers
import variants

BUSY = 0.1  # share of all cores in other hands above which nothing is measured
SETTINGS = ("model_sha256", "num_tokens", "draft", "delay_ms", "node_cores", "far_cores")


def die(text):
    raise SystemExit(f"bench/prefix/run.py: {text}")


def words(text):
    return [word for word in text.split(",") if word]


def numbers(text):
    return [int(word) for word in words(text)]


def core_lists(text):
    """"0;1" is a list for each node; "0,1" two cores for every node."""
    return text.split(";")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("-m", "--model", default="qwen2.5-coder-0.5b", help="name or path")
    add("--contexts", type=words, default=["4k", "8k", "16k"],
        help=f"some of {','.join(names.CONTEXTS)}")
    add("--rates", type=words, default=["100mbit", "300mbit", "1gbit", "10gbit"])
    add("--delay-ms", type=float, default=0, help="one way, 1 to 20; 0: none (and no relay)")
    add("--requests", type=numbers, default=[1, 4, 16], help="how many at once")
    add("--nodes", type=numbers, default=[1, 2], help="serving nodes, for more than one request")
    add("--tokens", type=int, default=128, help="of each answer")
    add("--repeats", type=int, default=3)
    add("--draft", default="kvzip:0.25+int4")
    add("--node-cores", type=core_lists, default=["0"],
        help="cores of each node as taskset wants them, nodes apart by ; (the last ones repeat)")
    add("--far-cores", default="1", help="cores of the store's side")
    add("--push-threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--recompute-once", action="store_true", help="only at the first rate: no link matters")
    add("--only", default="", help="only variants whose name has this regular expression")
    add("--vericache", type=pathlib.Path,
        default=bench_path.BENCH.parent / "build/release/vericache")
    add("--work", type=pathlib.Path, default=model_files.cache_folder() / "prefix",
        help="pushed prefixes and prepared questions")
    add("-o", "--output", type=pathlib.Path,
        help="records (default bench/results/prefix-MODEL-TOKENS.jsonl)")
    add("--label", default="", help="words for the record, as 'quick look on a busy machine'")
    add("--busy-ok", action="store_true", help="measure on a busy machine too")
    args = parser.parse_args()
    check(args)
    return args


def check(args):
    if unknown := [c for c in args.contexts if c not in names.CONTEXTS]:
        die(f"no context {unknown[0]}; there are {', '.join(names.CONTEXTS)}")
    try:
        for rate in args.rates:
            links.bits_per_s(rate)
    except ValueError as wrong:
        die(str(wrong))
    if not args.vericache.is_file():
        die(f"no command at {args.vericache}: build it, or name it with --vericache")
    if reason := links.why_not():
        die(f"no network namespaces: {reason}")
    args.vericache = args.vericache.resolve()
    args.model_path = model_files.find_model(args.model, die).resolve()


def common_of(args):
    git = ("git", "-C", str(bench_path.BENCH.parent))
    sizes = json.loads(
        machine.output_of(str(args.vericache), "inspect", str(args.model_path), "--json"))
    return {
        "commit": machine.output_of(*git, "rev-parse", "HEAD"),
        "uncommitted_changes": bool(machine.output_of(*git, "status", "--porcelain", "-uno")),
        "cpu": machine.cpu_name(), "cores": len(os.sched_getaffinity(0)),
        "compiler": machine.compiler(args.vericache.parent),
        "model": args.model_path.name, "model_sha256": machine.sha256_file(args.model_path),
        "kv_bytes_token": sizes["kv_bytes_per_token"],
        "num_tokens": args.tokens, "draft": args.draft, "delay_ms": args.delay_ms,
        "node_cores": args.node_cores, "far_cores": args.far_cores, "label": args.label,
    }


def key_of(record):
    return tuple(record[k] for k in ("context", "rate", "num_requests", "num_nodes", "repeat"))


def say(text):
    print(f"  {text}", flush=True)


class Rounds:
    """Measures rounds and appends their records."""

    def __init__(self, args, common, path):
        self.args, self.common, self.path = args, common, path
        self.features = scene.Features(args.vericache)
        self.done = {key_of(r) for r in record_files.read_again(path, common, SETTINGS, die)}

    def prepare(self, prefix):
        """(facts of the push, questions), on the store's side of no link."""
        count = max(max(self.args.requests), 2)
        with scene.Scene(self.args, prefix, self.args.rates[0], 0) as place:
            threads = self.args.push_threads
            pushed = prefix.push(place.network.store, place.redis, threads, say)
            return pushed, prefix.questions(place.network.store, count, threads, say)

    def measure(self, prefix, pushed, questions, cell):
        context, rate, num_requests, num_nodes, repeat = cell
        if cell in self.done:
            return
        with scene.Scene(self.args, prefix, rate, num_nodes) as place:
            others = quiet.Others([place.redis.process.pid])
            link = place.probe(place.nodes[0])
            if num_requests == 1:
                first = questions[repeat % len(questions)]
                again = questions[(repeat + 1) % len(questions)]
                group = variants.One(place, self.features, first, again, self.args.draft)
            else:
                group = variants.Many(place, self.features, questions[:num_requests],
                                      self.args.draft)
            chosen = [n for n in group.all() if re.search(self.args.only, n)]
            if self.args.recompute_once and rate != self.args.rates[0]:
                chosen = [n for n in chosen if n != names.RECOMPUTE]
            turn = repeat % max(len(chosen), 1)
            found = {}
            for name in chosen[turn:] + chosen[:turn]:  # the first place goes round
                found |= self.one(cell, name, group.all()[name])
            self.add(cell, link, pushed, others, found)

    def one(self, cell, name, measure):
        where = "{}, {}, {} requests, {} nodes, repeat {}".format(*cell)
        start = time.monotonic()
        try:
            found = measure()
        except variants.Wrong as wrong:
            die(f"{where}: {name}: {wrong}: no time")
        except (scene.Failed, far_side.Failed) as failed:
            say(f"{where}: {name}: failed: {failed}")
            return {name: {"error": str(failed)}}
        for said, result in found.items():
            print(f"  {where}: {said}: first token after {max(result['first_s']):.2f} s, all after "
                  f"{result['wall_s']:.2f} s, {result['down_bytes'] / 1e6:.1f} MB "
                  f"({time.monotonic() - start:.0f} s)", flush=True)
        return found

    def add(self, cell, link, pushed, others, found):
        context, rate, num_requests, num_nodes, repeat = cell
        record = {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        record |= self.common | {
            "context": context, "rate": rate, "num_requests": num_requests,
            "num_nodes": num_nodes, "repeat": repeat, "link_bits_per_s": link, "pushed": pushed,
            "load": os.getloadavg()[0], "others_cpu_share": others.share(), "variants": found}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")


def cells(args, context):
    """(context, rate, requests, nodes, repeat): all of one repeat before the next."""
    for repeat in range(args.repeats):
        for rate in args.rates:
            for num_requests in args.requests:
                for num_nodes in args.nodes if num_requests > 1 else [1]:
                    yield context, rate, num_requests, num_nodes, repeat


def main():
    servers.stop_with_us()
    args = parse_args()
    share = 0 if args.busy_ok else quiet.share_now()
    if share > BUSY:
        die(f"other work takes {share:.0%} of the CPU: wait for it to end, or add --busy-ok")
    common = common_of(args)
    path = args.output or (
        bench_path.BENCH / "results" / f"prefix-{args.model_path.stem}-{args.tokens}.jsonl")
    rounds = Rounds(args, common, path)
    for context in args.contexts:
        # Longer than what models are trained for would need rope scaling.
        args.ctx = min(names.CONTEXTS[context] * 5 // 4 + 1024, max(names.CONTEXTS.values()))
        folder = args.work / f"{args.model_path.stem}-{common['model_sha256'][:12]}" / context
        folder /= re.sub(r"[^\w.]", "-", args.draft)
        prefix = prefixes.Prefix(folder, context, args.vericache, args.model_path, args.draft,
                                 args.tokens, args.ctx)
        pushed, questions = rounds.prepare(prefix)
        for cell in cells(args, context):
            rounds.measure(prefix, pushed, questions, cell)
    print(f"records: {path}")


if __name__ == "__main__":
    sys.exit(main())
