#!/usr/bin/env python3
"""Records of bench/serving as Markdown tables.

bench/serving/report.py bench/results/FILE.jsonl...   prints them
bench/serving/report.py --update [DOC...]             writes them between the markers
bench/serving/report.py --check [DOC...]              fails where a document differs

A marker names the tables (all, if none is named) and the files in bench/results; before the first
measurement a file is missing, and the document says so:

    <!-- serving traffic,answers: FILE.jsonl -->
    <!-- end -->
"""

import statistics

import bench_path
import agent_trace
import marked_docs
import records
import run
import servers
import sse
import table

RESULTS = bench_path.BENCH / "results"
DOCS = [bench_path.BENCH.parent / "docs/benchmarks.md"]
MIB = 1 << 20
MISSING = "*Not measured yet: {} does not exist (bench/serving/README.md).*"


def spread(values, form="{:,.1f}"):
    """Median (lowest-highest)."""
    if not values:
        return "-"
    middle = form.format(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({form.format(min(values))}-{form.format(max(values))})"


def seconds(milliseconds):
    return "-" if milliseconds is None else f"{milliseconds / 1000:,.2f}"


def quiet_of(found):
    """Those of a quiet machine: elsewhere no ratio to the peer means anything."""
    return [r for r in found if busiest(r) <= records.BUSY]


def busiest(record):
    parts = record.get("phases", {"": record}).values()
    return max(part["others_cpu_share"] for part in parts)


def generators(record):
    return [part["generator"] for part in record.get("phases", {"": record}).values()]


def caption(found):
    first = found[0]
    commits = dict.fromkeys(
        r["commit"][:12] + (" with changes" if r["uncommitted_changes"] else "") for r in found)
    versions = dict.fromkeys(r["peer_version"] for r in found if r["peer_version"])
    costs = [cost for r in found for cost in generators(r)]
    cpu = max(c["cpu_s"] / c["wall_s"] for c in costs) / first["cores"]
    late = max(c["late_p99_s"] for c in costs)
    stood = max(c["late_max_s"] for c in costs)
    shares = [busiest(r) for r in found]
    still = f" **The generator was stopped for {stood:,.0f} s.**" if stood > 1 else ""
    label = "".join(f" **{text}.**" for text in dict.fromkeys(r["label"] for r in found) if text)
    peer = f"llama-cpp-python {', '.join(versions)}, " if versions else ""
    return (
        f"{first['model']}, {first['threads']} threads, {first['cpu']}, {first['compiler']}, "
        f"{peer}commit {', '.join(commits)}, {first['time']}. {work_of(first)} The load generator "
        f"took at most {cpu:.1%} of the cores, its timer was late by at most {late * 1000:.1f} ms "
        f"(p99). Other work took {min(shares):.0%} to {max(shares):.0%} of the CPU.{still}{label}"
    )


def work_of(first):
    if first["benchmark"] == "agent":
        return (f"Ten turns over a repository of about {first['repository']:,} tokens, at most "
                f"{first['num_tokens']} tokens a turn.")
    sizes = ", ".join(f"{size:,}" for size in first["documents"])
    return f"Documents of at most {sizes} tokens, answers of at most {first['num_tokens']}."


def cells_of(found):
    """[(load, {variant: [record of each repeat]})]; unequal answers of ours have no table."""
    cells = {}
    for record in found:
        cells.setdefault(record["load"], {}).setdefault(record["variant"], []).append(record)
    for load_name, variants in cells.items():
        for ours in variants.get(servers.OURS, []):
            for plain in variants.get(servers.PLAIN, []):
                if records.difference(run.requests_of(ours), run.requests_of(plain)):
                    raise SystemExit(f"bench/serving: load {load_name}: answers differ, no table")
    return list(cells.items())


def load_words(name):
    if not name.isdigit():
        return f"{name.removesuffix('/s')} arrivals a second"
    return f"{name} client{'s' if name != '1' else ''}"


def of_phase(recorded, phase):
    """All that is measured in one phase, over its repeats together."""
    parts = [r["phases"][phase] for r in recorded]
    requests = [r for part in parts for r in part["requests"]]
    return {
        "tok_s": [sum(r["tokens"] for r in p["requests"]) / p["wall_s"] for p in parts],
        "wall_s": [p["wall_s"] for p in parts],
        "ttft_ms": [r["ttft_ms"] for r in requests],
        "gaps_ms": [gap for r in requests for gap in r["gaps_ms"]],
        "token_ms": [token_ms(r) for r in requests if r["tokens"] > 1],
        "requests": requests,
    }


def token_ms(request):
    """Mean time of a token after the first."""
    return (request["end_to_end_ms"] - request["ttft_ms"]) / (request["tokens"] - 1)


def row_of(found):
    ttft, gaps = found["ttft_ms"], found["gaps_ms"]
    middle, last = (sse.percentile(gaps, share) for share in (0.5, 0.99))
    return [
        str(len(found["requests"])),
        f"{sum(r['tokens'] for r in found['requests'])}",
        spread(found["wall_s"]),
        spread(found["tok_s"]),
        f"{seconds(sse.percentile(ttft, 0.5))} / {seconds(sse.percentile(ttft, 0.99))}",
        "-" if middle is None else f"{middle:,.1f} / {last:,.1f}",
        f"{statistics.median(found['token_ms']):,.1f}" if found["token_ms"] else "-",
    ]


def traffic_table(found):
    made = []
    for load_name, variants in cells_of(found):
        rows = []
        for phase in ("cold", "warm"):
            for name, recorded in variants.items():
                rows.append([f"{phase}: {name}"] + row_of(of_phase(recorded, phase)))
        head = [load_words(load_name), "requests", "tokens", "wall, s", "tok/s",
                "first token p50 / p99, s", "gap p50 / p99, ms", "a token, ms"]
        made.append(table.markdown(head, rows))
    return "\n\n".join(made)


def best_peer(variants):
    """The llama server with the least wall time of both phases."""
    def wall(name):
        return statistics.median(
            sum(p["wall_s"] for p in r["phases"].values()) for r in variants[name])
    known = [n for n in variants if n in servers.LLAMA_FLAGS and quiet_of(variants[n])]
    return min(known, key=wall, default=None)


def ratio_table(found):
    """Ours against the better llama server: how many times the tokens, and how much sooner."""
    rows = []
    for load_name, variants in cells_of(found):
        peer = best_peer(variants)
        for phase in ("cold", "warm") if peer else ():
            theirs = of_phase(quiet_of(variants[peer]), phase)
            for name in (servers.OURS, servers.PLAIN):
                if not (quiet := quiet_of(variants.get(name, []))):
                    continue
                ours = of_phase(quiet, phase)
                row = [f"{load_words(load_name)}, {phase}: {name} / {peer}"]
                row.append(f"{ratio(ours['tok_s'], theirs['tok_s']):.2f}x")
                for share in (0.5, 0.99):
                    mine, other = (sse.percentile(f["ttft_ms"], share) for f in (ours, theirs))
                    row.append(f"{other / mine:.2f}x")
                rows.append(row)
    head = ["medians", "tok/s", "first token sooner, p50", "p99"]
    return table.markdown(head, rows) if rows else "No quiet record of a llama server: no ratio."


def ratio(ours, theirs):
    return statistics.median(ours) / statistics.median(theirs)


def answers_table(found):
    """What the servers did for it: prefixes found, drafts, memory, and how the answers agree."""
    rows = []
    for load_name, variants in cells_of(found):
        plain = variants.get(servers.PLAIN)
        for name, recorded in variants.items():
            requests = [r for one in recorded for r in run.requests_of(one)]
            same = "-"
            if plain and name != servers.PLAIN:
                alike, all_ = records.agreement(
                    run.requests_of(recorded[0]), run.requests_of(plain[0]))
                same = f"{alike} of {all_}"
            exact = "bit for bit" if name == servers.OURS else ""
            rows.append([
                load_words(load_name), name, prompts(requests), cached(recorded), drafts(requests),
                f"{max(r['peak_rss_bytes'] for r in recorded) / MIB:,.0f}",
                f"{same}, {exact}" if exact else same])
    head = ["load", "server", "prompt tokens", "warm: found in a cache", "tokens a round",
            "peak memory, MiB", "answers as ours with the draft off"]
    return table.markdown(head, rows)


def prompts(requests):
    known = [r["prompt_tokens"] for r in requests if "prompt_tokens" in r]
    return f"{min(known):,}-{max(known):,}" if known else "-"


def cached(recorded):
    known = [r for one in recorded for r in one["phases"]["warm"]["requests"]
             if "cached_tokens" in r]
    total = sum(r["prompt_tokens"] for r in known)
    return f"{sum(r['cached_tokens'] for r in known) / total:.0%}" if total else "not told"


def drafts(requests):
    """Tokens a round; the first token comes from the prompt's pass, which is none."""
    known = [r for r in requests if r.get("rounds")]
    if not known:
        return "-"
    return f"{sum(r['tokens'] - 1 for r in known) / sum(r['rounds'] for r in known):.1f}"


def conversations(found):
    """{(variant, server): [record of each repeat]}"""
    grouped = {}
    for record in found:
        grouped.setdefault((record["variant"], record["server"]), []).append(record)
    plain = grouped.get((servers.PLAIN, agent_trace.FIRST), [])
    for (name, _), recorded in grouped.items():
        for one in recorded if name in servers.OUR_FLAGS else []:
            if any(records.difference(one["requests"], p["requests"]) for p in plain):
                raise SystemExit(f"bench/serving: agent trace: {name} differs, no table")
    return grouped


def agent_table(found):
    grouped = conversations(found)
    base = wall_of(peer) if (peer := best_conversation(grouped)) else None
    rows = []
    for (name, start), recorded in grouped.items():
        requests = [r for one in recorded for r in one["requests"]]
        firsts = [one["requests"][0]["ttft_ms"] for one in recorded]
        later = [r["ttft_ms"] for one in recorded for r in one["requests"][1:]]
        rows.append([
            name if name not in servers.ON_DISK else f"{name}, {start}",
            spread([one["wall_s"] for one in recorded]),
            faster(recorded, base),
            seconds(statistics.median(firsts)),
            f"{seconds(sse.percentile(later, 0.5))} / {seconds(max(later))}",
            str(sum(r["tokens"] for r in requests) // len(recorded)),
            last_prompt(recorded[0]), drafts(requests),
            f"{max(one['peak_rss_bytes'] for one in recorded) / MIB:,.0f}"])
    head = ["ten turns", "wall, s", "times the best llama server", "first token of turn 1, s",
            "of turns 2 to 10, p50 / most, s", "tokens", "last prompt", "tokens a round",
            "peak memory, MiB"]
    return table.markdown(head, rows)


def wall_of(recorded):
    return statistics.median(r["wall_s"] for r in recorded)


def best_conversation(grouped):
    """The records of the fastest llama server that began with nothing, on a quiet machine."""
    known = [quiet_of(r) for (name, start), r in grouped.items()
             if name in servers.LLAMA_FLAGS and start == agent_trace.FIRST]
    return min(filter(None, known), key=wall_of, default=None)


def faster(recorded, base):
    quiet = quiet_of(recorded)
    return f"{base / wall_of(quiet):.2f}x" if base and quiet else "-"


def last_prompt(record):
    last = record["requests"][-1].get("prompt_tokens") or record.get("last_prompt_tokens")
    return f"{last:,}" if last else "-"


def turns_table(found):
    """First token of each turn, ms."""
    rows = []
    for (name, start), recorded in conversations(found).items():
        label = name if name not in servers.ON_DISK else f"{name}, {start}"
        turns = zip(*(one["requests"] for one in recorded))
        rows.append([label] + [seconds(statistics.median(r["ttft_ms"] for r in turn))
                               for turn in turns])
    count = len(found[0]["requests"])
    head = ["first token after s, turn"] + [str(i + 1) for i in range(count)]
    return table.markdown(head, rows)


TABLES = {
    "caption": caption,
    "traffic": traffic_table,
    "ratios": ratio_table,
    "answers": answers_table,
    "agent": agent_table,
    "turns": turns_table,
}
OF_TRAFFIC, OF_AGENT = ("caption", "traffic", "ratios", "answers"), ("caption", "agent", "turns")


def tables(found, kinds=()):
    kinds = kinds or (OF_AGENT if found[0]["benchmark"] == "agent" else OF_TRAFFIC)
    return "\n\n".join(TABLES[kind](found) for kind in kinds)


def of_file(path, kinds=()):
    if not path.is_file():
        return MISSING.format(path.name)
    return tables(table.load(path), kinds)


def filled(text, results=RESULTS):
    """The document with its tables made anew from the records."""
    return marked_docs.fill(
        text, "serving", TABLES, lambda file, kinds: of_file(results / file, kinds))


def main():
    marked_docs.main(__doc__.split("\n", 1)[0], DOCS, RESULTS, "serving", of_file, filled)


if __name__ == "__main__":
    main()
