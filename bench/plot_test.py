#!/usr/bin/env python3
"""plot.py draws each engine's medians, the limit, and nothing outside the picture."""

import unittest
import xml.etree.ElementTree

import plot
import table
import table_test

SVG = "{http://www.w3.org/2000/svg}"


class Plot(unittest.TestCase):
    def setUp(self):
        run = table.Run(list(table_test.records()))
        self.root = xml.etree.ElementTree.fromstring(plot.svg(run, "decode_tok_s"))

    def test_a_line_for_each_engine_and_the_limit(self):
        lines = self.root.findall(f"{SVG}polyline")
        self.assertEqual(len(lines), 4)
        words = " ".join(t.text for t in self.root.findall(f"{SVG}text"))
        self.assertIn("vericache, draft off: 5.0", words)
        self.assertIn(plot.LIMIT, words)

    def test_faster_is_higher_and_all_is_inside(self):
        points = {}
        for line in self.root.findall(f"{SVG}polyline"):
            at = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
            points[line.get("stroke")] = at
            for x, y in at:
                self.assertTrue(0 < x < plot.WIDTH and 0 < y < plot.HEIGHT)
        ours, off, on = (points[c] for c in plot.COLOURS[:3])
        self.assertLess(ours[0][1], off[0][1])  # y grows downwards
        self.assertLess(off[0][1], on[0][1])
        self.assertLess(on[1][1], off[1][1])  # at 8,192 flash attention is the faster one


if __name__ == "__main__":
    unittest.main()
