#!/usr/bin/env python3
"""Prefill and decode speed of vericache beside its peers, interleaved; see bench/README.md.

Prints no time for unequal work: every engine gets the same prompt token ids and decodes the same
number of tokens, and what vericache drafts must equal what it decodes on the full KV alone, token
by token and in the hash of the logits, before anything is timed. Standard library only.
"""

import argparse
import pathlib
import sys
import tempfile

import machine
import model_files
import quiet
from engines import ROOT, Ours, Peer, die, states_folder
from prompts import MARGIN, Prompt, Synthetic, token_ids
from report import BUSY, Report

PEERS = {  # --peers name: label, script, flash attention, type of K and V
    "off": ("llama.cpp, flash attention off", "llamacpp.py", False, "f16"),
    "on": ("llama.cpp, flash attention on", "llamacpp.py", True, "f16"),
    "q8_0": ("llama.cpp, q8_0 KV", "llamacpp.py", True, "q8_0"),
    "q4_0": ("llama.cpp, q4_0 KV", "llamacpp.py", True, "q4_0"),
    "ik": ("ik_llama.cpp, flash attention off", "ikllama.py", False, "f16"),
    "ik-on": ("ik_llama.cpp, flash attention on", "ikllama.py", True, "f16"),
    "openvino": ("openvino-genai", "openvino_peer.py", False, "f16"),
}
SHORT_ONLY = ("openvino",)  # keeps no KV between requests, so a deep decode would prefill each time


def check_equal(results, plain_hashes, prompt):
    """What is drafted must be what the full KV gives, and so must every repeat."""
    plain = results["vericache, draft off"]
    for label, result in results.items():
        if label.startswith("vericache") and (
            result["tokens"] != plain["tokens"]
            or result.get("logits_hash") != plain.get("logits_hash")
        ):
            at = next(
                (i for i, (a, b) in enumerate(zip(result["tokens"], plain["tokens"])) if a != b),
                None,
            )
            die(f"{label} is not what the full KV gives (first difference at token {at}): no time")
    if plain_hashes.setdefault(prompt, plain.get("logits_hash")) != plain.get("logits_hash"):
        die("vericache gave other logits in a repeat than in the first run: no time")


def declare_work(parser):
    parser.add_argument("-m", "--model", default="smollm2-135m", help="name or path")
    parser.add_argument(
        "-f", "--file", type=pathlib.Path, default=ROOT / "bench/data/perplexity.txt"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the short prompt")
    parser.add_argument("--decode", type=int, default=32, help="tokens decoded after each prompt")
    parser.add_argument(
        "--depths", default="8192", help="longer prompts, comma-separated; '' for none"
    )
    parser.add_argument(
        "--append", type=int, default=0, help="also prefill N tokens behind each longer prompt"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--deep-repeats", type=int, default=2, help="for the longer prompts")
    parser.add_argument("--append-repeats", type=int, default=2, help="of --append")
    parser.add_argument(
        "--synthetic",
        type=int,
        metavar="N",
        help="make deep KV: random for vericache, tiled from N prefilled tokens for the peers",
    )


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    declare_work(parser)
    parser.add_argument("--drafts", default="off,default", help="';' or ',' between draft specs")
    parser.add_argument(
        "--peers", default="off,on,ik", help=f"some of {','.join(PEERS)}; ik needs --ik-python"
    )
    parser.add_argument("--peer-python", help="a Python that has llama_cpp")
    parser.add_argument("--ik-python", help="a Python that has ik_llama_cpp")
    parser.add_argument("--openvino-python", help="a Python that has openvino_genai")
    parser.add_argument(
        "--states", type=pathlib.Path, help="keep the peers' long prefills here between runs"
    )
    parser.add_argument("--fresh", action="store_true", help="prefill even where --states has it")
    parser.add_argument("--limits", type=pathlib.Path, help="what bench/limits.cc was built as")
    parser.add_argument("--busy-ok", action="store_true", help="measure on a busy machine too")
    parser.add_argument("--no-ours", action="store_true", help="the peers alone")
    parser.add_argument("--vericache", type=pathlib.Path, default=ROOT / "build/release/vericache")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench/results")
    args = parser.parse_args()
    if not args.peer_python:
        parser.error("--peer-python is needed (bench/run.sh makes one)")
    if not args.no_ours and not args.vericache.is_file():
        die(f"no {args.vericache}; build it with scripts/build.sh")
    args.peers = [name for name in args.peers.split(",") if name]
    if unknown := [name for name in args.peers if name not in PEERS]:
        parser.error(f"--peers: no {', '.join(unknown)} among {', '.join(PEERS)}")
    if args.peers[:1] not in (["off"], ["on"], ["q8_0"], ["q4_0"]):
        parser.error("--peers: the first must be llama.cpp, which tokenises for all")
    if args.synthetic and not args.states:
        args.states = states_folder()
    return args


def engines_of(args, model, model_sha256):
    engines = []
    if not args.no_ours:
        separator = ";" if ";" in args.drafts else ","
        drafts = ["off"] + [d for d in args.drafts.split(separator) if d not in ("", "off")]
        drafts = drafts[:1] if args.synthetic else drafts
        engines += [
            Ours(f"vericache, draft {d}", args.vericache, model, args.threads, d) for d in drafts
        ]
    pythons = {"ikllama.py": args.ik_python, "openvino_peer.py": args.openvino_python}
    for name in args.peers:
        label, script, flash, kv = PEERS[name]
        python = pythons.get(script, args.peer_python)
        if not python:
            print(f"{label} is left out: no Python that has it was given", file=sys.stderr)
            continue
        peer = Peer(label, python, script, model, args.threads, flash, kv)
        peer.model_sha256, peer.states, peer.fresh = model_sha256, args.states, args.fresh
        peer.short_only = name in SHORT_ONLY
        engines.append(peer)
    return engines


def measure(args, engines, report, prompt, plain_hashes):
    depth = prompt.depth
    engines = [e for e in engines if not (prompt.is_long and getattr(e, "short_only", False))]
    workers = [e.process.pid for e in engines if isinstance(e, Peer)]
    for engine in engines:
        engine.open(depth + max(args.decode, len(prompt.tail_ids)) + 1)
    for repeat in range(args.deep_repeats if prompt.is_long else args.repeats):
        turn = repeat % len(engines)  # nobody is always first
        append = bool(prompt.tail_ids) and repeat < args.append_repeats
        limits = machine.limits(args.limits, args.threads)
        results = {}
        for engine in engines[turn:] + engines[:turn]:
            print(f"  {depth} tokens, run {repeat + 1}: {engine.label}", file=sys.stderr)
            fresh = repeat == 0 or not prompt.is_long
            others = quiet.Others(workers)
            result = engine.measure(prompt, args.decode, fresh, append)
            share = round(others.share(), 3)
            results[engine.label] = result | limits | {"others_cpu_share": share}
        if not args.no_ours:
            check_equal(results, plain_hashes, prompt)
        for engine in engines:
            report.add(engine, depth, repeat, results[engine.label])


def prompts_of(args, peer, folder):
    """The short prompt, then the longer ones, each with what is prefilled behind it."""
    limit = peer.info["context"] - max(args.decode, args.append) - 2
    depths = [min(int(d), limit) for d in args.depths.split(",") if d]
    honest = [args.synthetic] if args.synthetic else depths
    text = args.file.read_text(encoding="utf-8")
    ids = token_ids(peer, text, max(honest + [args.prefill]) + args.append + MARGIN)
    yield Prompt(peer, ids, args.prefill, False, folder)
    if args.synthetic and depths:
        base = Prompt(peer, ids, args.synthetic, True, folder)
        for depth in depths:
            yield Synthetic(base, depth, base.ids[: args.append])
        return
    for depth in depths:
        prompt = Prompt(peer, ids, depth, True, folder)
        if args.append:
            prompt.add_tail(Prompt(peer, ids, prompt.depth + args.append, True, folder))
        yield prompt


def main():
    args = parse_args()
    share = 0 if args.busy_ok else quiet.share_now()
    if share > BUSY:
        die(f"other work takes {share:.0%} of the CPU: wait for it to end, or add --busy-ok")
    model = model_files.find_model(args.model, die)
    model_sha256 = machine.sha256_file(model)
    report = Report(args, model, model_sha256)
    engines = engines_of(args, model, model_sha256)
    peer = next(e for e in engines if isinstance(e, Peer))
    print(f"{model.name}, {args.threads} threads, {report.common['cpu']}")
    print(f"{peer.label}: {peer.info['version']}: {peer.info['system_info']}", flush=True)
    plain_hashes = {}
    with tempfile.TemporaryDirectory() as folder:
        for prompt in prompts_of(args, peer, folder):
            measure(args, engines, report, prompt, plain_hashes)
    for engine in engines:
        engine.close()
    report.show()


if __name__ == "__main__":
    main()
