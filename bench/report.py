"""The records of a run of bench/run.py, and what it prints at the end."""

import datetime
import json
import os
import statistics

import machine
from engines import ROOT, Peer, token_hash

BUSY = 0.1  # share of all cores in other hands above which no ratio is trusted
TITLES = {
    "prefill_tok_s": "prefill of {} tokens",
    "append_tok_s": "prefill behind {} tokens",
    "decode_tok_s": "decode after {} tokens",
}


def spread(values):
    if not values:
        return "-"
    return f"{statistics.median(values):.1f} ({min(values):.1f}..{max(values):.1f}, {len(values)})"


class Report:
    def __init__(self, args, model, model_sha256):
        stamp = datetime.datetime.now(datetime.UTC)
        git = ("git", "-C", str(ROOT))
        self.common = {
            "time": stamp.isoformat(timespec="seconds"),
            "commit": machine.output_of(*git, "rev-parse", "HEAD"),
            "uncommitted_changes": bool(machine.output_of(*git, "status", "--porcelain", "-uno")),
            "cpu": machine.cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "compiler": machine.compiler(args.vericache.parent),
            "model": model.name,
            "model_sha256": model_sha256,
            "threads": args.threads,
            "temperature": 0,
            "seed": 0,
            "decode_tokens": args.decode,
        }
        self.common |= machine.model_sizes(args.vericache, model)
        name = f"{stamp:%Y%m%d-%H%M%S}-{model.stem}.jsonl"
        args.results.mkdir(parents=True, exist_ok=True)
        self.path = args.results / name
        self.rates = {}
        self.busiest = 0.0

    def step_bytes(self, kv, depth):
        """What a decode step reads: the weights, and the KV halfway through the decoding."""
        if "weight_bytes" not in self.common or kv not in machine.KV_SHARE:
            return {}
        cells = depth + self.common["decode_tokens"] / 2
        kv_bytes = cells * self.common["kv_bytes_token"] * machine.KV_SHARE[kv]
        return {"step_bytes": round(self.common["weight_bytes"] + kv_bytes)}

    def add(self, engine, depth, repeat, result):
        record = self.common | {"engine": engine.label, "depth": depth, "repeat": repeat}
        record |= {"kv": engine.kv} | self.step_bytes(engine.kv, depth)
        if isinstance(engine, Peer):
            record |= {"engine_version": engine.info["version"]}
            record |= {"engine_system_info": engine.info["system_info"]}
        record |= {"token_sha256": token_hash(result["tokens"]), "load": os.getloadavg()[0]}
        self.busiest = max(self.busiest, result["others_cpu_share"])
        record |= {k: v for k, v in result.items() if k != "tokens"}
        with open(self.path, "a") as f:
            f.write(json.dumps(record) + "\n")
        for what in TITLES:
            if what in result:
                rates = self.rates.setdefault((depth, what), {})
                rates.setdefault(engine.label, []).append(result[what])

    def show(self):
        print("\ntok/s: median (lowest..highest, runs); ratio to llama.cpp's better median\n")
        for (depth, what), rates in sorted(self.rates.items()):
            print(TITLES[what].format(depth))
            peers = [
                statistics.median(v)
                for k, v in rates.items()
                if k.startswith("llama.cpp, flash attention")
            ]
            for label, values in rates.items():
                ratio = f"{statistics.median(values) / max(peers):5.2f}x" if peers else ""
                print(f"  {label:34} {spread(values):32} {ratio}")
        if self.busiest > BUSY:
            print(
                f"\nOther work took up to {self.busiest:.0%} of the CPU: the peers wait by "
                "spinning and lose most, so no ratio above means anything."
            )
        print(f"\nrecords: {self.path}")
