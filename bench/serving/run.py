#!/usr/bin/env python3
"""Our server beside llama-cpp-python's on the same traffic; see README.md.

    bench/serving/run.py -m qwen2.5-coder-0.5b --loads 4,1,16 --peer-python VENV/bin/python

A record (a JSON line) is one variant under one load: its server is started, the cold phase asks
of documents that it has not seen, the warm phase asks further questions of the same documents. A
run that was stopped goes on after its last complete record. Standard library only.
"""

import json
import sys
import time

import bench_path  # noqa: F401  (finds the modules of bench)
import load
import model_files
import quiet
import records
import servers
import traffic

DEFAULT = [servers.OURS, servers.PLAIN, servers.LLAMA]
SETTINGS = ("num_tokens", "documents")


def loads(text):
    """"4" is four clients, "0.5/s" requests that arrive on their own."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    for word in found:
        if not (word.isdigit() and int(word) > 0) and not word.endswith("/s"):
            raise ValueError(word)
        float(word.removesuffix("/s"))
    return found


def numbers(text):
    return [int(word) for word in text.split(",") if word.strip()]


def parse_args():
    parser = records.parser(__doc__.split("\n", 1)[0], DEFAULT)
    add = parser.add_argument
    add("--loads", type=loads, default=["4", "1", "16"],
        help="numbers of clients, or arrivals as 0.5/s; most important first")
    add("--documents", type=numbers, default=[4096, 4608, 6144],
        help="sizes in tokens (estimated), at most six")
    add("--tokens", type=int, default=48, help="of each answer, at most")
    add("--cold", type=int, default=0,
        help="requests of the cold phase (default: one a client, each document once at least)")
    add("--warm", type=int, default=0,
        help="requests of the warm phase (default: two a client, from 4 to 16)")
    args = parser.parse_args()
    records.check(args)
    return args


def counts(args, load_name):
    clients = int(load_name) if load_name.isdigit() else 8
    cold = args.cold or max(len(args.documents), clients)
    return cold, args.warm or min(max(4, 2 * clients), 16)


class Cell:
    """One load of one repeat: the requests that all its variants get."""

    def __init__(self, args, load_name, repeat):
        self.args, self.load, self.repeat = args, load_name, repeat
        source = traffic.Traffic(args.documents)
        cold, warm = counts(args, load_name)
        self.phases = {"cold": source.take(cold), "warm": source.take(warm)}

    def phase(self, server, name, ours):
        requests = self.phases[name]
        encoded = [
            load.encoded(server.port, "/v1/chat/completions",
                         servers.greedy(r.messages, self.args.tokens, ours))
            for r in requests
        ]
        others = quiet.Others([server.pid])
        if self.load.isdigit():
            answers, cost = load.closed_loop(server.port, encoded, int(self.load))
        else:
            rate = float(self.load.removesuffix("/s"))
            answers, cost = load.open_loop(server.port, encoded, rate, self.repeat)
        start = min(a.start for a in answers)
        results = [records.result_of(f"{name}-{r.id}", a, start)
                   for r, a in zip(requests, answers)]
        return {
            "wall_s": max(a.last for a in answers) - start,
            "others_cpu_share": others.share(),
            "generator": {key: round(value, 6) for key, value in vars(cost).items()},
            "requests": results,
        }

    def measure(self, maker, name):
        ours = name in servers.OUR_FLAGS
        server = maker.start(name)
        try:
            phases = {phase: self.phase(server, phase, ours) for phase in self.phases}
            checked = {} if ours else self.prompt_tokens(server)
            found = {
                "phases": phases, "prompt_tokens_checked": checked, "start_s": server.start_s,
                "peak_rss_bytes": servers.peak_rss_bytes(server.pid)}
        finally:
            stopped = server.stop()
        return found | {"stop_s": stopped}

    def prompt_tokens(self, server):
        """What a server that streams no usage counts: asked afterwards, once a document."""
        counted = {}
        for request in {r.document: r for r in self.phases["warm"]}.values():
            body = servers.greedy(request.messages, 1, False) | {"stream": False}
            status, text = servers.get(server.port, "/v1/chat/completions", body, 600)
            if status != 200:
                records.die(f"{server.name} said {status}: {text[:300]}")
            counted[f"warm-{request.id}"] = json.loads(text)["usage"]["prompt_tokens"]
        return counted


def requests_of(record):
    return [r for phase in record["phases"].values() for r in phase["requests"]]


def check_equal(found):
    """found: {variant: record} of one cell. Unequal work has no times."""
    ours = requests_of(found[servers.OURS])
    if wrong := records.difference(ours, requests_of(found[servers.PLAIN])):
        records.die(f"{wrong}: the answer with a draft is not bit for bit that without: no times")
    known = {r["id"]: r["prompt_tokens"] for r in ours}
    for name, record in found.items():
        for request, count in record["prompt_tokens_checked"].items():
            if known[request] != count:
                records.die(f"{name} read {request} as {count} tokens, ours as {known[request]}: "
                            "unequal work, no times")


def show(found):
    for name, record in found.items():
        for phase, result in record["phases"].items():
            tokens = sum(r["tokens"] for r in result["requests"])
            first = sorted(r["ttft_ms"] for r in result["requests"])
            print(f"    {name}, {phase}: {tokens / result['wall_s']:.1f} tok/s, first token after "
                  f"{first[0]:,.0f} to {first[-1]:,.0f} ms, {result['wall_s']:.0f} s", flush=True)


def measure_cell(args, maker, book, load_name, repeat):
    cell = Cell(args, load_name, repeat)
    first = repeat % len(args.variants)
    for name in args.variants[first:] + args.variants[:first]:  # the first place goes round
        if book.having(load=load_name, repeat=repeat, variant=name):
            continue
        start = time.monotonic()
        try:
            found = cell.measure(maker, name)
        except servers.Failed as failed:
            records.die(str(failed))
        book.add(load=load_name, repeat=repeat, variant=name, flags=servers.flags_of(name), **found)
        print(f"  {load_name}, repeat {repeat + 1}: {name}: measured in "
              f"{time.monotonic() - start:.0f} s", flush=True)
    found = {r["variant"]: r for r in book.having(load=load_name, repeat=repeat)}
    check_equal(found)
    print(f"  {load_name}, repeat {repeat + 1}: answers with and without a draft are equal")
    show(found)


def main():
    servers.stop_with_us()
    args = parse_args()
    model = model_files.find_model(args.model, records.die)
    common = records.common_of(args, model, "traffic")
    common |= {"num_tokens": args.tokens, "documents": args.documents}
    ctx = (max(args.documents) * 5 // 4 + 512 + args.tokens + 1023) // 1024 * 1024
    maker = servers.Maker(args.vericache, args.peer_python, model, args.threads, ctx)
    book = records.Records(args.output or records.default_path("traffic", model), common, SETTINGS)
    for repeat in range(args.repeats):
        for load_name in args.loads:
            measure_cell(args, maker, book, load_name, repeat)
    print(f"records: {book.path}")


if __name__ == "__main__":
    sys.exit(main())
