#!/usr/bin/env python3
"""`vericache compare` from outside, on a tiny random model. Standard library only.

    src/cli/compare_e2e_test.py VERICACHE_BINARY

A random model repeats itself less than a real one, which is good here: the unverified answers
leave full KV's early, and VeriCache must bring them back every time.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/golden/model/qwen2_untied.gguf"
BINARY = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None

DOCUMENT = "A lossy copy proposes, the full copy decides. " * 3
QUESTIONS = [
    {"id": "first", "kind": "extract", "question": "Who decides?", "max_tokens": 12},
    {"id": "second", "kind": "json", "question": "Give JSON.", "max_tokens": 20},
    {"kind": "explain", "question": "Why?", "max_tokens": 1},
]


class CompareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.document = self.write("document.txt", DOCUMENT)
        self.questions = self.write("questions.txt",
                                    "\n".join(json.dumps(q) for q in QUESTIONS) + "\n")

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def run_compare(self, *args):
        env = {k: v for k, v in os.environ.items() if not k.startswith("VERICACHE_")}
        return subprocess.run([str(BINARY), "compare", "-m", str(MODEL), "--threads", "2", *args],
                              cwd=self.folder, env=env, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, capture_output=True)

    def compare_document(self, *args):
        return self.run_compare("--document", self.document, "--questions", self.questions,
                                "--draft", "sink:0.25+int4", *args)

    def report(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("\n"), 1, "one JSON object on one line")
        return json.loads(result.stdout)

    def test_document_three_ways(self):
        report = self.report(self.compare_document("--json"))
        rows = report["rows"]
        self.assertEqual([r["id"] for r in rows], ["first", "second", "3"])
        self.assertEqual(report["summary"]["prompts"], 3)
        self.assertEqual(report["summary"]["vericache_identical"], 3)
        self.assertGreater(report["document"]["tokens"], 50)
        for row in rows:
            self.assertEqual(row["full"]["token_ids"], row["vericache"]["token_ids"])
            self.assertEqual(row["full"]["logits_hash"], row["vericache"]["logits_hash"])
            self.assertEqual(len(row["full"]["logits_hash"]), 64)
            self.assertLessEqual(len(row["full"]["token_ids"]), row["max_tokens"])
            # The document is prefilled once: every answer starts from it.
            for way in ("full", "unverified", "vericache"):
                self.assertGreaterEqual(row[way]["cached_tokens"],
                                        report["document"]["tokens"] - 20)
            unverified, full = row["unverified"]["token_ids"], row["full"]["token_ids"]
            self.assertEqual(row["unverified"]["identical"], unverified == full)
            differ = [i for i, (a, b) in enumerate(zip(unverified, full)) if a != b]
            if unverified == full:
                self.assertEqual(row["unverified"]["first_divergence"], -1)
            elif differ:
                self.assertEqual(row["unverified"]["first_divergence"], differ[0])
        self.assertEqual(len(rows[2]["full"]["token_ids"]), 1)
        # Otherwise this test would show nothing.
        self.assertLess(report["summary"]["unverified_identical"], 3)

    def test_answers_do_not_depend_on_the_draft(self):
        base = self.report(self.compare_document("--json"))
        for extra in (["--draft", "int8"], ["--draft", "snapkv:0.5+int4", "--draft-len", "3"],
                      ["--threads", "1"]):
            other = self.report(self.compare_document("--json", *extra))
            for a, b in zip(base["rows"], other["rows"]):
                self.assertEqual(a["vericache"]["token_ids"], b["vericache"]["token_ids"])
                self.assertEqual(a["vericache"]["logits_hash"], b["vericache"]["logits_hash"])

    def test_prompts_file(self):
        prompts = self.write("prompts.jsonl", "\n".join([
            json.dumps({"prompt": DOCUMENT * 2, "max_tokens": 9}),  # longer than the shared tail
            json.dumps({"id": "short", "prompt": "A", "max_tokens": 9})]))
        report = self.report(self.run_compare("-f", prompts, "--json", "--draft", "int4"))
        self.assertEqual([r["id"] for r in report["rows"]], ["1", "short"])
        self.assertEqual(report["document"]["tokens"], 0)
        self.assertGreater(report["rows"][0]["full"]["cached_tokens"], 0)

    def test_demo_ends_with_an_audit_that_passes(self):
        # A given length: whether `auto` drafts for so small a model depends on the clock.
        result = self.compare_document("--demo", "--draft-len", "4")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("[draft: ", result.stdout)
        self.assertIn("VeriCache: 3 of 3 identical (token ids and logits hash)", result.stdout)
        last = result.stdout.rstrip("\n").rsplit("\n", 1)[1]
        command = last.split("by: ", 1)[1].split()
        self.assertEqual(command[1:], ["audit", "receipt.json"])
        audit = subprocess.run([str(BINARY), *command[1:]], cwd=self.folder, text=True,
                               timeout=120, capture_output=True)
        self.assertEqual(audit.returncode, 0, audit.stderr)
        # A receipt with another token does not pass.
        path = self.folder / "receipt.json"
        receipt = json.loads(path.read_text())
        receipt["token_ids"][3] = (receipt["token_ids"][3] + 1) % 100
        path.write_text(json.dumps(receipt))
        audit = subprocess.run([str(BINARY), "audit", "receipt.json"], cwd=self.folder, text=True,
                               timeout=120, capture_output=True)
        self.assertEqual(audit.returncode, 1, audit.stdout)

    def test_wrong_usage(self):
        for args in ([], ["-f", self.questions, "--document", self.document],
                     ["--document", self.document],
                     ["--document", self.document, "--questions", self.questions, "--draft", "off"],
                     ["-f", self.questions, "--demo", "--json"]):
            result = self.run_compare(*args)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertEqual(result.stdout, "")

    def test_bad_files(self):
        broken = self.write("broken.txt", "{\"question\": \"a\"}\nnot json\n")
        result = self.run_compare("--document", self.document, "--questions", broken)
        self.assertEqual(result.returncode, 1)
        self.assertIn("broken.txt:2: ", result.stderr)
        result = self.run_compare("-f", str(self.folder / "missing"))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main()
