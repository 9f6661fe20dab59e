#!/usr/bin/env python3
"""Records of bench/longctx/run.py as Markdown tables.

bench/longctx/report.py bench/results/FILE.jsonl...   prints them
bench/longctx/report.py --update [DOC...]             writes them between the markers
bench/longctx/report.py --check [DOC...]              fails where a document differs

A marker names the tables (all, if none is named) and the files in bench/results:

    <!-- longctx speed,ratios: FILE.jsonl -->
    <!-- end -->
"""

import statistics

import bench_path
import bound
import marked_docs
import table
from names import (
    LOCK_STEP, RAM_AT_ONCE, RAM_DRAFT, RAM_SERIAL, STAGGERED, STREAMED, base_of, parts_of, sink_of,
    under_budget)

RESULTS = bench_path.BENCH / "results"
DOCS = [bench_path.BENCH.parent / "docs/long_contexts.md"]
MIB = 1 << 20
BUSY = 0.1  # share of all cores in other hands above which no peer is compared


class Cell:
    """The rounds of one context and number of requests."""

    def __init__(self, rounds):
        self.rounds, self.first = rounds, rounds[0]
        self.num_requests = self.first["num_requests"]
        self.names = list(dict.fromkeys(n for r in rounds for n in r["variants"]))
        self.shares = [p for p in self.first["shares"]
                       if any(parts_of(name) == p for name in self.names)]

    @property
    def where(self):
        num = self.num_requests
        return f"{self.first['context']}, {num} request{'s' if num > 1 else ''}"

    def budget_bytes(self, parts):
        return sum(self.first["full_bytes"]) // parts

    def budget(self, parts):
        one = " = one full KV" if parts == self.num_requests and parts > 1 else ""
        return f"1/{parts} ({self.budget_bytes(parts) / MIB:.0f} MiB{one})"

    def results(self, name):
        """[(round, result)] of the rounds in which it did not fail."""
        found = [(r, r["variants"].get(name)) for r in self.rounds]
        return [(r, v) for r, v in found if v and "error" not in v]

    def errors(self, name):
        return [r["variants"][name]["error"] for r in self.rounds
                if "error" in r["variants"].get(name, {})]

    def speeds(self, name):
        return [v["tok_s"] for _, v in self.results(name)]

    def ratios(self, name, base):
        """Of rounds that have both: what was measured apart is not compared. llama.cpp's threads
        wait by spinning and lose most on a busy machine: no ratio from such a round."""
        ours, theirs = self.by_repeat(name), self.by_repeat(base)
        if base.startswith("llama.cpp"):
            quiet = {r["repeat"] for r in self.rounds if r["others_cpu_share"] <= BUSY}
            theirs = {i: speed for i, speed in theirs.items() if i in quiet}
        return [ours[i] / theirs[i] for i in ours if i in theirs]

    def by_repeat(self, name):
        return {r["repeat"]: v["tok_s"] for r, v in self.results(name)}

    def llama(self):
        """The better llama.cpp by its median, or None."""
        known = [n for n in self.names if n.startswith("llama.cpp") and self.speeds(n)]
        return max(known, key=lambda n: statistics.median(self.speeds(n)), default=None)


def cells_of(records):
    grouped = {}
    for record in records:
        grouped.setdefault((record["context"], record["num_requests"]), []).append(record)
    return [Cell(rounds) for rounds in grouped.values()]


def spread(values, form="{:.1f}"):
    if not values:
        return "-"
    low, high = (form.format(f(values)) for f in (min, max))
    middle = form.format(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def caption(cells):
    rounds = [r for cell in cells for r in cell.rounds]
    first = rounds[0]
    lengths = [n for r in rounds for n in r["prompt_tokens"]]
    commits = list(dict.fromkeys(
        r["commit"][:12] + (" with changes" if r["uncommitted_changes"] else "") for r in rounds))
    limit = first["read_limit"]
    device = f"at most {limit / 1e6:,.0f} MB/s" if limit else "not throttled"
    label = f" **{first['label']}.**" if first["label"] else ""
    return (
        f"{first['model']}, {first['heads_per_kv_head']} query heads on a KV head, "
        f"{first['threads']} threads, {first['cpu']}, {first['compiler']}, commit "
        f"{', '.join(commits)}, {first['time']}. {first['kind']}: prompts of {min(lengths):,} to "
        f"{max(lengths):,} tokens, answers of {first['num_tokens']}, draft `{first['draft']}`; "
        f"what is spilled is read back with {device}. Median (lowest-highest) of "
        f"{min(len(c.rounds) for c in cells)} to {max(len(c.rounds) for c in cells)} rounds. "
        f"Other work took {min(r['others_cpu_share'] for r in rounds):.0%} to "
        f"{max(r['others_cpu_share'] for r in rounds):.0%} of the CPU.{label}"
    )


def speed_table(cells):
    """tok/s over all requests of a round; in RAM, and under each budget."""
    made = []
    for cell in cells:
        head = [f"{cell.where}: tok/s", "in RAM"] + [cell.budget(p) for p in cell.shares]
        rows = []
        for base in dict.fromkeys(map(base_of, cell.names)):
            of_budget = {parts_of(n): n for n in cell.names if base_of(n) == base}
            row = [speed_cell(cell, of_budget.get(p)) for p in [None] + cell.shares]
            rows.append([base] + row)
        made.append(table.markdown(head, rows))
    return "\n\n".join(made)


def speed_cell(cell, name):
    if name is None:
        return ""
    if cell.speeds(name):
        return spread(cell.speeds(name))
    return "failed" if cell.errors(name) else "-"


def comparisons(cell, parts):
    """[(what, name, base)] under a budget; parts None: in RAM."""
    if parts is None:
        plain = RAM_AT_ONCE if cell.num_requests > 1 else RAM_SERIAL
        found = [(f"{RAM_DRAFT} / {plain}", RAM_DRAFT, plain),
                 (f"{RAM_AT_ONCE} / {RAM_SERIAL}", RAM_AT_ONCE, RAM_SERIAL)]
        return found + [(f"{RAM_SERIAL} / llama.cpp", RAM_SERIAL, cell.llama())]
    suffix = f" @1/{parts}"
    found = []
    for name in cell.names:
        base = base_of(name)
        if parts_of(name) != parts or not base.startswith(STAGGERED):
            continue
        lock_step = base.replace(STAGGERED, LOCK_STEP) + suffix
        found += [
            (f"{base} / {RAM_SERIAL}", name, RAM_SERIAL),
            (f"{base} / {RAM_AT_ONCE}", name, RAM_AT_ONCE),
            (f"{base} / llama.cpp in RAM", name, cell.llama()),
            (f"{base} / {STREAMED}", name, STREAMED + suffix),
            (f"{base} / lock-step", name, lock_step),
        ]
    return found


def ratio_table(cells):
    """Medians of the ratios within each round."""
    made = []
    for cell in cells:
        columns = [None] + cell.shares
        rows = {}
        for column, parts in enumerate(columns):
            for what, name, base in comparisons(cell, parts):
                if base and (ratios := cell.ratios(name, base)):
                    row = rows.setdefault(what, ["-"] * len(columns))
                    row[column] = spread(ratios, "{:.2f}x")
        head = [f"{cell.where}: times", "in RAM"] + [cell.budget(p) for p in cell.shares]
        if rows:
            made.append(table.markdown(head, [[what] + row for what, row in rows.items()]))
    return "\n\n".join(made)


def read_rate(record, parts):
    """Bytes a second while every token reads: a stream that waits for staging counts that too.

    Transfers of several requests overlap: their sum may be longer than all of it took."""
    streamed = record["variants"].get(under_budget(STREAMED, parts), {})
    if not streamed.get("fetch_s"):
        return None
    return streamed["fetched_bytes"] / min(streamed["fetch_s"],
                                           streamed.get("decode_s", streamed["fetch_s"]))


def hidden_share(record, name, variant):
    rate = read_rate(record, parts_of(name))
    if not rate or not variant.get("fetched_bytes"):
        return None
    return 1 - variant["stall_s"] / (variant["fetched_bytes"] / rate)


def bound_share(cell, record, name, variant):
    """The least time, by parts of the same round, as a share of the time taken."""
    rate = read_rate(record, parts_of(name))
    if not record["parts"] or not rate:
        return None
    sink = sink_of(variant["draft_spec"])
    if variant["drafted"] and sink not in record["parts"]["sinks"]:
        return None
    least = bound.seconds(
        bound.Parts(record["parts"]), variant, cell.num_requests, sink, rate,
        base_of(name).startswith(LOCK_STEP))
    return least / variant["decode_s"]


def prediction_error(variant):
    """Of passes where many run at once; of the tokens a second where one runs."""
    if "prediction_error" in variant:
        return variant["prediction_error"]
    predicted = variant.get("predicted_tok_s")
    return abs(predicted / variant["tok_s"] - 1) if predicted else None


def inside_columns(cell, name, parts):
    """Heading: values of each round."""
    results = cell.results(name)
    budget = cell.budget_bytes(parts)
    room = budget + cell.first["model_bytes"]
    columns = {
        "ran at once": [v.get("most_running", 1) for _, v in results],
        "tokens a round": [v["tokens"] / v["rounds"] for _, v in results],
        "transfer hidden": [hidden_share(r, name, v) for r, v in results],
        "of the bound": [bound_share(cell, r, name, v) for r, v in results],
        "prediction off by": [prediction_error(v) for _, v in results],
        "longest gap, s": [v.get("longest_gap_s") for _, v in results],
        "KV held / budget": [
            v["peak_kv_bytes"] / budget for _, v in results if "peak_kv_bytes" in v],
        "peak memory / (budget + weights)": [v["peak_rss_bytes"] / room for _, v in results],
        "peak above loading, MiB": [
            (v["peak_rss_bytes"] - r["base_rss_bytes"]) / MIB for r, v in results],
        "read back, MB": [v.get("fetched_bytes", 0) / 1e6 for _, v in results],
    }
    return {head: [v for v in values if v is not None] for head, values in columns.items()}


FORMS = {
    "ran at once": "{:.0f}",
    "tokens a round": "{:.1f}",
    "longest gap, s": "{:.2f}",
    "KV held / budget": "{:.2f}",
    "peak memory / (budget + weights)": "{:.2f}",
    "peak above loading, MiB": "{:.0f}",
    "read back, MB": "{:,.0f}",
}  # others are shares


def inside_table(cells):
    """How well the parts of a round fit together."""
    made = []
    for cell in cells:
        rows, head = [], []
        for name in cell.names:
            parts = parts_of(name)
            if parts is None or not cell.results(name):
                continue
            columns = inside_columns(cell, name, parts)
            specs = dict.fromkeys(v["draft_spec"] for _, v in cell.results(name) if v["drafted"])
            row = [spread(v, FORMS.get(h, "{:.0%}")) for h, v in columns.items()]
            rows.append([name, ", ".join(f"`{s}`" for s in specs) or "-"] + row)
            head = [cell.where, "draft KV"] + list(columns)
        if rows:
            made.append(table.markdown(head, rows))
    return "\n\n".join(made)


def failure_list(cells):
    """What refused, once each, and why."""
    said = dict.fromkeys(
        f"- {cell.where}, {name}: {error}"
        for cell in cells for name in cell.names for error in cell.errors(name))
    return "\n".join(said)


TABLES = {
    "caption": caption,
    "speed": speed_table,
    "ratios": ratio_table,
    "inside": inside_table,
    "failures": failure_list,
}


def tables(records, kinds=()):
    cells = cells_of(records)
    return "\n\n".join(filter(None, (TABLES[kind](cells) for kind in kinds or TABLES)))


def filled(text, results=RESULTS):
    """The document with its tables made anew from the records."""
    return marked_docs.fill(
        text, "longctx", TABLES, lambda file, kinds: tables(table.load(results / file), kinds))


def main():
    summary = __doc__.split("\n", 1)[0]
    marked_docs.main(
        summary, DOCS, RESULTS, "longctx", lambda path: tables(table.load(path)), filled)


if __name__ == "__main__":
    main()
