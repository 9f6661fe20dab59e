#!/usr/bin/env python3
"""YaRN beside llama.cpp: likelihood of a long text, and the greedy tokens behind it.

    VENV/bin/python bench/peers/yarn.py -m MODEL.gguf -f TEXT --tokens 40000 --scale 4

Prints a JSON object: both engines' perplexity of the first --tokens tokens (one window from
position 0, all but the first scored) with the scaling, and llama.cpp's without it, which is what
the difference must be small beside; and how many greedy tokens after them agree. Needs
llama-cpp-python.
"""

import argparse
import ctypes
import json
import pathlib
import subprocess
import tempfile

import llama_cpp as L
import numpy as np

import llamacpp

BATCH = 512


def open_scaled(peer, args, scale):
    """A context of llama.cpp, with YaRN unless scale is 1."""
    if peer.context:
        L.llama_free(peer.context)
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = args.tokens + args.greedy + 8, BATCH, BATCH, 1
    p.n_threads = p.n_threads_batch = args.threads
    p.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_ENABLED
    p.offload_kqv = False
    if scale != 1:
        p.rope_scaling_type = L.LLAMA_ROPE_SCALING_TYPE_YARN
        p.rope_freq_scale = 1 / scale
        p.yarn_orig_ctx = args.orig_context
    peer.context = L.llama_init_from_model(peer.model, p)
    assert peer.context, "no context"
    peer.memory = L.llama_get_memory(peer.context)


def likelihood(peer, ids):
    """Mean negative log-likelihood of ids[1:], and the logits behind the last."""
    total, last = 0.0, None
    for begin in range(0, len(ids), BATCH):
        part = ids[begin : begin + BATCH]
        logits = peer.eval(part, begin, all_logits=True)
        for row, following in zip(logits, ids[begin + 1 : begin + BATCH + 1]):
            x = row.astype(np.float64)
            total += np.log(np.exp(x - x.max()).sum()) + x.max() - x[following]
        last = logits[-1]
    return total / (len(ids) - 1), last


def greedy(peer, logits, pos, count):
    tokens = []
    while True:
        tokens.append(int(logits.argmax()))
        if len(tokens) == count:
            return tokens
        logits = peer.eval(tokens[-1:], pos, all_logits=True)[-1]
        pos += 1


def vericache(args, text_path, folder):
    """Our mean likelihood and greedy tokens."""
    flags = ["-m", args.model, "--threads", args.threads, "--rope-scaling", "yarn"]
    flags += ["--rope-scale", args.scale, "--rope-orig-context", args.orig_context]

    def run(*words):
        command = [str(word) for word in (args.vericache, *words)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    store = ["--prefix-store", folder / "store"]
    answer = run("run", *flags, *store, "--raw", "-f", text_path, "-n", args.greedy, "--draft",
                 "verify:0.25+int4", "--draft-len", 8, "--json")
    report = run("perplexity", *flags, "-f", text_path, "--window",
                 answer["usage"]["prompt_tokens"], "--json")
    return report["mean_nll"], answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    build = pathlib.Path(__file__).resolve().parents[2] / "build/release"
    add("-m", "--model", required=True)
    add("-f", "--file", type=pathlib.Path, required=True)
    add("--vericache", type=pathlib.Path, default=build / "vericache")
    add("--tokens", type=int, default=8192)
    add("--greedy", type=int, default=32)
    add("--scale", type=float, default=4)
    add("--orig-context", type=int, default=32768)
    add("--threads", type=int, default=2)
    args = parser.parse_args()
    L.llama_log_set(llamacpp.errors_only, ctypes.c_void_p(0))
    peer = llamacpp.LlamaCpp(args.model)
    ids = peer.tokenize(args.file.read_bytes())
    if len(ids) < args.tokens:
        raise SystemExit(f"{args.file} has {len(ids)} tokens, {args.tokens} are needed")
    text = peer.detokenize(ids[: args.tokens]).decode("utf-8", "ignore")
    ids = peer.tokenize(text.encode())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "text")
        path.write_text(text, encoding="utf-8")
        ours, answer = vericache(args, path, pathlib.Path(folder))
    if answer["usage"]["prompt_tokens"] != len(ids):
        raise SystemExit("the engines cut the text into other tokens")
    open_scaled(peer, args, args.scale)
    theirs, logits = likelihood(peer, ids)
    tokens = greedy(peer, logits, len(ids), args.greedy)
    open_scaled(peer, args, 1)
    unscaled, _ = likelihood(peer, ids)
    mine = answer["token_ids"]
    same = next((i for i, (a, b) in enumerate(zip(mine, tokens)) if a != b),
                min(len(mine), len(tokens)))
    print(json.dumps({
        "tokens": len(ids),
        "scale": args.scale,
        "perplexity": float(np.exp(ours)),
        "llama_cpp": float(np.exp(theirs)),
        "llama_cpp_unscaled": float(np.exp(unscaled)),
        "relative_difference": float(np.exp(ours - theirs) - 1),
        "greedy_agree": f"{same} of {min(len(mine), len(tokens))}",
    }))


if __name__ == "__main__":
    main()
