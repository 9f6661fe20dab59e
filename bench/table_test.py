#!/usr/bin/env python3
"""table.py: medians and ratios of made-up records; --check sees a changed number."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import table

HERE = pathlib.Path(__file__).resolve().parent


def record(engine, depth, repeat, **rates):
    common = {
        "model": "m.gguf",
        "threads": 2,
        "cpu": "C",
        "compiler": "c++",
        "commit": "0123456789abcdef",
        "uncommitted_changes": False,
        "time": "2026-01-01T00:00:00+00:00",
        "decode_tokens": 32,
        "attention_flops_key": 1000,
        "kv": "f16",
        "step_bytes": 10**9,
        "read_gb_s": 20.0,
        "fma_gflops": 100.0,
        "others_cpu_share": 0.01 * repeat,
    }
    return common | {"engine": engine, "depth": depth, "repeat": repeat} | rates


def records():
    for depth, ours, off, on in ((512, 10.0, 6.0, 4.0), (8192, 5.0, 1.0, 2.0)):
        for repeat, noise in enumerate((0.0, 0.5, -0.5)):
            for engine, rate in (
                ("vericache, draft off", ours),
                ("llama.cpp, flash attention off", off),
                ("llama.cpp, flash attention on", on),
            ):
                yield record(engine, depth, repeat, decode_tok_s=rate + noise)


class Tables(unittest.TestCase):
    def setUp(self):
        self.run_of = table.Run(list(records()))

    def test_decode_shows_median_spread_and_share_of_the_read(self):
        lines = table.decode_table(self.run_of).split("\n")
        ours = "| vericache, draft off | 10.0 (9.5-10.5), 50% | 5.0 (4.5-5.5), 25% |"
        self.assertEqual(lines[2], ours)
        self.assertIn("| 20.0 (20.0-20.0) | 20.0 (20.0-20.0) |", lines[5])  # 20 GB/s of 1 GB
        self.assertIn("| 189393.9 (", lines[6])  # 100 GFLOPS of 1,000 flops at 528 keys

    def test_ratios_are_to_the_better_setting_at_each_depth(self):
        lines = table.ratio_table(self.run_of).split("\n")
        self.assertEqual(lines[2:], ["| llama.cpp, better flash attention | 1.67x | 2.50x |"])

    def test_growth_is_in_time(self):
        lines = table.growth_table(self.run_of).split("\n")
        self.assertEqual(
            lines[2], "| vericache, draft off | 100.0 | 200.0 | 2.0x from 512 to 8,192 |"
        )

    def test_flips_are_shares_of_the_positions(self):
        found = {"positions": 2000, "flips": 10, "positions_with_other_bits": 1990}
        found |= {"largest_difference": 1.5, "largest_margin_flipped": 0.25}
        made = table.Run([{"model": "m.gguf", "flash_attention": {"off": {"8": found}}}])
        want = "| m.gguf | off | 8 | 2,000 | 1,990 | 10 (0.5%) | 1.50 | 0.25 |"
        self.assertEqual(table.flips_table(made).split("\n")[2], want)

    def test_the_caption_tells_of_other_work(self):
        self.assertIn("at most 2% of the CPU", table.caption(self.run_of))


class Check(unittest.TestCase):
    def run_table(self, text, *options):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records()))
            (folder / "doc.md").write_text(text)
            done = subprocess.run(
                [sys.executable, str(HERE / "table.py"), "--results", str(folder)]
                + [*options, str(folder / "doc.md")],
                check=False,
                capture_output=True,
                text=True,
            )
            return done, (folder / "doc.md").read_text()

    EMPTY = "before\n<!-- table decode,ratios: r.jsonl -->\n<!-- end -->\nafter\n"

    def test_update_then_check(self):
        done, text = self.run_table(self.EMPTY, "--update")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("10.0 (9.5-10.5), 50%", text)
        self.assertTrue(text.startswith("before\n") and text.endswith("<!-- end -->\nafter\n"))
        self.assertEqual(self.run_table(text, "--check")[0].returncode, 0)

    def test_check_fails_on_a_changed_number_a_missing_table_and_a_broken_marker(self):
        _, good = self.run_table(self.EMPTY, "--update")
        for bad, word in (
            (good.replace("2.50x", "2.51x"), "-| llama.cpp, better flash attention | 1.67x | 2.51"),
            (self.EMPTY, "+| vericache, draft off"),
            (good.replace("<!-- end -->", ""), "holds no table"),
            (good + "<!-- table: r.jsonl -->\n", "without its end"),
            (good.replace("ratios", "rations"), "no table rations"),
        ):
            done, text = self.run_table(bad, "--check")
            self.assertNotEqual(done.returncode, 0, bad)
            self.assertIn(word, done.stdout + done.stderr)
            self.assertEqual(text, bad)  # a check writes nothing


if __name__ == "__main__":
    unittest.main()
