#!/usr/bin/env python3
"""A coding agent's conversation of ten turns over an 8K-token repository, with tools.

    bench/serving/agent_trace.py -m qwen2.5-coder-0.5b --peer-python VENV/bin/python

One client, one conversation. The engine writes each turn, up to --tokens; what stands in the
conversation afterwards is the recorded call and its result (agent_script.py), not what the engine
wrote. A record (a JSON line) is one variant from its server's start on; where K/V are kept on disk
the server is started twice, and the second finds those of the first. The written-out calls fit
Qwen's template; see README.md.
"""

import json
import os
import sys
import tempfile
import time

import bench_path  # noqa: F401  (finds the modules of bench)
import agent_script
import load
import model_files
import quiet
import records
import servers

DEFAULT = [servers.OURS, servers.PLAIN, servers.STORE, servers.LLAMA]
SETTINGS = ("num_tokens", "repository")
FIRST, AGAIN = "first start", "started again"


def parse_args():
    parser = records.parser(__doc__.split("\n", 1)[0], DEFAULT)
    add = parser.add_argument
    add("--repository", type=int, default=8192, help="its size in tokens (estimated)")
    add("--tokens", type=int, default=64, help="of each turn, at most")
    add("--store-dir", help="folder for K/V kept on disk (default: the one for temporary files)")
    args = parser.parse_args()
    records.check(args)
    return args


def written_out(message):
    """A call of a tool as the model's template (Qwen's) writes it into the prompt."""
    if "tool_calls" not in message:
        return message
    calls = [call["function"] for call in message["tool_calls"]]
    texts = [f'<tool_call>\n{{"name": "{c["name"]}", "arguments": {c["arguments"]}}}\n</tool_call>'
             for c in calls]
    return {"role": message["role"], "content": "\n".join(texts)}


def body_of(messages, num_tokens, ours):
    """llama server would put a call's arguments into the prompt as one quoted text, where the
    template is made for an object: it gets the call written out, which makes the prompts equal."""
    if not ours:
        messages = [written_out(message) for message in messages]
    return servers.greedy(messages, num_tokens, ours, tools=agent_script.TOOLS)


def converse(server, turns, num_tokens, ours):
    """The turns one after another; the next begins when the reply before has ended."""
    path = "/v1/chat/completions"
    others = quiet.Others([server.pid])
    requests = [load.encoded(server.port, path, body_of(t, num_tokens, ours)) for t in turns]
    answers, cost = load.closed_loop(server.port, requests, 1)
    begin = answers[0].start
    results = [records.result_of(f"turn-{i + 1}", a, begin) for i, a in enumerate(answers)]
    return {
        "wall_s": answers[-1].last - begin,
        "others_cpu_share": others.share(),
        "generator": {key: round(value, 6) for key, value in vars(cost).items()},
        "requests": results,
    }


def prompt_tokens(server, turns):
    """What a server that streams no usage counts for the last turn: asked afterwards."""
    body = body_of(turns[-1], 1, False) | {"stream": False}
    status, text = servers.get(server.port, "/v1/chat/completions", body, 600)
    if status != 200:
        records.die(f"{server.name} said {status}: {text[:300]}")
    return json.loads(text)["usage"]["prompt_tokens"]


def measure(args, maker, name, turns, store):
    ours = name in servers.OUR_FLAGS
    server = maker.start(name, store)
    try:
        found = converse(server, turns, args.tokens, ours)
        if not ours:
            found["last_prompt_tokens"] = prompt_tokens(server, turns)
        found |= {"start_s": server.start_s, "peak_rss_bytes": servers.peak_rss_bytes(server.pid)}
    finally:
        stopped = server.stop()
    return found | {"stop_s": stopped}


def measure_variant(args, maker, book, name, turns, repeat):
    """One record, or two where K/V are kept on disk: made, and found by a second process."""
    starts = [FIRST, AGAIN] if name in servers.ON_DISK else [FIRST]
    if len(book.having(variant=name, repeat=repeat)) == len(starts):
        return
    book.drop(variant=name, repeat=repeat)
    with tempfile.TemporaryDirectory(dir=args.store_dir) as folder:
        store = os.path.abspath(folder) if name in servers.ON_DISK else None
        for start in starts:
            begin = time.monotonic()
            try:
                found = measure(args, maker, name, turns, store)
            except servers.Failed as failed:
                records.die(str(failed))
            book.add(variant=name, repeat=repeat, server=start, flags=servers.flags_of(name),
                     **found)
            print(f"  repeat {repeat + 1}: {name}, {start}: measured in "
                  f"{time.monotonic() - begin:.0f} s", flush=True)


def check_equal(found):
    """found: the records of one repeat."""
    plain = next(r for r in found if r["variant"] == servers.PLAIN)
    for record in found:
        if record["variant"] in servers.OUR_FLAGS:
            if wrong := records.difference(record["requests"], plain["requests"]):
                records.die(f"{record['variant']}, {record['server']}, {wrong}: the answer is not "
                            f"bit for bit that of '{servers.PLAIN}': no times")
        elif record["last_prompt_tokens"] != plain["requests"][-1]["prompt_tokens"]:
            records.die(f"{record['variant']} read the last prompt as "
                        f"{record['last_prompt_tokens']} tokens, ours as "
                        f"{plain['requests'][-1]['prompt_tokens']}: unequal work, no times")


def show(found):
    for record in found:
        first = [r["ttft_ms"] for r in record["requests"]]
        later = sorted(first[1:])
        print(f"    {record['variant']}, {record['server']}: {record['wall_s']:.1f} s; first text "
              f"after {first[0]:,.0f} ms, later turns {later[0]:,.0f} to {later[-1]:,.0f} ms")


def main():
    servers.stop_with_us()
    args = parse_args()
    model = model_files.find_model(args.model, records.die)
    common = records.common_of(args, model, "agent")
    common |= {"num_tokens": args.tokens, "repository": args.repository}
    turns = list(agent_script.turns(args.repository))
    ctx = (args.repository * 5 // 4 + 4096 + args.tokens + 1023) // 1024 * 1024
    maker = servers.Maker(args.vericache, args.peer_python, model, args.threads, ctx)
    book = records.Records(args.output or records.default_path("agent", model), common, SETTINGS)
    for repeat in range(args.repeats):
        first = repeat % len(args.variants)
        for name in args.variants[first:] + args.variants[:first]:
            measure_variant(args, maker, book, name, turns, repeat)
        found = book.having(repeat=repeat)
        check_equal(found)
        print(f"  repeat {repeat + 1}: our answers are equal")
        show(found)
    print(f"records: {book.path}")


if __name__ == "__main__":
    sys.exit(main())
