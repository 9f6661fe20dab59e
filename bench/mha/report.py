#!/usr/bin/env python3
"""Records of bench/mha/run.py as Markdown tables.

bench/mha/report.py bench/results/FILE.jsonl...   prints them
bench/mha/report.py --update [DOC...]             writes them between the markers
bench/mha/report.py --check [DOC...]              fails where a document differs

    <!-- mha: FILE.jsonl -->
    <!-- end -->
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import marked_docs  # noqa: E402
import table  # noqa: E402
from run import SHAPES  # noqa: E402

RESULTS = HERE.parent / "results"
DOCS = [HERE.parent.parent / "docs/long_contexts.md"]
MIB = 1 << 20
# Of issue 6: shape and depth, times plain decoding.
TARGETS = {("smollm2-135m", 8192): 1.15, ("mha", 16384): 1.7, ("mha", 32768): 2.2}


def spread(values, form="{:.2f}"):
    middle, low, high = (form.format(value) for value in values)
    return middle if low == high else f"{middle} ({low}-{high})"


def caption(records):
    first = records[0]
    shares = [record["others_cpu_share"] for record in records]
    commits = dict.fromkeys(
        r["commit"][:12] + (" with changes" if r["uncommitted_changes"] else "") for r in records)
    shapes = dict.fromkeys(record["shape"] for record in records)
    label = f" **{first['label']}.**" if first["label"] else ""
    return (
        f"{'; '.join(f'{shape}: {SHAPES[shape]}' for shape in shapes)}. {first['threads']} "
        f"threads, {first['cpu']}, {first['compiler']}, commit {', '.join(commits)}, "
        f"{first['time']}. **Acceptance is replayed from traces of qwen2.5-coder-0.5b at 8K**; "
        f"K/V are synthetic. {first['tokens']} tokens or a little more, "
        f"median (lowest-highest) of {first['repeats']} repeats. Other work took {min(shares):.0%} "
        f"to {max(shares):.0%} of the CPU.{label}"
    )


def best_of(record, kind):
    """(draft length, result) of the fastest draft length."""
    found = [(length, record["traces"][f"{kind}-{length}"]) for length in record["draft_lens"]]
    return max(found, key=lambda pair: pair[1]["speedup"][0])


def main_table(records):
    head = ["shape", "depth", "full KV, MiB", "draft", "trace", "plain tok/s", "best draft length",
            "tokens a round", "VeriCache tok/s", "times plain", "target"]
    rows = []
    for record in records:
        target = TARGETS.get((record["shape"], record["depth"]))
        for kind in record["kinds"]:
            length, best = best_of(record, kind)
            rows.append([
                record["shape"], f"{record['depth']:,}", f"{record['full_bytes'] / MIB:,.0f}",
                f"`{record['draft']}`", kind, spread(record["plain_tok_s"], "{:.1f}"),
                length,
                f"{best['run_length']:.1f}", spread(best["tok_s"], "{:.1f}"),
                spread(best["speedup"]), f">= {target}" if target else "",
            ])
    return table.markdown(head, rows)


def length_table(records):
    lengths = records[0]["draft_lens"]
    head = ["times plain, by draft length", "draft", "trace", *lengths,
            "drafting, of its time, at the best"]
    rows = []
    for record in records:
        for kind in record["kinds"]:
            _, best = best_of(record, kind)
            share = best["draft_s"] / (best["draft_s"] + best["verify_s"])
            row = [f"{record['shape']} {record['depth']:,}", f"`{record['draft']}`", kind]
            row += [spread(record["traces"][f"{kind}-{n}"]["speedup"]) for n in lengths]
            rows.append([*row, f"{share:.0%}"])
    return table.markdown(head, rows)


def tables(records):
    return "\n\n".join(make(records) for make in (caption, main_table, length_table))


def filled(text, results=RESULTS):
    """The document with its tables made anew from the records."""
    return marked_docs.fill(text, "mha", (), lambda file, _: tables(table.load(results / file)))


def main():
    summary = __doc__.split("\n", 1)[0]
    marked_docs.main(
        summary, DOCS, RESULTS, "mha", lambda path: tables(table.load(path)), filled)


if __name__ == "__main__":
    main()
