#!/usr/bin/env python3
"""Records of bench/results as Markdown tables: medians, spread, ratios, growth with depth.

bench/table.py bench/results/FILE.jsonl...    prints them
bench/table.py --update [DOC...]              writes them between the markers of our documents
bench/table.py --check [DOC...]               fails where a document differs from its records

A marker names the tables (all, if none is named) and the files in bench/results:

    <!-- table decode,ratios: FILE.jsonl -->
    <!-- end -->
"""

import json
import pathlib
import re
import statistics

import marked_docs

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
DOCS = [ROOT / "docs/benchmarks.md", ROOT / "docs/why_own_kernels.md"]
RATES = {
    "prefill_tok_s": "prefill, {} tokens",
    "append_tok_s": "prefill behind {}",
    "decode_tok_s": "decode at {}",
}
# What ours is compared with: the best median among the engines whose names match.
RIVALS = {
    "llama.cpp, better flash attention": r"llama\.cpp, flash attention",
    "llama.cpp, q8_0 KV": r"llama\.cpp, q8_0 KV",
    "llama.cpp, q4_0 KV": r"llama\.cpp, q4_0 KV",
    "ik_llama.cpp, better flash attention": r"ik_llama\.cpp(, flash|$)",
    "openvino-genai": r"openvino-genai",
}
OURS = "vericache, draft off"


def load(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def cell(values):
    values = sorted(values)
    return f"{statistics.median(values):.1f} ({values[0]:.1f}-{values[-1]:.1f})" if values else "-"


def markdown(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --- |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


class Run:
    """The records of one file; engines and depths in the order of measuring."""

    def __init__(self, records):
        self.records, self.first = records, records[0]
        self.engines = list(dict.fromkeys(r.get("engine") for r in records))

    def depths(self, rate):
        return sorted({r["depth"] for r in self.records if rate in r})

    def having(self, engine, depth, key):
        return [
            r
            for r in self.records
            if r["depth"] == depth and key in r and engine in (None, r["engine"])
        ]

    def values(self, engine, depth, key):
        return [r[key] for r in self.having(engine, depth, key)]

    def median(self, engine, depth, key):
        values = self.values(engine, depth, key)
        return statistics.median(values) if values else None


def caption(run):
    first = run.first
    sources = {}
    for r in run.records:
        if "kv_source" in r and r["depth"] != min(run.depths("decode_tok_s")):
            engine = "vericache" if r["engine"].startswith("vericache") else "peers"
            sources.setdefault(engine, {})[r["kv_source"].replace(", reloaded", "")] = True
    text = (
        f"{first['model']}, {first['threads']} threads, {first['cpu']}, {first['compiler']}, "
        f"commit {first['commit'][:12]}{' with changes' if first['uncommitted_changes'] else ''}, "
        f"{first['time']}. Median (lowest-highest), tok/s."
    )
    if "read_gb_s" in first:
        read = cell([r["read_gb_s"] for r in run.records])
        fma = cell([r["fma_gflops"] for r in run.records])
        text += f" Plain read in the same run {read} GB/s, fp32 FMA {fma} GFLOPS."
    if sources:
        text += " KV of the longer prompts: " + "; ".join(
            f"{engine} {', '.join(found)}" for engine, found in sources.items()
        )
        text += "."
    busiest = max(r.get("others_cpu_share", 0) for r in run.records)
    return text + f" Other work took at most {busiest:.0%} of the CPU."


def read_limits(run, depths):
    """Rows of what the machine would allow at most in that run."""
    if "read_gb_s" not in run.first or "step_bytes" not in run.first:
        return []
    read, fma = [], []
    for depth in depths:
        records = [r for r in run.having(None, depth, "decode_tok_s") if r["kv"] == "f16"]
        read.append(cell([r["read_gb_s"] * 1e9 / r["step_bytes"] for r in records]))
        flops = [r["attention_flops_key"] * (depth + r["decode_tokens"] / 2) for r in records]
        fma.append(cell([r["fma_gflops"] * 1e9 / f for r, f in zip(records, flops)]))
    return [
        ["*limit: plain read of weights and f16 KV*"] + read,
        ["*limit: FMA of attention alone*"] + fma,
    ]


def decode_table(run):
    depths = run.depths("decode_tok_s")
    rows = []
    for engine in run.engines:
        row = [engine]
        for depth in depths:
            text = cell(run.values(engine, depth, "decode_tok_s"))
            shares = [
                r["decode_tok_s"] * r["step_bytes"] / r["read_gb_s"] / 1e9
                for r in run.having(engine, depth, "decode_tok_s")
                if "read_gb_s" in r and "step_bytes" in r
            ]
            row.append(f"{text}, {statistics.median(shares):.0%}" if shares else text)
        rows.append(row)
    head = ["decode" + (", share of the read limit" if "read_gb_s" in run.first else "")]
    return markdown(
        head + [f"at {d:,} tokens" for d in depths], rows + read_limits(run, depths)
    )


def prefill_table(run):
    columns = [(d, rate) for rate in ("prefill_tok_s", "append_tok_s") for d in run.depths(rate)]
    rows = [[e] + [cell(run.values(e, d, rate)) for d, rate in columns] for e in run.engines]
    head = ["prefill"] + [
        f"{d:,} tokens" if rate == "prefill_tok_s" else f"behind {d:,}" for d, rate in columns
    ]
    return markdown(head, [row for row in rows if any(c != "-" for c in row[1:])])


def rival(run, pattern, depth, rate):
    medians = [run.median(e, depth, rate) for e in run.engines if re.match(pattern, e)]
    return max((m for m in medians if m), default=None)


def ratio_table(run):
    columns = [(d, rate) for rate in RATES for d in run.depths(rate)]
    rows = []
    for name, pattern in RIVALS.items():
        row = [name]
        for depth, rate in columns:
            ours, theirs = run.median(OURS, depth, rate), rival(run, pattern, depth, rate)
            row.append(f"{ours / theirs:.2f}x" if ours and theirs else "-")
        rows.append(row)
    head = [f"{OURS}, medians, times"] + [RATES[rate].format(f"{d:,}") for d, rate in columns]
    return markdown(head, [row for row in rows if any(c != "-" for c in row[1:])])


def growth_table(run):
    depths = run.depths("decode_tok_s")
    rows = []
    for engine in run.engines:
        found = {d: run.median(engine, d, "decode_tok_s") for d in depths}
        known = [d for d in depths if found[d]]
        if len(known) < 2:
            continue
        row = [f"{1000 / found[d]:.1f}" if found[d] else "-" for d in depths]
        growth = found[known[0]] / found[known[-1]]
        rows.append([engine] + row + [f"{growth:.1f}x from {known[0]:,} to {known[-1]:,}"])
    return markdown(["ms a token"] + [f"at {d:,} tokens" for d in depths] + ["growth"], rows)


def flips_table(run):
    """Records of peers/flips.py: one line a model, flash attention and width."""
    rows = []
    for record in run.records:
        for flash, widths in record["flash_attention"].items():
            for width, found in widths.items():
                share = found["flips"] / found["positions"]
                rows.append(
                    [record["model"], flash, width, f"{found['positions']:,}"]
                    + [f"{found['positions_with_other_bits']:,}", f"{found['flips']} ({share:.1%})"]
                    + [f"{found['largest_difference']:.2f}"]
                    + [f"{found['largest_margin_flipped']:.2f}"]
                )
    head = ["model", "flash attention", "tokens a pass", "positions", "with other logits"]
    return markdown(head + ["other argmax", "largest difference", "largest margin flipped"], rows)


TABLES = {
    "caption": caption,
    "prefill": prefill_table,
    "decode": decode_table,
    "ratios": ratio_table,
    "growth": growth_table,
    "flips": flips_table,
}
SPEED = [kind for kind in TABLES if kind != "flips"]  # what is printed unless named


def tables(run, kinds=None):
    return "\n\n".join(TABLES[kind](run) for kind in kinds or SPEED)


def filled(text, results=RESULTS):
    """The document with its tables made anew from the records."""
    return marked_docs.fill(
        text, "table", TABLES, lambda file, kinds: tables(Run(load(results / file)), kinds))


def main():
    summary = __doc__.split("\n", 1)[0]
    marked_docs.main(summary, DOCS, RESULTS, "table", lambda path: tables(Run(load(path))), filled)


if __name__ == "__main__":
    main()
