#!/usr/bin/env python3
"""Draws what bench/prefix/run.py measured of one request as SVG: a panel a context.

    bench/prefix/prefix_plot.py bench/results/FILE.jsonl -o docs/plots/NAME.svg

Seconds to the last token over the link's rate, both logarithmic; a point is the median over the
rounds. Standard library only.
"""

import math
import statistics
import sys

import bench_path  # noqa: F401  (finds bench/plot.py)
import links
import names
import record_files
import report
from plot import COLOURS, text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 300, 60, 330, 44, 40
DRAWN = [n for n in names.ONE if n not in (names.AT_STORE, names.REMOTE)]


def points_of(cells, name):
    """[(bits a second, median seconds)]; recomputing hangs on no link: a level line."""
    found = [(links.bits_per_s(c.rate), statistics.median(c.values(name, report.total_s).values()))
             for c in cells if c.results(name)]
    if name == names.RECOMPUTE and found:
        return [(links.bits_per_s(c.rate), found[0][1]) for c in cells]
    return sorted(found)


def panel(cells, top):
    lines = {name: points_of(cells, name) for name in DRAWN}
    lines = {name: points for name, points in lines.items() if points}
    rates = sorted({links.bits_per_s(c.rate) for c in cells})
    values = [s for points in lines.values() for _, s in points]
    low, high = math.log10(min(values) * 0.8), math.log10(max(values) * 1.25)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    span = math.log10(rates[-1] / rates[0]) or 1

    def x_of(rate):
        return LEFT + math.log10(rate / rates[0]) / span * width

    def y_of(seconds):
        return top + TOP + (high - math.log10(seconds)) / (high - low) * height
    tokens = cells[0].first["num_tokens"]
    yield text(LEFT, top + 24, f"{cells[0].context}: seconds to {tokens} tokens", size=13,
               colour="#000")
    for cell in cells:
        x = x_of(links.bits_per_s(cell.rate))
        yield (f'<line x1="{x:.1f}" y1="{top + TOP}" x2="{x:.1f}" y2="{top + TOP + height}" '
               'stroke="#ddd"/>')
        yield text(x, top + HEIGHT - BOTTOM + 18, cell.rate, "middle", size=11)
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        yield text(LEFT - 8, y_of(10**exponent) + 4, f"{10**exponent:g}", "end", size=11)
        yield (f'<line x1="{LEFT}" y1="{y_of(10**exponent):.1f}" x2="{LEFT + width}" '
               f'y2="{y_of(10**exponent):.1f}" stroke="#ddd"/>')
    for i, (name, points) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x_of(rate):.1f},{y_of(s):.1f}" for rate, s in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for rate, s in points:
            yield f'<circle cx="{x_of(rate):.1f}" cy="{y_of(s):.1f}" r="3" fill="{colour}"/>'
        yield text(LEFT + width + 16, top + TOP + 12 + 18 * i, name, size=11, colour=colour)


def svg(records):
    records = sorted(records, key=lambda r: links.bits_per_s(r["rate"]))
    cells = [c for c in report.cells_of(records)
             if c.num_requests == 1 and any(c.results(n) for n in DRAWN)]
    if not cells:
        sys.exit("prefix_plot.py: the records hold no single request")
    contexts = [c for c in names.CONTEXTS if any(cell.context == c for cell in cells)]
    height = HEIGHT * len(contexts) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        text(16, 24, records[0]["model"], size=15, colour="#000"),
    ]
    for i, context in enumerate(contexts):
        lines += panel([c for c in cells if c.context == context], 30 + HEIGHT * i)
    return "\n".join(lines + ["</svg>"]) + "\n"


if __name__ == "__main__":
    record_files.plot_main(__doc__.split("\n", 1)[0], svg)
