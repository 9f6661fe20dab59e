#!/usr/bin/env python3
"""Draws decode or prefill speed over depth as SVG, one line an engine. Standard library only.

    bench/plot.py decode bench/results/FILE.jsonl -o docs/plots/NAME.svg
    bench/plot.py prefill bench/results/FILE.jsonl -o docs/plots/NAME.svg

Both axes are logarithmic: equal steps are equal ratios. Points are medians, bars the spread.
"""

import argparse
import html
import math
import pathlib
import statistics
import sys

import table

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 290, 48, 52
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ["#D55E00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#7F7F7F", "#000000"]
LIMIT = "limit: plain read of weights and f16 KV"
RATES = {"decode": ("decode_tok_s",), "prefill": ("append_tok_s", "prefill_tok_s")}
TITLES = {
    "decode_tok_s": "decode",
    "append_tok_s": "prefill of a further chunk",
    "prefill_tok_s": "prefill of a whole prompt",
}


def series_of(run, rate):
    """{engine: [(depth, median, lowest, highest)]}, and the limit of reading where it is known."""
    series = {}
    for engine in run.engines:
        points = []
        for depth in run.depths(rate):
            if values := run.values(engine, depth, rate):
                points.append((depth, run.median(engine, depth, rate), min(values), max(values)))
        if points:
            series[engine] = points
    limits = {}
    for r in run.records if rate == "decode_tok_s" else []:
        if r["kv"] == "f16" and "step_bytes" in r and "read_gb_s" in r:
            limits.setdefault(r["depth"], []).append(r["read_gb_s"] * 1e9 / r["step_bytes"])
    if limits:
        series[LIMIT] = [
            (d, statistics.median(v), min(v), max(v)) for d, v in sorted(limits.items())
        ]
    return series


def ticks(low, high):
    """Round numbers within [low, high]."""
    steps = [m * 10.0**e for e in range(-2, 8) for m in (1, 1.5, 2, 3, 5, 7)]
    return [s for s in steps if low <= s <= high]


class Axes:
    def __init__(self, series):
        depths = [p[0] for points in series.values() for p in points]
        self.depths = sorted(set(depths))
        self.x_low, self.x_high = min(depths), max(depths)
        low = min(p[2] for points in series.values() for p in points)
        high = max(p[3] for points in series.values() for p in points)
        self.y_low, self.y_high = low / 1.15, high * 1.15

    def x(self, depth):
        span = math.log(self.x_high / self.x_low) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(depth / self.x_low) / span

    def y(self, rate):
        share = math.log(rate / self.y_low) / math.log(self.y_high / self.y_low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def draw(self):
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for rate in ticks(self.y_low, self.y_high):
            y = self.y(rate)
            yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
            yield text(LEFT - 8, y + 4, f"{rate:g}", "end")
        for depth in self.depths:
            x = self.x(depth)
            yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#eee"/>'
            yield text(x, bottom + 18, f"{depth:,}", "middle")
        yield text((LEFT + right) / 2, bottom + 38, "tokens", "middle")


def text(x, y, words, anchor="start", colour="#333", size=12):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{html.escape(words)}</text>'
    )


def line_of(axes, points, colour, dash):
    path = " ".join(f"{axes.x(d):.1f},{axes.y(m):.1f}" for d, m, _, _ in points)
    yield (
        f'<polyline points="{path}" fill="none" stroke="{colour}" '
        f'stroke-width="2"{dash}/>'
    )
    for depth, median, low, high in points:
        x = axes.x(depth)
        yield (
            f'<line x1="{x:.1f}" y1="{axes.y(low):.1f}" x2="{x:.1f}" y2="{axes.y(high):.1f}" '
            f'stroke="{colour}"/>'
        )
        yield f'<circle cx="{x:.1f}" cy="{axes.y(median):.1f}" r="3.5" fill="{colour}"/>'


def labels(axes, series):
    """Engine names at the right end of their lines, moved apart where they would overlap."""
    wanted = sorted((axes.y(points[-1][1]), engine) for engine, points in series.items())
    at, places = -math.inf, {}
    for y, engine in wanted:
        at = places[engine] = max(y, at + 16)
    over = max(0, at - (HEIGHT - BOTTOM))
    return {engine: y - over for engine, y in places.items()}


def svg(run, rate):
    series = series_of(run, rate)
    if not series:
        sys.exit(f"bench/plot.py: no {rate} in the records")
    axes = Axes(series)
    places = labels(axes, series)
    first = run.first
    title = f"{TITLES[rate]}, tok/s: {first['model']}, {first['threads']} threads"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        text(LEFT, 22, title, size=15, colour="#000"),
        text(LEFT, 38, f"{first['time'][:10]}, commit {first['commit'][:12]}", colour="#777"),
        *axes.draw(),
    ]
    for (engine, points), colour in zip(series.items(), COLOURS * 4):
        colour, dash = ("#555", ' stroke-dasharray="6 4"') if engine == LIMIT else (colour, "")
        lines += line_of(axes, points, colour, dash)
        name = f"{engine}: {points[-1][1]:.1f}"
        lines.append(text(WIDTH - RIGHT + 12, places[engine] + 4, name, colour=colour))
    return "\n".join(lines + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=RATES)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    run = table.Run(table.load(args.file))
    rate = next((r for r in RATES[args.what] if run.depths(r)), RATES[args.what][0])
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(svg(run, rate), encoding="utf-8")


if __name__ == "__main__":
    main()
