#!/usr/bin/env python3
"""timeline_svg.py draws every event in its row, in the time asked for, and counts overlap."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import timeline_svg

SVG = "{http://www.w3.org/2000/svg}"


def event(name, pid, tid, ts, dur, **args):
    return {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


EVENTS = [
    {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "passes"}},
    {"name": "thread_name", "ph": "M", "pid": 2, "tid": 1, "args": {"name": "<one>"}},
    event("draft 0, verify 1", 1, 0, 0, 1000, rows=5),
    event("draft", 2, 1, 0, 1000, rows=1),
    event("verify", 2, 2, 0, 1000, rows=4, accepted=3),
    event("fetch", 3, 1, 500, 1000, bytes=4096),
    event("verify 0", 1, 0, 1250, 750, rows=4),
    event("verify", 2, 1, 1250, 750, rows=4, accepted=1),
]


class TimelineSvg(unittest.TestCase):
    def draw(self, *bounds):
        picture = timeline_svg.Picture(timeline_svg.Trace(EVENTS, *bounds), "title & more")
        return xml.etree.ElementTree.fromstring(picture.svg())

    def bars(self, root):
        """Bars with their titles; the legend's squares have no numbers in theirs."""
        return [(r.find(f"{SVG}title").text, r) for r in root.findall(f"{SVG}rect")
                if r.find(f"{SVG}title") is not None and "ms" in r.find(f"{SVG}title").text]

    def test_a_bar_for_each_event_inside_the_picture(self):
        root = self.draw()
        bars = self.bars(root)
        self.assertEqual(len(bars), 6)
        self.assertIn("fetch: 1.00 ms, bytes 4096", [title for title, _ in bars])
        for _, bar in bars:
            self.assertGreaterEqual(float(bar.get("x")), timeline_svg.LEFT)
            self.assertLessEqual(float(bar.get("x")) + float(bar.get("width")),
                                 timeline_svg.WIDTH - timeline_svg.RIGHT + 0.5)
        texts = [t.text for t in root.findall(f"{SVG}text")]
        for text in ("title & more", "passes", "<one>", "request 2", "draft", "verify", "fetch"):
            self.assertIn(text, texts)

    def test_requests_have_rows_of_their_own_and_fetches_lie_below(self):
        at = {}
        for title, bar in self.bars(self.draw()):
            at.setdefault(title.split(":")[0], []).append(float(bar.get("y")))
        self.assertGreater(at["fetch"][0], at["draft"][0])
        self.assertEqual(sorted(at["verify"])[0], at["draft"][0])
        self.assertGreater(sorted(at["verify"])[1], at["fetch"][0])

    def test_a_window_cuts(self):
        titles = [title for title, _ in self.bars(self.draw(1100, 1400))]
        self.assertEqual(sorted(titles), ["fetch: 0.30 ms, bytes 4096",
                                          "verify 0: 0.15 ms, rows 4",
                                          "verify: 0.15 ms, rows 4, accepted 1"])
        with self.assertRaises(ValueError):
            timeline_svg.Trace(EVENTS, 5000, 6000)

    def test_overlap_is_the_share_beside_a_pass(self):
        trace = timeline_svg.Trace(EVENTS)
        passes = [e for e in trace.bars if e["pid"] == 1]
        fetches = [e for e in trace.bars if e["pid"] == 3]
        self.assertAlmostEqual(timeline_svg.overlap(fetches, passes), 0.75)
        self.assertEqual(timeline_svg.overlap([], passes), 0)

    def test_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "t.json").write_text(json.dumps(EVENTS))
            done = subprocess.run(
                [sys.executable, timeline_svg.__file__, folder / "t.json", "-o", folder / "o.svg"],
                check=True, capture_output=True, text=True)
            self.assertEqual(done.stdout, "2 requests, 2 passes, 1 transfers, 75% of their time "
                                          "beside a pass\n")
            self.assertTrue((folder / "o.svg").read_text().startswith("<svg"))


if __name__ == "__main__":
    unittest.main()
