#!/usr/bin/env python3
"""Records of `vericache compressors --json`, exact.py and bfcl.py as Markdown tables.

bench/compressors/report.py bench/results/FILE.json...   prints them
bench/compressors/report.py --update [DOC...]            writes them between the markers
bench/compressors/report.py --check [DOC...]             fails where a document differs

A marker names the workloads (all, if none is named) and the files in bench/results:

    <!-- compressors code,tool: FILE.json FILE.json -->
    <!-- end -->
"""

import json
import pathlib
import statistics
import sys

import bfcl
import exact
import table_path
import marked_docs
import table

RESULTS = table_path.BENCH / "results"
DOCS = [table_path.BENCH.parent / "docs/compressors.md"]

# Heading, key of a record's summary, form. What a run did not measure is shown as "-".
COLUMNS = [
    ("kept", "kept_fraction", "{:.1%}"),
    ("read a step", "read_fraction", "{:.1%}"),
    ("run length, mean", "mean_run_length", "{:.1f}"),
    ("median", "median_run_length", "{:.0f}"),
    ("p10", "p10_run_length", "{:.0f}"),
    ("agreement", "agreement", "{:.3f}"),
    ("KL", "mean_kl", "{:.4f}"),
    ("unverified: first other token", "first_divergence_median", "{:.0f}"),
    ("unverified: token F1", "token_f1", "{:.2f}"),
    ("verified, tok/s", "verified_tok_s", "{:.1f}"),
    ("full KV, tok/s", "full_tok_s", "{:.1f}"),
]


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def kinds_of(record):
    """The workloads of a record, in the order of its prompts."""
    return list(dict.fromkeys(kind for spec in record["specs"] for kind in spec["by_kind"]))


def summaries(record, kind):
    """[(spec, summary of the workload)] of those that ran it."""
    found = [(spec["spec"], spec["by_kind"].get(kind)) for spec in record["specs"]]
    return [(name, summary) for name, summary in found if summary]


def caption(record, kind):
    """Of what the table is: model, length of the prompts, and how much was measured."""
    prompts = [p for p in record["specs"][0]["prompts"] if p["kind"] == kind]
    lengths = [p["prompt_tokens"] for p in prompts]
    answers = [p["answer_tokens"] for p in prompts]
    rounds = [summary["num_rounds"] for _, summary in summaries(record, kind)]
    return (
        f"**{kind}**: {record['model']}, {len(prompts)} prompts of {min(lengths):,} to "
        f"{max(lengths):,} tokens, answers of {statistics.median(answers):.0f} (median), drafts "
        f"of at most {record['draft_len']}, {min(rounds):,} to {max(rounds):,} rounds a spec."
    )


def runs_table(record, kind):
    found = summaries(record, kind)
    columns = [c for c in COLUMNS if any(s.get(c[1]) is not None for _, s in found)]
    rows = [
        [f"`{name}`"]
        + [form.format(s[key]) if s.get(key) is not None else "-" for _, key, form in columns]
        for name, s in found
    ]
    return table.markdown(["draft KV"] + [head for head, _, _ in columns], rows)


def tables(record, kinds=()):
    if "exact" in record:
        rows = [row for row in record["exact"] if not kinds or row["kind"] in kinds]
        return exact.exact_table(rows)
    if "bfcl" in record:
        return bfcl.judged_table(record["bfcl"])
    chosen = [kind for kind in kinds_of(record) if not kinds or kind in kinds]
    return "\n\n".join(caption(record, kind) + "\n\n" + runs_table(record, kind) for kind in chosen)


def filled(text, results=RESULTS):
    """The document with its tables made anew from the records."""

    def show(file, kinds):
        made = tables(load(results / file), kinds)
        return made or sys.exit(f"report.py: nothing to show for {file}: {','.join(kinds)}")

    return marked_docs.fill(text, "compressors", None, show)


def main():
    summary = __doc__.split("\n", 1)[0]
    marked_docs.main(summary, DOCS, RESULTS, "compressors", lambda path: tables(load(path)), filled)


if __name__ == "__main__":
    main()
