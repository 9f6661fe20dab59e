#!/usr/bin/env python3
"""Draws what `vericache batch --timeline` wrote as SVG. Standard library only.

    bench/longctx/timeline_svg.py TIMELINE.json -o OUT.svg [--from MS] [--to MS] [--title TEXT]

A row a request: above what it did in each pass (prefill, draft, verify, plain decoding), below
when its full KV were on their way from disk. The first row has the passes, one bar each; a
verification runs in the same pass as the others' drafts.
"""

import argparse
import html
import json
import math
import pathlib
import sys

WIDTH, LEFT, RIGHT, TOP = 1000, 96, 30, 64
ROW, BAR, FETCH_BAR, AXIS = 46, 22, 10, 40
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {"prefill": "#56B4E9", "draft": "#F0C04A", "verify": "#0072B2", "plain": "#009E73",
           "fetch": "#D55E00"}
PASSES, REQUESTS, FETCHES = 1, 2, 3


class Trace:
    """Events within [begin, end] microseconds, cut to it."""

    def __init__(self, events, begin=0.0, end=math.inf):
        self.names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        bars = [e for e in events if e["ph"] == "X"]
        if not bars:
            raise ValueError("the timeline holds no events")
        self.begin = begin
        self.end = min(end, max(e["ts"] + e["dur"] for e in bars))
        if self.end <= self.begin:
            raise ValueError("there are no events in that time")
        self.bars = [self.cut(e) for e in bars
                     if e["ts"] < self.end and e["ts"] + e["dur"] > self.begin]
        self.requests = sorted({e["tid"] for e in self.bars if e["pid"] != PASSES})

    def cut(self, event):
        first = max(event["ts"], self.begin)
        last = min(event["ts"] + event["dur"], self.end)
        return event | {"ts": first, "dur": last - first}


def tick_step(span):
    """A round number of which about eight fit."""
    rough = span / 8
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough)


def overlap(fetches, passes):
    """The share of all transfer time in which some pass ran."""
    total = sum(f["dur"] for f in fetches)
    beside = sum(max(0.0, min(f["ts"] + f["dur"], p["ts"] + p["dur"]) - max(f["ts"], p["ts"]))
                 for f in fetches for p in passes)
    return beside / total if total else 0.0


class Picture:
    def __init__(self, trace, title):
        self.trace, self.parts = trace, []
        self.height = TOP + ROW * (len(trace.requests) + 1) + AXIS
        self.row_of = {r: i + 1 for i, r in enumerate(trace.requests)}
        self.legend(title)
        self.axis()
        for event in trace.bars:
            self.event(event)

    def x(self, us):
        share = (us - self.trace.begin) / (self.trace.end - self.trace.begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def text(self, x, y, text, anchor="start", size=13):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
                          f'font-size="{size}">{html.escape(text)}</text>')

    def box(self, x, y, width, height, colour, title):
        self.parts.append(f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.4):.2f}" '
                          f'height="{height}" fill="{colour}"><title>{html.escape(title)}</title>'
                          "</rect>")

    def legend(self, title):
        self.text(LEFT, 22, title, size=15)
        x = LEFT
        used = {e["name"] for e in self.trace.bars if e["pid"] != PASSES}
        for name, colour in COLOURS.items():
            if name not in used:
                continue
            self.box(x, 36, 12, 12, colour, name)
            self.text(x + 17, 47, name)
            x += 32 + 8 * len(name)

    def axis(self):
        bottom = TOP + ROW * (len(self.trace.requests) + 1)
        step = tick_step(self.trace.end - self.trace.begin)
        for i in range(math.ceil(self.trace.begin / step), int(self.trace.end / step) + 1):
            x = self.x(i * step)
            self.parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" '
                              'stroke="#ddd"/>')
            self.text(x, bottom + 17, f"{i * step / 1e3:g}", "middle")
        self.text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, "milliseconds since the start", "middle")
        self.text(LEFT - 8, TOP + BAR - 5, "passes", "end")
        for request, row in self.row_of.items():
            name = self.trace.names.get(request, f"request {request}")
            self.text(LEFT - 8, TOP + row * ROW + BAR - 5, name[:12], "end")

    def event(self, event):
        args = ", ".join(f"{k} {v}" for k, v in event["args"].items())
        title = f"{event['name']}: {event['dur'] / 1e3:.2f} ms, {args}"
        left, width = self.x(event["ts"]), self.x(event["ts"] + event["dur"]) - self.x(event["ts"])
        if event["pid"] == PASSES:
            # A white gap between passes, where there is room for one.
            self.box(left, TOP, width - min(0.6, width / 4), BAR, "#999999", title)
            return
        y = TOP + self.row_of[event["tid"]] * ROW
        fetch = event["pid"] == FETCHES
        self.box(left, y + BAR + 2 if fetch else y, width if fetch else width - min(0.6, width / 4),
                 FETCH_BAR if fetch else BAR, COLOURS.get(event["name"], "#7F7F7F"), title)

    def svg(self):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}" '
                f'viewBox="0 0 {WIDTH} {self.height}" font-family="sans-serif">')
        return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *self.parts,
                          "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("timeline", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--from", dest="begin", type=float, default=0, metavar="MS")
    parser.add_argument("--to", dest="end", type=float, default=math.inf, metavar="MS")
    parser.add_argument("--title", default="vericache batch")
    args = parser.parse_args()
    try:
        trace = Trace(json.loads(args.timeline.read_text()), args.begin * 1e3, args.end * 1e3)
    except (OSError, ValueError) as error:
        sys.exit(f"{args.timeline}: {error}")
    args.output.write_text(Picture(trace, args.title).svg())
    by_lane = {lane: [e for e in trace.bars if e["pid"] == lane] for lane in (PASSES, FETCHES)}
    print(f"{len(trace.requests)} requests, {len(by_lane[PASSES])} passes, "
          f"{len(by_lane[FETCHES])} transfers, "
          f"{overlap(by_lane[FETCHES], by_lane[PASSES]):.0%} of their time beside a pass")


if __name__ == "__main__":
    main()
