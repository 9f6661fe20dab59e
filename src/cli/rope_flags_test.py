#!/usr/bin/env python3
"""End-to-end tests of --rope-scaling: rope_flags_test.py VERICACHE.

Settings decide every K, so what one command writes another must take with the same ones only.
"""

import json
import unittest

from cli_fixture import LLAMA, TEXT, CliTest, main

YARN = ("--rope-scaling", "yarn", "--rope-scale", 4, "--rope-orig-context", 512)


class Rope(CliTest):
    def hash_of(self, *flags):
        return self.run_json("-p", TEXT, "-n", 12, *flags)["logits_hash"]

    def test_settings_change_answers_and_drafts_do_not(self):
        hashes = {self.hash_of(*flags) for flags in (
            (), YARN, ("--rope-scaling", "linear", "--rope-scale", 4),
            ("--rope-scaling", "yarn", "--rope-scale", 8, "--rope-orig-context", 512))}
        self.assertEqual(len(hashes), 4)
        self.assertEqual(self.hash_of(*YARN, "--draft", "off"), self.hash_of(*YARN))
        self.assertEqual(self.hash_of("--rope-scaling", "none"), self.hash_of())
        self.assertIn("rope yarn x 4",
                      self.ok("run", "-m", LLAMA, "-p", "a", "-n", 1, *YARN).err)

    def test_the_context_is_longer(self):
        long = ["-m", LLAMA, "-p", "a", "-n", 1, "--ctx", 4096]
        self.fails(1, "run", *long, says=["4096", "2048", "--rope-scale"])
        self.ok("run", *long, "--rope-scaling", "yarn", "--rope-scale", 2)
        self.fails(1, "run", *long, "--rope-scaling", "yarn", "--rope-scale", 1.9, says="3891")

    def test_audit_takes_the_settings_of_the_receipt(self):
        path = self.folder / "r.json"
        self.run_json("-p", TEXT, "-n", 12, "--receipt", path, *YARN)
        receipt = json.loads(path.read_text())
        self.assertEqual(receipt["rope"], {"scaling": "yarn", "scale": 4, "orig_context": 512})
        for how in ((), ("--slow",), YARN):
            self.assertIn("audit    OK", self.ok("audit", path, *how).out)
        other = ("--rope-scaling", "yarn", "--rope-scale", 8)
        self.fails(1, "audit", path, *other, says="--rope-scaling yarn --rope-scale 4")
        for rope, says in (({"scaling": "yarn"}, "scale"), ({"scaling": "cubic"}, "scaling"),
                           (7, "rope"),
                           ({"scaling": "yarn", "scale": 0.5, "orig_context": 512}, "at least 1"),
                           ({"scaling": "yarn", "scale": 1e300, "orig_context": 512}, "more than")):
            path.write_text(json.dumps(receipt | {"rope": rope}))
            self.fails(1, "audit", path, says=says)
        # Left out, they are the file's own, under which the answer is another.
        path.write_text(json.dumps({k: v for k, v in receipt.items() if k != "rope"}))
        self.fails(1, "audit", path, says="audit FAILED")

    def test_sessions_are_of_one_setting(self):
        session = self.folder / "s.kv"
        self.run_json("-p", TEXT, "-n", 2, "--session", session, *YARN)
        self.ok("run", "-m", LLAMA, "-p", TEXT, "-n", 2, "--session", session, *YARN)
        self.fails(1, "run", "-m", LLAMA, "-p", TEXT, "-n", 2, "--session", session,
                   says="rope settings")
        self.fails(1, "chat", "-m", LLAMA, "--session", session, stdin="a\n", says="rope")

    def test_batch_answers_are_of_one_setting(self):
        asked, answers = self.folder / "in.jsonl", self.folder / "out.jsonl"
        asked.write_text(json.dumps({"custom_id": "a", "prompt": TEXT, "max_tokens": 12}) + "\n")
        batch = ["batch", "-m", LLAMA, "-f", asked, "-o", answers]

        def answer(*flags):
            self.ok(*batch, *flags)
            return json.loads(answers.read_text())
        scaled = answer(*YARN)
        self.assertEqual(scaled["logits_hash"], self.hash_of("--raw", *YARN))
        own = answer()
        self.assertNotEqual(own["request_digest"], scaled["request_digest"])
        self.assertEqual(own["logits_hash"], self.hash_of("--raw"))

    def test_bench_goes_as_deep(self):
        flags = ["--depths", 4000, "--prefill", 8, "--decode", 2, "--repeat", 1]
        flags += ["--widths", "none", "--draft-specs", "none", "--json"]
        report = json.loads(self.ok("bench", "-m", LLAMA, *flags).out)
        self.assertIsNone(report["decode_tps_4000"])
        scaled = json.loads(self.ok("bench", "-m", LLAMA, *flags, "--rope-scaling", "linear",
                                    "--rope-scale", 2).out)
        self.assertGreater(scaled["decode_tps_4000"], 0)

    def test_what_makes_no_sense(self):
        run = ["run", "-m", LLAMA, "-p", "a"]
        for flags, says in ((["--rope-scaling", "cubic"], "--rope-scaling"),
                            (["--rope-scale", "0.5"], "--rope-scale"),
                            (["--rope-scale", "nan"], "--rope-scale"),
                            (["--rope-scale", "x"], "--rope-scale"),
                            (["--rope-orig-context", 0], "--rope-orig-context")):
            self.fails(2, *run, *flags, says=says)
        for flags, says in ((["--rope-scale", 4], "rope scaling"),
                            (["--rope-orig-context", 64], "rope scaling"),
                            (["--rope-scaling", "yarn"], "at least 1"),
                            (["--rope-scaling", "none", "--rope-scale", 4], "none has no scale"),
                            ([*YARN[:4], "--rope-orig-context", 1], "range")):
            self.fails(1, *run, *flags, says=says)


if __name__ == "__main__":
    main()
