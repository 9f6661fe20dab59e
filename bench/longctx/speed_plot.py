#!/usr/bin/env python3
"""Draws the speeds of bench/longctx/run.py as SVG: a panel a context and number of requests.

    bench/longctx/speed_plot.py bench/results/FILE.jsonl -o docs/plots/NAME.svg

A bar is the median over the rounds, the line on it the spread. Standard library only.
"""

import statistics
import sys

import bench_path  # noqa: F401  (finds bench/plot.py)
import record_files
import report
from names import base_of, parts_of
from plot import COLOURS, text

WIDTH, LEFT, RIGHT = 860, 330, 70
BAR, GAP, HEAD, TOP = 15, 7, 34, 36


def colour_of(name):
    """By where the KV is: in RAM, another engine's, or each budget."""
    if name.startswith("llama.cpp"):
        return COLOURS[5]
    parts = parts_of(name)
    return {None: COLOURS[6], 8: COLOURS[1], 4: COLOURS[2]}.get(parts, COLOURS[3])


def label_of(cell, name):
    parts = parts_of(name)
    if parts is None:
        return name
    return f"{base_of(name)}, {cell.budget_bytes(parts) / report.MIB:.0f} MiB (1/{parts})"


def bars_of(cell):
    """[(name, median, lowest, highest)]"""
    found = [(name, cell.speeds(name)) for name in cell.names]
    return [(n, statistics.median(v), min(v), max(v)) for n, v in found if v]


def panel(cell, top):
    bars = bars_of(cell)
    scale = (WIDTH - LEFT - RIGHT) / max(high for _, _, _, high in bars)
    yield text(LEFT, top + 20, f"{cell.where}: tok/s", size=13, colour="#000")
    y = top + HEAD
    for name, median, low, high in bars:
        middle = y + BAR / 2
        yield text(LEFT - 8, middle + 4, label_of(cell, name), "end", size=11)
        yield (
            f'<rect x="{LEFT}" y="{y}" width="{median * scale:.1f}" height="{BAR}" '
            f'fill="{colour_of(name)}"/>'
        )
        yield (
            f'<line x1="{LEFT + low * scale:.1f}" y1="{middle}" x2="{LEFT + high * scale:.1f}" '
            f'y2="{middle}" stroke="#000"/>'
        )
        yield text(LEFT + high * scale + 6, middle + 4, f"{median:.1f}", size=11)
        y += BAR + GAP


def svg(records):
    cells = [c for c in report.cells_of(records) if bars_of(c)]
    if not cells:
        sys.exit("speed_plot.py: the records hold no speed")
    heights = [HEAD + len(bars_of(c)) * (BAR + GAP) + 12 for c in cells]
    height = TOP + sum(heights) + 8
    first = records[0]
    title = f"{first['model']}, {first['threads']} threads, answers of {first['num_tokens']} tokens"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        text(16, 24, title, size=15, colour="#000"),
    ]
    if first["label"]:
        lines.append(text(WIDTH - 16, 24, first["label"], "end", size=11, colour="#777"))
    top = TOP
    for cell, size in zip(cells, heights):
        lines += panel(cell, top)
        top += size
    return "\n".join(lines + ["</svg>"]) + "\n"


if __name__ == "__main__":
    record_files.plot_main(__doc__.split("\n", 1)[0], svg)
