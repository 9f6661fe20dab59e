#!/usr/bin/env python3
"""Records of bench/prefix/run.py as Markdown tables.

bench/prefix/report.py bench/results/FILE.jsonl...   prints them
bench/prefix/report.py --update [DOC...]             writes them between the markers
bench/prefix/report.py --check [DOC...]              fails where a document differs

A marker names the tables (all, if none is named) and the files in bench/results:

    <!-- prefix one,targets: FILE.jsonl -->
    <!-- end -->
"""

import statistics

import bench_path
import links
import marked_docs
import names
import table

RESULTS = bench_path.BENCH / "results"
DOCS = [bench_path.BENCH.parent / "docs/benchmarks.md"]
MB = 1e6


class Cell:
    """The rounds of one context, link, number of requests and of nodes."""

    def __init__(self, rounds):
        self.rounds, self.first = rounds, rounds[0]
        self.context, self.rate = self.first["context"], self.first["rate"]
        self.num_requests, self.num_nodes = self.first["num_requests"], self.first["num_nodes"]
        self.names = list(dict.fromkeys(n for r in rounds for n in r["variants"]))

    def results(self, name):
        """{repeat: result} of the rounds in which it did not fail."""
        found = {r["repeat"]: r["variants"].get(name) for r in self.rounds}
        return {i: v for i, v in found.items() if v and "error" not in v}

    def errors(self, name):
        return [r["variants"][name]["error"] for r in self.rounds
                if "error" in r["variants"].get(name, {})]

    def values(self, name, what):
        return {i: what(v) for i, v in self.results(name).items()}

    def ratios(self, name, base, what):
        """base / name, of the rounds that have both: how many times as fast."""
        ours, theirs = self.values(name, what), self.values(base, what)
        return [theirs[i] / ours[i] for i in ours if i in theirs]

    def best(self, candidates, what):
        """The one with the best median of those there are, or None."""
        known = [n for n in candidates if self.values(n, what)]
        return min(known, key=lambda n: statistics.median(self.values(n, what).values()),
                   default=None)


def first_s(result):
    return max(result["first_s"])


def total_s(result):
    return result["wall_s"]


def down_mb(result):
    return result["down_bytes"] / MB


def cells_of(records):
    grouped = {}
    for record in records:
        key = tuple(record[k] for k in ("context", "rate", "num_requests", "num_nodes"))
        grouped.setdefault(key, []).append(record)
    return [Cell(rounds) for rounds in grouped.values()]


def spread(values, form="{:.1f}"):
    values = list(values)
    if not values:
        return "-"
    low, high = (form.format(f(values)) for f in (min, max))
    middle = form.format(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def caption(cells):
    rounds = [r for cell in cells for r in cell.rounds]
    first = rounds[0]
    commits = list(dict.fromkeys(
        r["commit"][:12] + (" with changes" if r["uncommitted_changes"] else "") for r in rounds))
    delay = f"{first['delay_ms']:g} ms each way" if first["delay_ms"] else "no delay added"
    counts = [len(c.rounds) for c in cells]
    by_rate = {}
    for r in rounds:
        by_rate.setdefault(r["rate"], []).append(r["link_bits_per_s"] / 1e6)
    measured = ", ".join(f"{rate} gave {spread(v, '{:.0f}')}" for rate, v in by_rate.items())
    label = f" **{first['label']}.**" if first["label"] else ""
    return (
        f"{first['model']}, answers of {first['num_tokens']} tokens, draft `{first['draft']}`, "
        f"{first['cpu']}, {first['compiler']}, commit {', '.join(commits)}, {first['time']}. All "
        f"nodes share this machine: each serving node has core {' or '.join(first['node_cores'])}, "
        f"the store's side core {first['far_cores']}, one thread a core. Links with {delay}; in "
        f"Mbit/s, {measured}. Median (lowest-highest) of {min(counts)} to {max(counts)} rounds. "
        f"Other work took {min(r['others_cpu_share'] for r in rounds):.0%} to "
        f"{max(r['others_cpu_share'] for r in rounds):.0%} of the CPU.{label}")


def one_table(cells):
    """Seconds to the first token / to the last, and MB to the node, by link."""
    made = []
    for context in dict.fromkeys(c.context for c in cells if c.num_requests == 1):
        own = [c for c in cells if c.context == context and c.num_requests == 1]
        num_tokens = own[0].first["num_tokens"]
        head = [f"{context}: s to the first token / to {num_tokens}, MB moved"]
        head += [cell.rate for cell in own]
        rows = []
        for name in [n for n in names.ONE if any(n in c.names for c in own)]:
            rows.append([name] + [one_cell(cell, name) for cell in own])
        made.append(table.markdown(head, rows))
    return "\n\n".join(made)


def one_cell(cell, name):
    if not cell.results(name):
        return "failed" if cell.errors(name) else "-"
    first, total = (spread(cell.values(name, f).values(), "{:.2f}") for f in (first_s, total_s))
    return f"{first} / {total}, {spread(cell.values(name, down_mb).values())}"


def many_table(cells):
    """Requests a second of many at once, and the slowest first token."""
    made = []
    many = [c for c in cells if c.num_requests > 1]
    for key in dict.fromkeys((c.context, c.num_nodes) for c in many):
        own = [c for c in many if (c.context, c.num_nodes) == key]
        head = [f"{key[0]}, {key[1]} node{'s' if key[1] > 1 else ''}: requests/s, s to the slowest "
                "first token, MB moved"]
        head += [f"{cell.rate}, {cell.num_requests} requests" for cell in own]
        rows = []
        for name in [n for n in names.MANY if any(n in c.names for c in own)]:
            rows.append([name] + [many_cell(cell, name) for cell in own])
        made.append(table.markdown(head, rows))
    return "\n\n".join(made)


def many_cell(cell, name):
    if not cell.results(name):
        return "failed" if cell.errors(name) else "-"
    rate = spread(cell.values(name, lambda v: v["requests_per_s"]).values(), "{:.3f}")
    return (f"{rate}, {spread(cell.values(name, first_s).values(), '{:.2f}')}, "
            f"{spread(cell.values(name, down_mb).values())}")


def kept_share(cell, result):
    """Bytes to the node as a share of (kept fraction x full + 1 %): at most 1 is the target."""
    pushed = cell.first["pushed"]
    draft = pushed["drafts"][0]["num_bytes"]
    return result["down_bytes"] / (draft + 0.01 * pushed["full_bytes"])


def draft_first_bound(cell, record, result):
    """The least time that drafting while full blocks arrive could take, of parts of the same round.

    All blocks arrive at the link's rate; what was drafted and accepted by then costs one pass; the
    rest is decoded at the rate of a node that has all. A pass over the suffix and the first run is
    taken for what load-full needs behind its last byte for its first token.
    """
    full = record["variants"].get(names.LOAD_FULL)
    if not full or "error" in full:
        return None
    pushed, tokens = cell.first["pushed"], record["num_tokens"]
    seconds_of = lambda count: count * 8 / record["link_bits_per_s"]  # noqa: E731
    step = (full["wall_s"] - max(full["first_s"])) / (tokens - 1)
    suffix = max(0.0, max(full["first_s"]) - seconds_of(full["down_bytes"]))
    arrived = seconds_of(pushed["full_bytes"] + pushed["drafts"][0]["num_bytes"])
    stats = result["stats"][0]
    run = min(tokens, 1 + stats.get("accepted", 0) / max(stats.get("rounds", 1), 1))
    return arrived + suffix + (tokens - run) * step


def targets(cells):
    """What issue 8 asks for, cell by cell."""
    head = ["one request", "remote / load full", "remote / best alternative", "which",
            "MB / allowed", "recompute / remote, first token", "draft-first / its bound"]
    rows = []
    chosen = any(cell.results(names.CHOSEN) for cell in cells)
    head += [f"{names.CHOSEN} / best way", "the next request"] if chosen else []
    for cell in (c for c in cells if c.num_requests == 1):
        ours = names.REMOTE
        best = cell.best(names.ALTERNATIVES, total_s)
        bounds = [draft_first_bound(cell, r, r["variants"][names.DRAFT_FIRST])
                  / r["variants"][names.DRAFT_FIRST]["wall_s"]
                  for r in cell.rounds
                  if "error" not in r["variants"].get(names.DRAFT_FIRST, {"error": 1})
                  and draft_first_bound(cell, r, r["variants"][names.DRAFT_FIRST])]
        rows.append([
            f"{cell.context}, {cell.rate}",
            spread(cell.ratios(ours, names.LOAD_FULL, total_s), "{:.2f}x"),
            spread(cell.ratios(ours, best, total_s), "{:.2f}x") if best else "-", best or "-",
            spread(cell.values(ours, lambda v: kept_share(cell, v)).values(), "{:.2f}"),
            spread(recomputing(cells, cell), "{:.1f}x"),
            spread(bounds, "{:.0%}"),
        ])
        # A first request has the verifier's first as its rival, the next one's a verifier that has
        # the prefix.
        for name, rival in ((names.CHOSEN, names.REMOTE),
                            (names.CHOSEN_AGAIN, names.REMOTE_AGAIN)) if chosen else ():
            way = cell.best([*names.ALTERNATIVES, rival], total_s)
            rows[-1].append(spread(cell.ratios(name, way, total_s), "{:.2f}x") if way else "-")
    return table.markdown(head, rows) if rows else ""


def recomputing(cells, cell):
    """Ratios of first tokens; recomputing hangs on no link and may stand in another cell."""
    ratios = cell.ratios(names.REMOTE, names.RECOMPUTE, first_s)
    if ratios:
        return ratios
    for other in cells:
        if other.context == cell.context and other.num_requests == 1:
            theirs = other.values(names.RECOMPUTE, first_s)
            ours = cell.values(names.REMOTE, first_s)
            if theirs and ours:
                return [theirs[i] / ours[i] for i in ours if i in theirs]
    return []


def winners(cells):
    """Which was fastest to the last token, and by how much before the next one."""
    rows = []
    for cell in cells:
        known = [n for n in cell.names if cell.results(n)]
        known = [n for n in known if n not in (names.AT_STORE_AGAIN, names.REMOTE_AGAIN,
                                              names.CHOSEN_AGAIN)]
        order = sorted(known,
                       key=lambda n: statistics.median(cell.values(n, total_s).values()))
        if len(order) < 2:
            continue
        apart = spread(cell.ratios(order[0], order[1], total_s), "{:.2f}x")
        where = (f"{cell.context}, {cell.rate}, {cell.num_requests} request"
                 f"{'s' if cell.num_requests > 1 else ''}, {cell.num_nodes} node"
                 f"{'s' if cell.num_nodes > 1 else ''}")
        rows.append([where, order[0], order[1], apart])
    return table.markdown(["where", "fastest", "next", "by"], rows) if rows else ""


def push_table(cells):
    """What a prefix costs once."""
    rows = {}
    for cell in cells:
        pushed = cell.first["pushed"]
        draft = pushed["drafts"][0]["num_bytes"]
        rows[cell.context] = [
            cell.context, f"{pushed['stored_tokens']:,}", f"{pushed['push_s']:.0f}",
            str(pushed["push_threads"]), f"{pushed['full_bytes'] / MB:.1f}", f"{draft / MB:.1f}",
            f"{draft / pushed['full_bytes']:.3f}"]
    head = ["push", "tokens", "s", "threads", "full MB", "draft MB", "kept"]
    return table.markdown(head, list(rows.values()))


def failure_list(cells):
    """What refused, once each, and why."""
    said = dict.fromkeys(
        f"- {cell.context}, {cell.rate}, {cell.num_requests}, {name}: {error}"
        for cell in cells for name in cell.names for error in cell.errors(name))
    return "\n".join(said)


TABLES = {
    "caption": caption, "one": one_table, "many": many_table, "targets": targets,
    "winners": winners, "push": push_table, "failures": failure_list,
}


def tables(records, kinds=()):
    records = sorted(records, key=lambda r: (
        names.CONTEXTS[r["context"]], r["num_requests"], r["num_nodes"],
        links.bits_per_s(r["rate"]), r["repeat"]))
    cells = cells_of(records)
    return "\n\n".join(filter(None, (TABLES[kind](cells) for kind in kinds or TABLES)))


def filled(text, results=RESULTS):
    """The document with its tables made anew from the records."""
    return marked_docs.fill(
        text, "prefix", TABLES, lambda file, kinds: tables(table.load(results / file), kinds))


def main():
    summary = __doc__.split("\n", 1)[0]
    marked_docs.main(
        summary, DOCS, RESULTS, "prefix", lambda path: tables(table.load(path)), filled)


if __name__ == "__main__":
    main()
