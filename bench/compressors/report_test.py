#!/usr/bin/env python3
"""report.py and runs_plot.py on made-up records: figures, --check, labels that do not collide."""

import copy
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import report
import runs_plot

HERE = pathlib.Path(__file__).resolve().parent
SVG = "{http://www.w3.org/2000/svg}"
SPECS = {
    "verify:0.25+int4": (0.09, 36.6),
    "snapkv:0.25+int4": (0.09, 5.5),
    "kvzip:0.25+int4": (0.091, 36.0),
    "h2o:0.25+int4": (0.089, 35.5),
    "int4": (0.32, 53.8),
    "int8": (0.57, 65.0),
    "off": (1.0, 1.0),
}


def record():
    specs = []
    for name, (kept, run) in SPECS.items():
        summary = {
            "num_prompts": 2,
            "num_rounds": 40,
            "kept_fraction": kept,
            "read_fraction": kept / 2,
            "mean_run_length": run,
            "median_run_length": run - 1,
            "p10_run_length": 1,
            "agreement": 0.978,
            "mean_kl": 0.0123,
        }
        decoded = {"first_divergence_median": 61.0, "token_f1": 0.5, "verified_tok_s": 12.3}
        prompts = [
            {"custom_id": f"{kind}-{i}", "kind": kind, "prompt_tokens": 4000 + i}
            | {"answer_tokens": 200, "runs": [1, 2]}
            for kind in ("code", "prose")
            for i in range(2)
        ]
        by_kind = {"code": summary | decoded, "prose": dict(summary)}
        specs.append({"spec": name, "by_kind": by_kind, "prompts": prompts})
    return {"model": "m", "draft_len": 64, "specs": specs}


class Tables(unittest.TestCase):
    def test_a_row_shows_what_was_measured(self):
        rows = report.runs_table(record(), "code").split("\n")
        want = "| `verify:0.25+int4` | 9.0% | 4.5% | 36.6 | 36 | 1 | 0.978 | 0.0123 | 61 |"
        self.assertIn(want + " 0.50 | 12.3 |", rows)
        self.assertEqual(len(rows), 2 + len(SPECS))

    def test_columns_that_nothing_was_measured_for_are_left_out(self):
        head = report.runs_table(record(), "prose").split("\n")[0]
        self.assertNotIn("tok/s", head)
        some = record()
        some["specs"][0]["by_kind"]["prose"]["verified_tok_s"] = 9.0
        rows = report.runs_table(some, "prose").split("\n")
        self.assertTrue(rows[2].endswith(" 9.0 |") and rows[3].endswith(" - |"))

    def test_the_caption_says_what_was_run(self):
        want = "**code**: m, 2 prompts of 4,000 to 4,001 tokens, answers of 200 (median)"
        self.assertIn(want, report.caption(record(), "code"))

    def test_workloads_are_chosen_and_records_told_apart(self):
        self.assertNotIn("**code**", report.tables(record(), ["prose"]))
        counts = {"num_prompts": 2, "identical": {"full": 2, "unverified": 1}}
        counts["right"] = {"full": 2, "unverified": 1}
        self.assertIn("| int2 | 2/2 (100%) | 1/2 (50%)", report.tables({"bfcl": {"int2": counts}}))
        row = {"kind": "tool", "spec": "int4", "text": "full", "num_prompts": 3, "identical": 3}
        row |= {"token_f1": 1.0, "parses": 2, "same_meaning": 2, "num_checks": 0, "passes": 0}
        want = "| tool | full KV | 1.00 | 3/3 | 2/3 | 2/3 | - |"
        self.assertIn(want, report.tables({"exact": [row]}))


class Check(unittest.TestCase):
    EMPTY = "before\n<!-- compressors code: r.json -->\n<!-- end -->\nafter\n"

    def run_report(self, text, *options):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "r.json").write_text(json.dumps(record()))
            (folder / "doc.md").write_text(text)
            done = subprocess.run(
                [sys.executable, str(HERE / "report.py"), "--results", str(folder)]
                + [*options, str(folder / "doc.md")],
                check=False,
                capture_output=True,
                text=True,
            )
            return done, (folder / "doc.md").read_text()

    def test_update_then_check(self):
        done, text = self.run_report(self.EMPTY, "--update")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| `int4` | 32.0%", text)
        self.assertTrue(text.startswith("before\n") and text.endswith("<!-- end -->\nafter\n"))
        self.assertEqual(self.run_report(text, "--check")[0].returncode, 0)

    def test_check_fails_on_a_changed_number_a_missing_table_and_a_broken_marker(self):
        _, good = self.run_report(self.EMPTY, "--update")
        for bad, word in (
            (good.replace("53.8", "53.9"), "-| `int4` | 32.0% | 16.0% | 53.9"),
            (self.EMPTY, "+| `int4`"),
            (good.replace("<!-- end -->", ""), "holds no table"),
            (good + "<!-- compressors: r.json -->\n", "without its end"),
            (good.replace("code:", "cod:"), "nothing to show"),
        ):
            done, text = self.run_report(bad, "--check")
            self.assertNotEqual(done.returncode, 0, bad)
            self.assertIn(word, done.stdout + done.stderr)
            self.assertEqual(text, bad)  # a check writes nothing


class Plot(unittest.TestCase):
    def setUp(self):
        self.root = xml.etree.ElementTree.fromstring(runs_plot.svg([record()]))

    def words(self):
        return [t.text for t in self.root.findall(f"{SVG}text")]

    def test_a_panel_a_workload_and_a_point_and_a_label_a_spec(self):
        drawn = len(SPECS) - 1  # `off` drafts nothing
        self.assertEqual(len(self.root.findall(f"{SVG}circle")), 2 * drawn)
        for name in SPECS:
            self.assertEqual(self.words().count(name), 0 if name == "off" else 2)
        titles = [w for w in self.words() if w.startswith(("code: m", "prose: m"))]
        self.assertEqual(len(titles), 2)

    def test_longer_is_higher_larger_is_further_right_and_all_is_inside(self):
        height = float(self.root.get("height"))
        spots = [(float(c.get("cx")), float(c.get("cy"))) for c in self.root.iter(f"{SVG}circle")]
        for x, y in spots:
            self.assertTrue(runs_plot.LEFT < x < runs_plot.WIDTH and 0 < y < height)
        points = [(n, *SPECS[n]) for n in SPECS if n != "off"]
        axes = runs_plot.Axes(points, 0, 65)
        self.assertLess(axes.x(0.09), axes.x(0.32))
        self.assertLess(axes.y(53.8), axes.y(5.5))  # y grows downwards

    def test_labels_lie_on_no_other_label_no_point_and_no_limit(self):
        points = [(n, *SPECS[n]) for n in SPECS if n != "off"]
        placed = runs_plot.place_labels(points, runs_plot.Axes(points, 0, 65), 65)
        self.assertEqual(len(placed), len(points))
        limit_y = runs_plot.Axes(points, 0, 65).y(65)
        for (_, _, _, a), (_, x, y, b) in itertools.permutations(placed, 2):
            self.assertFalse(runs_plot.overlap(a, b))
            self.assertFalse(runs_plot.overlap(a, (x - 3, y - 3, x + 3, y + 3)))
            self.assertFalse(a[1] < limit_y < a[3])

    def test_a_crowd_without_room_is_refused(self):
        crowd = copy.deepcopy(record())
        crowd["specs"] = [crowd["specs"][0] | {"spec": f"snapkv:0.{i:04}+int4"} for i in range(400)]
        with self.assertRaises(SystemExit):
            runs_plot.svg([crowd])

    def test_families_share_a_colour(self):
        self.assertEqual(runs_plot.family("verify:0.25+int4"), runs_plot.family("verify:0.1"))
        self.assertEqual(runs_plot.family("int4"), runs_plot.family("k8v4"))
        self.assertNotEqual(runs_plot.family("h2o:0.25"), runs_plot.family("int4"))


if __name__ == "__main__":
    unittest.main()
