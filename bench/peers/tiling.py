#!/usr/bin/env python3
"""Does a decode step cost the same behind tiled KV as behind prefilled KV of the same depth?

    VENV/bin/python bench/peers/tiling.py llamacpp -m MODEL.gguf -f FILE --depth 2048 --base 512

Takes turns between the two, in one context, and prints the medians of both and their ratio.
"""

import argparse
import importlib
import json
import os
import statistics

import kvstate
import peer

ENGINES = {"llamacpp": "LlamaCpp", "ikllama": "IkLlamaCpp"}


def state_of(engine, ids):
    """The KV of a prefill, and the token after it."""
    _, token = peer.prefill(engine, ids)
    return bytes(engine.get_state()), token


def rate(engine, state, token, args):
    """Tokens a second behind `state`; the first decoding warms the caches and is not counted."""
    engine.truncate(0)
    engine.set_state(state)
    assert engine.depth() == args.depth, engine.depth()
    peer.decode(engine, token, args.depth, args.decode)
    seconds, _ = peer.decode(engine, token, args.depth, args.decode)
    assert engine.depth() == args.depth + args.decode, engine.depth()
    return args.decode / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-f", "--file", required=True)
    parser.add_argument("--depth", type=int, default=2048)
    parser.add_argument("--base", type=int, default=512)
    parser.add_argument("--decode", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", choices=peer.GGML_TYPES, default="f16")
    parser.add_argument("--flash-attn", choices=["on", "off"], default="off")
    args = parser.parse_args()
    engine = getattr(importlib.import_module(args.engine), ENGINES[args.engine])(args.model)
    with open(args.file, "rb") as f:
        ids = engine.tokenize(f.read())[: args.depth]
    assert len(ids) == args.depth, f"the file has {len(ids)} tokens"
    engine.open(args.depth + args.decode + 1, args.threads, args.flash_attn == "on", args.kv)
    base, token = state_of(engine, ids[: args.base])
    states = {"prefilled": state_of(engine, ids)}
    states["tiled"] = bytes(kvstate.tile(base, args.depth)), token
    rates = {what: [] for what in states}
    for repeat in range(args.repeats):
        for what, (state, token) in list(states.items())[:: -1 if repeat % 2 else 1]:
            rates[what].append(rate(engine, state, token, args))
    medians = {what: statistics.median(r) for what, r in rates.items()}
    record = {"peer": engine.name, "version": engine.version, "model": os.path.basename(args.model)}
    record |= {k: getattr(args, k) for k in ("depth", "base", "decode", "threads", "kv")}
    record |= {"flash_attn": args.flash_attn, "load": os.getloadavg()[0]}
    record |= {what: peer.summary(r) for what, r in rates.items()}
    print(json.dumps(record | {"tiled_over_prefilled": medians["tiled"] / medians["prefilled"]}))


if __name__ == "__main__":
    main()
