#!/usr/bin/env python3
"""Prints records of bench/results as Markdown tables, medians and spread.

bench/table.py bench/results/FILE.jsonl...
"""

import json
import statistics
import sys

RATES = {"prefill_tok_s": "prefill", "decode_tok_s": "decode"}


def cell(values):
    values = sorted(values)
    return f"{statistics.median(values):.1f} ({values[0]:.1f}-{values[-1]:.1f})" if values else "-"


def table(records):
    depths = sorted({r["depth"] for r in records})
    columns = [(d, rate) for d in depths for rate in RATES]
    print("| tok/s | " + " | ".join(f"{RATES[r]}, {d} tokens" for d, r in columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for engine in dict.fromkeys(r["engine"] for r in records):
        mine = [r for r in records if r["engine"] == engine]
        cells = [cell([r[c] for r in mine if r["depth"] == d and c in r]) for d, c in columns]
        print(f"| {engine} | " + " | ".join(cells) + " |")


def main():
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as f:
            records = [json.loads(line) for line in f]
        first = records[0]
        print(
            f"\n{first['model']}, {first['threads']} threads, {first['cpu']}, "
            f"{first['compiler']}, commit {first['commit'][:12]}"
            f"{' with changes' if first['uncommitted_changes'] else ''}, {first['time']}:\n"
        )
        table(records)


if __name__ == "__main__":
    main()
