#!/usr/bin/env python3
"""Draws records of bench/serving as SVG. Standard library only.

    bench/serving/serving_plot.py bench/results/serving-traffic-MODEL.jsonl -o docs/plots/NAME.svg
    bench/serving/serving_plot.py bench/results/serving-agent-MODEL.jsonl -o docs/plots/NAME.svg

Traffic: for each load and phase every request's time to the first token (a dot), and the median
(a line). Agent: the time that has passed at the end of each turn. Time to the left is better.
"""

import argparse
import math
import pathlib
import statistics
import sys

import bench_path  # noqa: F401  (finds bench/plot.py)
import agent_trace
import report
import servers
import sse
import table
from plot import COLOURS, text

WIDTH, LEFT, RIGHT, TOP = 860, 250, 120, 60
ROW, HEAD = 20, 34
PALETTE = {servers.OURS: COLOURS[1], servers.PLAIN: COLOURS[2], servers.STORE: COLOURS[3],
           servers.LLAMA: COLOURS[0], servers.LLAMA_FLASH_OFF: COLOURS[5],
           servers.LLAMA_DISK: COLOURS[4], servers.LLAMA_LOOKUP: COLOURS[6]}


class Scale:
    """Logarithmic seconds from left to right."""

    def __init__(self, values):
        self.low, self.high = min(values) / 1.1, max(values) * 1.1

    def x(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def lines(self, top, bottom):
        for tick in (m * 10.0**e for e in range(-3, 5) for m in (1, 2, 5)):
            if self.low <= tick <= self.high:
                x = self.x(tick)
                yield (f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" '
                       f'stroke="#e4e4e4"/>')
                yield text(x, bottom + 14, f"{tick:g} s", "middle", size=10)


def row_of(scale, label, values, y, colour):
    """Dots, and the median as a line."""
    yield text(LEFT - 10, y + 4, label, "end", size=11)
    for value in values:
        yield (f'<circle cx="{scale.x(value):.1f}" cy="{y}" r="3.5" fill="{colour}" '
               f'fill-opacity="0.55"/>')
    middle = sse.percentile(values, 0.5)
    x = scale.x(middle)
    yield (f'<line x1="{x:.1f}" y1="{y - 8}" x2="{x:.1f}" y2="{y + 8}" stroke="{colour}" '
           f'stroke-width="3"/>')
    yield text(WIDTH - RIGHT + 10, y + 4, f"{middle:,.2f} s", size=11)


def traffic_panels(found):
    """[(title, [(label, seconds, colour)])]"""
    for load_name, variants in report.cells_of(found):
        for phase in ("cold", "warm"):
            rows = []
            for name, recorded in variants.items():
                ttft = report.of_phase(recorded, phase)["ttft_ms"]
                rows.append((name, [t / 1000 for t in ttft], PALETTE[name]))
            yield f"{report.load_words(load_name)}, {phase} prefixes", rows


def traffic_lines(found):
    panels = list(traffic_panels(found))
    scale = Scale([v for _, rows in panels for _, values, _ in rows for v in values])
    y, lines = TOP, []
    for title, rows in panels:
        lines.append(text(LEFT, y + 18, title, size=13, colour="#000"))
        bottom = y + HEAD + len(rows) * ROW
        lines += scale.lines(y + HEAD - 8, bottom)
        for i, (label, values, colour) in enumerate(rows):
            lines += row_of(scale, label, values, y + HEAD + i * ROW + 6, colour)
        y = bottom + 26
    return lines, y


def ends_of(recorded):
    """Seconds from the start of the conversation to the end of each turn, median of repeats."""
    turns = zip(*(one["requests"] for one in recorded))
    return [statistics.median((r["start_ms"] + r["end_to_end_ms"]) / 1000 for r in turn)
            for turn in turns]


def agent_lines(found):
    """Marks at the ends of the turns on a line of time, the number of the turn in each."""
    rows = {}
    for (name, start), recorded in report.conversations(found).items():
        label = f"{name}, {start}" if name in servers.ON_DISK else name
        rows[label] = (ends_of(recorded), PALETTE[name], start)
    most = max(ends[-1] for ends, _, _ in rows.values())
    width, y, lines = WIDTH - LEFT - RIGHT, TOP + 10, []
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000) if most / s <= 10)
    bottom = y + len(rows) * 34
    for tick in range(0, int(most) + 1, step):
        x = LEFT + width * tick / most
        lines.append(f'<line x1="{x:.1f}" y1="{y - 6}" x2="{x:.1f}" y2="{bottom}" '
                     f'stroke="#e4e4e4"/>')
        lines.append(text(x, bottom + 14, f"{tick} s", "middle", size=10))
    for label, (ends, colour, start) in rows.items():
        lines.append(text(LEFT - 10, y + 15, label, "end", size=11))
        before, faded = 0.0, start == agent_trace.AGAIN
        for number, end in enumerate(ends):
            x, to = (LEFT + width * t / most for t in (before, end))
            shade = (0.9 if number % 2 == 0 else 0.6) * (0.7 if faded else 1)
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{max(to - x, 0.5):.1f}" height="22" '
                         f'fill="{colour}" fill-opacity="{shade:.2f}"/>')
            before = end
        lines.append(text(LEFT + width * ends[-1] / most + 6, y + 15, f"{ends[-1]:,.1f} s",
                          size=11))
        y += 34
    return lines, bottom + 26


def svg(found):
    if not found:
        sys.exit("serving_plot.py: no records")
    first = found[0]
    if first["benchmark"] == "agent":
        lines, height = agent_lines(found)
        what = "ten turns of a coding agent, each a block"
    else:
        lines, height = traffic_lines(found)
        what = "time to the first token of each request; line and figure: the median"
    title = f"{first['model']}, {first['threads']} threads: {what}"
    second = f"{first['time'][:10]}, commit {first['commit'][:12]}"
    if first["label"]:
        second += f", {first['label']}"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        text(16, 24, title, size=15, colour="#000"),
        text(16, 42, second, size=11, colour="#777"),
    ]
    return "\n".join(head + lines + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    made = svg(table.load(args.file))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
