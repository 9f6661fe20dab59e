#!/usr/bin/env python3
"""Tests of bench/mha on a false command and made-up records: what runs, and figures by hand."""

import contextlib
import io
import json
import os
import pathlib
import stat
import sys
import tempfile
import unittest
from unittest import mock

import report
import run

# Stands in for `vericache bench` and mha_model: notes its words, answers with made-up figures.
FALSE = """#!/usr/bin/env python3
import json, os, pathlib, sys
words = sys.argv[1:]
if words[0] != "bench":
    pathlib.Path(words[0]).write_text("model")
    sys.exit()
with open(os.environ["FALSE_LOG"], "a") as log:
    log.write(json.dumps(words) + "\\n")
flag = lambda name: words[words.index(name) + 1]
depth = flag("--depths")
out = {"read_gbps": 20.0, "cpu_wait_share": 0.0, "weight_bytes": 100, "kv_bytes_per_token": 1024}
spread = {"read_gbps": [19.0, 21.0]}
def add(name, value):
    out[name], spread[name] = value, [value / 2, value * 2]
add("replay_plain_tps_" + depth, 10.0)
for path in map(pathlib.Path, flag("--replay").split(",")):
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    speedup = len(rounds) / 2
    for what, value in (("tps", 10 * speedup), ("speedup", speedup), ("draft_s", 1.0),
                        ("verify_s", 3.0)):
        add("replay_" + what + "_" + depth + "_" + path.stem, value)
if os.environ.get("FALSE_NULL"):
    out["replay_plain_tps_" + depth] = None
out["spread"] = spread
print(json.dumps(out))
"""


def line(drafted, accepted):
    return json.dumps({"drafted": drafted, "accepted": accepted, "mode": "draft-kv"})


class Shortened(unittest.TestCase):
    def test_keeps_whole_rounds(self):
        lines = [line(8, 8), line(8, 3), line(8, 0), line(8, 8)]
        self.assertEqual(run.shortened(lines, 1), lines[:1])
        self.assertEqual(run.shortened(lines, 9), lines[:1])
        self.assertEqual(run.shortened(lines, 10), lines[:2])
        self.assertEqual(run.shortened(lines, 14), lines[:3])
        self.assertEqual(run.shortened(lines, 999), lines)

    def test_run_length(self):
        self.assertEqual(run.run_length([line(8, 8), line(8, 0)]), 5.0)


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.command = self.folder / "vericache"
        self.command.write_text(FALSE)
        self.command.chmod(self.command.stat().st_mode | stat.S_IXUSR)
        self.output, self.log = self.folder / "out.jsonl", self.folder / "log"
        models = self.folder / "cache/vericache/models"
        models.mkdir(parents=True)
        (models / "smollm2-135m.gguf").write_text("model")
        for draft in ("verify-0.25+int4", "int4"):
            traces = self.folder / "traces" / draft
            traces.mkdir(parents=True)
            for kind in ("code", "prose"):
                for length in (16, 32):
                    lines = [line(length, length)] * (200 // length)
                    (traces / f"{kind}-{length}.jsonl").write_text("\n".join(lines) + "\n")

    def measure(self, *words, **env):
        argv = ["run.py", "--vericache", str(self.command), "--make-model", str(self.command)]
        argv += ["--busy-ok", "-o", str(self.output), "--draft-lens", "16,32"]
        argv += ["--traces", str(self.folder / "traces"), "--drafts", "verify:0.25+int4", *words]
        env |= {"FALSE_LOG": str(self.log), "XDG_CACHE_HOME": str(self.folder / "cache")}
        with (mock.patch.object(sys, "argv", argv), mock.patch.dict(os.environ, env),
              contextlib.redirect_stdout(io.StringIO())):
            run.main()
        return run.records_of(self.output)

    def calls(self):
        return [json.loads(text) for text in self.log.read_text().splitlines()]

    def test_a_record_a_shape_and_depth(self):
        records = self.measure("--depths", "8k,16k")
        self.assertEqual([(r["shape"], r["depth"]) for r in records],
                         [(s, d) for s in run.SHAPES for d in (8192, 16384)])
        for record in records:
            self.assertEqual(list(record["traces"]), ["code-16", "code-32", "prose-16", "prose-32"])
            self.assertEqual(record["full_bytes"], 1024 * record["depth"])
            self.assertEqual(record["plain_tok_s"], [10.0, 5.0, 20.0])
            for trace in record["traces"].values():
                self.assertGreaterEqual(trace["tokens"], 128)
        # A context beyond the trained one; the random model has a long one.
        scales = [c[c.index("--rope-scale") + 1] if "--rope-scale" in c else None
                  for c in self.calls()]
        self.assertEqual(scales, [None, None, "2", "4"])

    def test_goes_on_after_the_last_record(self):
        self.measure("--shapes", "mha", "--depths", "8k")
        self.assertEqual(len(self.calls()), 1)
        self.assertEqual(len(self.measure("--shapes", "mha", "--depths", "8k,16k")), 2)
        self.assertEqual(len(self.calls()), 2)
        with self.assertRaisesRegex(SystemExit, "other settings"):
            self.measure("--shapes", "mha", "--depths", "8k", "--tokens", "64")

    def test_a_record_a_draft(self):
        self.measure("--shapes", "mha", "--depths", "8k")
        records = self.measure("--shapes", "mha", "--depths", "8k", "--drafts",
                               "int4,verify:0.25+int4")
        self.assertEqual([r["draft"] for r in records], ["verify:0.25+int4", "int4"])
        self.assertEqual([c[c.index("--replay-draft") + 1] for c in self.calls()],
                         ["verify:0.25+int4", "int4"])

    def test_what_gives_no_record(self):
        with self.assertRaisesRegex(SystemExit, "no trace at"):
            self.measure("--kinds", "verse")
        with self.assertRaisesRegex(SystemExit, "there is no 9k"):
            self.measure("--depths", "9k")
        with self.assertRaisesRegex(SystemExit, "fit into the context"):
            self.measure("--shapes", "mha", FALSE_NULL="1")
        self.assertEqual(run.records_of(self.output), [])


def record(shape="mha", depth=16384, **speedups):
    trace = {"run_length": 12.5, "tokens": 125, "tok_s": [20.0, 19.0, 21.0], "draft_s": 1.0,
             "verify_s": 3.0}
    return {
        "time": "t", "commit": "c" * 40, "uncommitted_changes": False, "cpu": "x",
        "compiler": "gcc", "label": "", "threads": 2, "tokens": 128, "draft": "int4",
        "kinds": ["prose"], "draft_lens": ["8", "16"], "repeats": 3, "shape": shape,
        "depth": depth, "full_bytes": 3 << 20, "plain_tok_s": [10.0, 9.0, 11.0],
        "others_cpu_share": 0.02,
        "traces": {name.replace("_", "-"): trace | {"speedup": value}
                   for name, value in speedups.items()},
    }


class Report(unittest.TestCase):
    RECORD = record(prose_8=[1.5, 1.4, 1.6], prose_16=[2.0, 1.9, 2.2])

    def test_the_best_draft_length_stands_in_the_table(self):
        made = report.main_table([self.RECORD])
        self.assertIn("| mha | 16,384 | 3 | `int4` | prose | 10.0 (9.0-11.0) | 16 | 12.5 | "
                      "20.0 (19.0-21.0) | 2.00 (1.90-2.20) | >= 1.7 |", made)
        lengths = report.length_table([self.RECORD])
        self.assertIn("| mha 16,384 | `int4` | prose | 1.50 (1.40-1.60) | 2.00 (1.90-2.20) | 25% |",
                      lengths)

    def test_the_caption_says_what_is_not_real(self):
        caption = report.caption([self.RECORD | {"label": "Quick look"}])
        for words in ("random weights", "replayed from traces", "synthetic", "**Quick look.**"):
            self.assertIn(words, caption)

    def test_documents_are_filled_and_checked(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "r.jsonl").write_text(json.dumps(self.RECORD) + "\n")
            empty = "a\n<!-- mha: r.jsonl -->\n<!-- end -->\nb\n"
            filled = report.filled(empty, path)
            self.assertIn("2.00 (1.90-2.20)", filled)
            self.assertEqual(report.filled(filled, path), filled)
            self.assertNotEqual(report.filled(filled.replace("2.00", "3.00"), path),
                                filled.replace("2.00", "3.00"))
            with self.assertRaises(SystemExit):
                report.filled("<!-- mha: r.jsonl -->\n", path)


if __name__ == "__main__":
    unittest.main()
