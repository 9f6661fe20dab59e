"""What all peers share: perplexity, speed, and a worker that bench/run.py drives by JSON lines.

A peer is an object with
  name, version, system_info     words for the record
  context_length                 what the model was trained for
  tokenize(text) -> ids          no BOS, special-token text stays text
  detokenize(ids) -> bytes
  open(n_ctx, threads, flash, kv)  a context; kv is the type of K and V, f16 unless given
  eval(ids, pos, all_logits)     runs ids at positions pos..; float32 logits [n or 1][vocab]
  truncate(n)                    forgets all positions from n on
  depth()                        positions that the KV holds, by the engine's own count
  get_state() -> bytes           the KV of the sequence; set_state(data) puts it back (kvstate.py)
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import sys
import time

import numpy as np

import kvstate

GGML_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}


def token_hash(ids):
    return hashlib.sha256(np.asarray(ids, "<i4").tobytes()).hexdigest()


def sha256_file(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def cpu_name():
    with open("/proc/cpuinfo") as f:
        info = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in f)}
    wanted = [
        f
        for f in ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni")
        if f in info.get("flags", "").split()
    ]
    return f"{info.get('model name', platform.machine())} [{' '.join(wanted)}]"


def perplexity(peer, ids, window):
    """exp of the mean negative log-likelihood, summed in double.

    Window i is tokens [i*window, (i+1)*window), evaluated alone from position 0; in each, tokens
    1..window-1 are predicted; the last partial window is dropped.
    """
    nll, count = 0.0, 0
    for start in range(0, len(ids) - window + 1, window):
        part = np.asarray(ids[start : start + window])
        peer.truncate(0)
        logits = peer.eval(part, 0, all_logits=True)
        rows = np.arange(window - 1)
        for first in range(0, window - 1, 64):  # a vocabulary of doubles is large
            r = rows[first : first + 64]
            x = logits[r].astype(np.float64)
            top = x.max(axis=1)
            nll += float(
                (
                    np.log(np.exp(x - top[:, None]).sum(axis=1))
                    + top
                    - x[np.arange(len(r)), part[r + 1]]
                ).sum()
            )
        count += window - 1
        print(f"window {start // window}: ppl {np.exp(nll / count):.4f}", file=sys.stderr)
    if not count:
        sys.exit(f"the text has {len(ids)} tokens, fewer than a window of {window}")
    return {
        "perplexity": float(np.exp(nll / count)),
        "nll": nll,
        "predictions": count,
        "window": window,
        "tokens": len(ids),
        "token_sha256": token_hash(ids),
    }


def prefill(peer, ids):
    peer.truncate(0)
    start = time.perf_counter()
    logits = peer.eval(ids, 0, all_logits=False)
    token = int(logits[-1].argmax())
    return time.perf_counter() - start, token


def decode(peer, token, pos, n):
    """n greedy passes of one token: seconds, and the n + 1 tokens (the first is the given one)."""
    peer.truncate(pos)
    tokens = [token]
    start = time.perf_counter()
    for i in range(n):
        logits = peer.eval(tokens[-1:], pos + i, all_logits=False)
        tokens.append(int(logits[-1].argmax()))
    return time.perf_counter() - start, tokens


def summary(samples):
    samples = sorted(samples)
    return {
        "median": statistics.median(samples),
        "min": samples[0],
        "max": samples[-1],
        "runs": len(samples),
    }


def speed(peer, ids, args):
    results = []
    for flash in {"on": [True], "off": [False], "both": [False, True]}[args.flash_attn]:
        peer.open(max(args.depths + [args.prefill]) + args.decode + 1, args.threads, flash)
        rates = []
        for _ in range(args.repeats):
            seconds, _ = prefill(peer, ids[: args.prefill])
            rates.append(args.prefill / seconds)
        results.append(
            {
                "what": "prefill",
                "tokens": args.prefill,
                "flash_attn": flash,
                "tok_s": summary(rates),
            }
        )
        print(json.dumps(results[-1]), file=sys.stderr)
        for depth in args.depths:
            depth = max(depth, 1)
            seconds, token = prefill(peer, ids[:depth])
            rates = [
                args.decode / decode(peer, token, depth, args.decode)[0]
                for _ in range(args.repeats)
            ]
            results.append(
                {
                    "what": "decode",
                    "tokens": args.decode,
                    "depth": depth,
                    "flash_attn": flash,
                    "tok_s": summary(rates),
                    "prefill_of_depth_tok_s": depth / seconds,
                }
            )
            print(json.dumps(results[-1]), file=sys.stderr)
    return results


def save(peer, path, token):
    """Writes the KV at hand: a line of JSON, then the engine's state."""
    data = peer.get_state()
    head = {"token": token, "cells": kvstate.State(data).cells}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.{os.getpid()}", "wb") as f:
        f.write(json.dumps(head).encode() + b"\n")
        f.write(data)
    os.replace(f.name, path)
    return head


def load(peer, path, depth):
    """Puts saved KV back, tiled to `depth` where it is shorter; the engine must hold it all."""
    with open(path, "rb") as f:
        head = json.loads(f.readline())
        data = f.read()
    if head["cells"] < depth:
        data = kvstate.tile(data, depth)
    peer.truncate(0)
    peer.set_state(data)
    if peer.depth() != depth or len(peer.get_state()) != len(data):
        return {"error": f"{peer.depth()} of {depth} positions were taken from the saved state"}
    return {"token": head["token"], "cells": head["cells"]}


def append(peer, ids, pos):
    """Seconds to prefill `ids` behind `pos` positions, which are all that is kept afterwards."""
    peer.truncate(pos)
    start = time.perf_counter()
    peer.eval(ids, pos, all_logits=False)[-1].argmax()
    seconds = time.perf_counter() - start
    depth = peer.depth()
    peer.truncate(pos)
    return {"seconds": seconds, "depth": depth}


def answer_to(peer, request, threads):
    op = request["op"]
    if op == "info":
        answer = {"name": peer.name, "version": peer.version, "context": peer.context_length}
        return answer | {"system_info": peer.system_info}
    if op == "tokenize":
        return {"ids": peer.tokenize(request["text"].encode())}
    if op == "detokenize":
        return {"text": peer.detokenize(request["ids"]).decode("utf-8", "replace")}
    if op == "open":
        peer.open(request["n_ctx"], threads, request["flash_attn"], request["kv"])
        return {}
    if op == "prefill":
        seconds, token = prefill(peer, request["ids"])
        return {"seconds": seconds, "token": token, "depth": peer.depth()}
    if op == "save":
        return save(peer, request["path"], request["token"])
    if op == "load":
        return load(peer, request["path"], request["depth"])
    if op == "append":
        return append(peer, request["ids"], request["pos"])
    if op == "decode":
        seconds, tokens = decode(peer, request["token"], request["pos"], request["n"])
        return {"seconds": seconds, "tokens": tokens, "depth": peer.depth()}
    return {"error": f"unknown op {op}"}


def worker(peer, args):
    """Requests on stdin, answers on stdout, one JSON object a line each; ends at end of file."""
    for line in sys.stdin:
        print(json.dumps(answer_to(peer, json.loads(line), args.threads)), flush=True)


def golden(peer_type, folder):
    """Runs the golden models of tests/golden/model: the largest differences from transformers."""
    worst = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".golden.json"):
            continue
        with open(os.path.join(folder, name)) as f:
            want = json.load(f)
        peer = peer_type(os.path.join(folder, want["model"]))
        peer.open(256, 1, False)
        result = {"logits": 0.0, "logits_kv16": 0.0, "argmax_differs_with_margin_over_0.05": 0}
        for prompt in want["prompts"]:
            peer.truncate(0)
            logits = peer.eval(prompt["ids"], 0, all_logits=True)
            for key in ("logits", "logits_kv16"):
                diff = np.abs(logits[prompt["positions"]] - np.array(prompt[key], np.float32)).max()
                result[key] = max(result[key], float(diff))
            wrong = (logits.argmax(axis=1) != np.array(prompt["argmax"])) & (
                np.array(prompt["margin"]) > 0.05
            )
            result["argmax_differs_with_margin_over_0.05"] += int(wrong.sum())
        cases = want["tokenizer"]["cases"]
        result["tokenizer_differs"] = [
            c["text"] for c in cases if peer.tokenize(c["text"].encode()) != c["ids"]
        ]
        worst[want["model"]] = result
    return worst


def main(peer_type, description):
    parser = argparse.ArgumentParser(description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("perplexity", "speed", "worker"):
        sub = commands.add_parser(name)
        sub.add_argument("-m", "--model", required=True)
        sub.add_argument("--threads", type=int, default=2)
        if name != "worker":
            sub.add_argument("-f", "--file", required=True)
        if name == "perplexity":
            sub.add_argument("--window", type=int, default=512)
            sub.add_argument("--flash-attn", choices=["on", "off"], default="off")
        if name == "speed":
            sub.add_argument("--flash-attn", choices=["on", "off", "both"], default="both")
            sub.add_argument("--prefill", type=int, default=512)
            sub.add_argument("--decode", type=int, default=32)
            sub.add_argument(
                "--depths", type=lambda s: [int(x) for x in s.split(",")], default=[0, 8192]
            )
            sub.add_argument("--repeats", type=int, default=3)
    commands.add_parser("golden").add_argument("folder")
    args = parser.parse_args()
    if args.command == "golden":
        print(json.dumps(golden(peer_type, args.folder), indent=1))
        return
    peer = peer_type(args.model)
    if args.command == "worker":
        worker(peer, args)
        return
    with open(args.file, "rb") as f:
        ids = peer.tokenize(f.read())
    record = {
        "peer": peer.name,
        "version": peer.version,
        "system_info": peer.system_info,
        "cpu": cpu_name(),
        "model": os.path.basename(args.model),
        "model_sha256": sha256_file(args.model),
        "file": os.path.basename(args.file),
        "threads": args.threads,
        "kv": "f16",
    }
    if args.command == "perplexity":
        peer.open(args.window, args.threads, args.flash_attn == "on")
        record |= {"flash_attn": args.flash_attn == "on"} | perplexity(peer, ids, args.window)
    else:
        need = max(args.depths + [args.prefill])
        if len(ids) < need:
            sys.exit(f"{args.file} has {len(ids)} tokens, {need} are needed")
        record |= {"token_sha256": token_hash(ids[:need]), "results": speed(peer, ids, args)}
    print(json.dumps(record))
