#!/usr/bin/env python3
"""How often llama.cpp's choice of a token depends on how many tokens it computes at once.

The same token sequence is fed one token at a time, and in batches of each width; the logits of
every position are compared with those of one at a time.

    VENV/bin/python bench/peers/flips.py -m MODEL.gguf -f FILE... --tokens 2048 --widths 8,32,512

Counts, for each width: positions whose argmax differs (flips), positions where any logit differs,
and the largest difference of a logit. `vericache audit` is the same comparison for vericache.
"""

import argparse
import json
import os
import sys
import time

import numpy as np

import llamacpp
import peer


def feed(engine, ids, width):
    """Logits of every position, float32 [len(ids)][vocab], `width` tokens a pass."""
    engine.truncate(0)
    rows = [
        engine.eval(ids[at : at + width], at, all_logits=True).astype(np.float32)
        for at in range(0, len(ids), width)
    ]
    return np.concatenate(rows)


def margin(row):
    """How far the best logit lies above the second."""
    second, best = np.partition(row, -2)[-2:]
    return float(best - second)


def compare(alone, wide):
    differences = np.abs(alone - wide).max(axis=1)
    flips = np.flatnonzero(alone.argmax(axis=1) != wide.argmax(axis=1))
    return {
        "positions": len(alone),
        "flips": len(flips),
        "positions_with_other_bits": int((differences > 0).sum()),
        "largest_difference": float(differences.max()),
        "largest_margin_flipped": max((margin(alone[i]) for i in flips), default=0.0),
    }


def add(total, part):
    for key, value in part.items():
        grow = max if key.startswith("largest") else int.__add__
        total[key] = grow(total[key], value) if key in total else value


def measure(engine, documents, args, flash):
    """{width: counts}, summed over the documents; each is fed in windows from position 0."""
    totals = {width: {} for width in args.widths}
    for ids in documents:
        for start in range(0, len(ids), args.window):
            part = ids[start : start + args.window]
            if len(part) < 2:
                continue
            alone = feed(engine, part, 1)
            if not totals[args.widths[0]] and not np.array_equal(alone, feed(engine, part, 1)):
                sys.exit("two runs of one token at a time differ: nothing can be compared")
            for width, total in totals.items():
                add(total, compare(alone, feed(engine, part, width)))
            print(f"flash attention {flash}: {start + len(part)} tokens", file=sys.stderr)
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-f", "--files", nargs="+", required=True)
    parser.add_argument("--tokens", type=int, default=2048, help="of each file, at most")
    parser.add_argument("--window", type=int, default=1024, help="tokens fed in one sequence")
    parser.add_argument(
        "--widths", type=lambda s: [int(x) for x in s.split(",")], default=[8, 32, 512]
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", choices=peer.GGML_TYPES, default="f16")
    parser.add_argument("--flash-attn", choices=["on", "off", "both"], default="both")
    args = parser.parse_args()
    engine = llamacpp.LlamaCpp(args.model)
    documents = []
    for path in args.files:
        with open(path, "rb") as f:
            documents.append(engine.tokenize(f.read())[: args.tokens])
    results = {}
    start = time.monotonic()
    for flash in {"on": ["on"], "off": ["off"], "both": ["off", "on"]}[args.flash_attn]:
        engine.open(args.window, args.threads, flash == "on", args.kv)
        results[flash] = measure(engine, documents, args, flash)
    record = {
        "peer": engine.name,
        "version": engine.version,
        "system_info": engine.system_info,
        "cpu": peer.cpu_name(),
        "model": os.path.basename(args.model),
        "model_sha256": peer.sha256_file(args.model),
        "files": [os.path.basename(path) for path in args.files],
        "token_sha256": [peer.token_hash(ids) for ids in documents],
        "tokens": [len(ids) for ids in documents],
        "window": args.window,
        "threads": args.threads,
        "kv": args.kv,
        "seconds": round(time.monotonic() - start),
        "flash_attention": results,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
