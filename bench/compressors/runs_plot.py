#!/usr/bin/env python3
"""Draws run length over kept_fraction as SVG, a point for each draft KV, a panel a workload.

    bench/compressors/runs_plot.py bench/results/FILE.json... -o docs/plots/NAME.svg

Both axes are logarithmic: equal steps are equal ratios. Up and to the left is better. A label is
put where it covers no point and no other label; a line leads to it where it is not beside its
point.
"""

import argparse
import itertools
import math
import pathlib
import re
import sys

import report
import table_path  # noqa: F401  (finds bench/plot.py)
from plot import COLOURS, text

WIDTH, PANEL_HEIGHT = 860, 330
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 66, 48
LABEL_SIZE, LABEL_HEIGHT, CHARACTER_WIDTH = 11, 13, 6.3
RADIUS = 4
CODEC = re.compile(r"f16|int\d|k.+v.+|kivi\d|rot\d|rotatekv\d|tq\d|kvquant\d")
# Where what keeps no bytes at all (n-gram lookup) stands on a logarithmic axis.
LEAST_KEPT = 0.01
KEPT_TICKS = [0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0]
RUN_TICKS = [1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 65, 100, 150, 257]


class Axes:
    """Of one panel, whose upper edge is at `top`."""

    def __init__(self, points, top, limit):
        self.low_y, self.high_y = top + PANEL_HEIGHT - BOTTOM, top + TOP
        kept = [x for _, x, _ in points]
        runs = [y for _, _, y in points] + [limit]
        self.x_low, self.x_high = min(kept) / 1.3, min(max(kept) * 1.3, 1.1)
        self.y_low, self.y_high = min(runs) / 1.25, max(runs) * 1.1

    def x(self, kept):
        share = math.log(kept / self.x_low) / math.log(self.x_high / self.x_low)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def y(self, run):
        share = math.log(run / self.y_low) / math.log(self.y_high / self.y_low)
        return self.low_y - (self.low_y - self.high_y) * share

    def draw(self, limit):
        right = WIDTH - RIGHT
        for run in (t for t in RUN_TICKS if self.y_low <= t <= self.y_high):
            y = self.y(run)
            yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
            yield text(LEFT - 8, y + 4, f"{run}", "end")
        for kept in (t for t in KEPT_TICKS if self.x_low <= t <= self.x_high):
            x = self.x(kept)
            yield (
                f'<line x1="{x:.1f}" y1="{self.high_y:.1f}" x2="{x:.1f}" y2="{self.low_y:.1f}" '
                f'stroke="#eee"/>'
            )
            yield text(x, self.low_y + 17, f"{kept:.0%}", "middle")
        y = self.y(limit)
        yield (
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#555" '
            f'stroke-dasharray="6 4"/>'
        )


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def places(x, y, width):
    """Boxes for a label, the nearest first: (left, top, right, bottom)."""
    for distance in range(7, 140, 6):
        for dx, dy in ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)):
            left = x + dx * distance - (width if dx < 0 else width / 2 if dx == 0 else 0)
            middle = y + dy * (distance + LABEL_HEIGHT / 3)
            yield left, middle - LABEL_HEIGHT / 2, left + width, middle + LABEL_HEIGHT / 2


def place_labels(points, axes, limit):
    """[(name, x, y, box)]; boxes lie inside the panel, and on nothing, as long as there is room."""
    spots = [(name, axes.x(kept), axes.y(run)) for name, kept, run in points]
    taken = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for _, x, y in spots]
    limit_y = axes.y(limit)
    taken.append((LEFT, limit_y - 1, WIDTH, limit_y + 1))
    panel = (LEFT + 2, axes.high_y - 18, WIDTH - RIGHT - 2, axes.low_y - 2)
    placed = []
    # The crowded ones first: they have the fewest places.
    crowd = {name: sum(math.hypot(x - a, y - b) < 90 for _, a, b in spots) for name, x, y in spots}
    for name, x, y in sorted(spots, key=lambda spot: -crowd[spot[0]]):
        width = CHARACTER_WIDTH * len(name)
        boxes = [
            box
            for box in places(x, y, width)
            if panel[0] <= box[0] and box[2] <= panel[2]
            and panel[1] <= box[1] and box[3] <= panel[3]
        ]
        free = (box for box in boxes if not any(overlap(box, other) for other in taken))
        if (box := next(free, None)) is None:
            sys.exit(f"runs_plot.py: no room for the label of {name}; plot fewer specs")
        taken.append(box)
        placed.append((name, x, y, box))
    return placed


def family(name):
    """What shares a colour: the selector; codecs that keep all tokens are one family."""
    return "codec alone" if CODEC.fullmatch(name) else re.split("[:,+]", name)[0]


def panel(title, points, top, limit, colours):
    axes = Axes(points, top, limit)
    yield text(LEFT, axes.high_y - 26, title, size=13, colour="#000")
    yield from axes.draw(limit)
    for name, x, y, box in place_labels(points, axes, limit):
        colour = colours[family(name)]
        near_x = min(max(x, box[0]), box[2])
        near_y = min(max(y, box[1] + 3), box[3] - 3)
        if math.hypot(near_x - x, near_y - y) > 16:
            yield (
                f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{near_x:.1f}" y2="{near_y:.1f}" '
                f'stroke="{colour}" stroke-opacity="0.5"/>'
            )
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{colour}"/>'
        yield text(box[0], box[3] - 3, name, colour=colour, size=LABEL_SIZE)
    yield text(WIDTH - RIGHT, axes.low_y + 34, "draft KV, share of full KV's bytes", "end")


def panels_of(records):
    """[(kind, record, points)]; `off` drafts nothing and is no point."""
    found = []
    for record, kind in ((r, k) for r in records for k in report.kinds_of(r)):
        points = [
            (name, max(s["kept_fraction"], LEAST_KEPT), s["mean_run_length"])
            for name, s in report.summaries(record, kind)
            if name != "off"
        ]
        if points:
            found.append((kind, record, points))
    return found


def svg(records):
    panels = panels_of(records)
    if not panels:
        sys.exit("runs_plot.py: the records hold no draft KV")
    families = dict.fromkeys(family(name) for _, _, points in panels for name, _, _ in points)
    colours = dict(zip(families, itertools.cycle(COLOURS)))
    height = 36 + PANEL_HEIGHT * len(panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        text(LEFT, 24, "Tokens a round emits, mean", size=15, colour="#000"),
    ]
    for i, (kind, record, points) in enumerate(panels):
        prompts = [p for p in record["specs"][0]["prompts"] if p["kind"] == kind]
        tokens = sorted(p["prompt_tokens"] for p in prompts)
        title = (
            f"{kind}: {record['model']}, {len(prompts)} prompts of about "
            f"{tokens[len(tokens) // 2]:,} tokens, drafts of at most {record['draft_len']} (dashed)"
        )
        limit = record["draft_len"] + 1
        lines += panel(title, points, 36 + i * PANEL_HEIGHT - 24, limit, colours)
    return "\n".join(lines + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    made = svg([report.load(path) for path in args.files])
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
