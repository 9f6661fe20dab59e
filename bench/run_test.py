#!/usr/bin/env python3
"""run.py refuses to time unequal work: against a false vericache and a false peer."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent

PEER = """
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    answer = {"info": {"name": "x", "version": "1", "system_info": "", "context": 1000},
              "tokenize": {"ids": list(r.get("text", "").encode())},
              "detokenize": {"text": bytes(r.get("ids", [])).decode()},
              "open": {}, "prefill": {"seconds": 0.5, "token": 7},
              "decode": {"seconds": 0.25, "tokens": [7] * (r.get("n", 0) + 1)}}[r["op"]]
    print(json.dumps(answer), flush=True)
"""

OURS = """
import json, sys
fault = {fault!r}
a = sys.argv
value = lambda flag: a[a.index(flag) + 1]
draft = value("--draft") if "--draft" in a else "default"
n = int(value("-n")) - (fault == "short")
ids = list(open(value("-f"), "rb").read()) + [1] * (fault == "prompt")
tokens = [5] * n
if fault == "token" and draft != "off":
    tokens[3] = 6
json.dump({{"prompt_token_ids": ids}}, open(value("--receipt"), "w"))
stats = {{"rounds": n - 1, "prefill_s": 0.25, "draft_s": 0.0, "verify_s": 0.5}}
usage = {{"prompt_tokens": len(ids), "completion_tokens": n}}
if "--session" in a:  # the KV of the prompt is kept there
    import os
    usage["cached_tokens"] = len(ids) - 1 if os.path.exists(value("--session")) else 0
    open(value("--session"), "w").write("KV")
if fault == "crash":
    sys.exit("vericache: no such model")
print(json.dumps({{"usage": usage, "stats": stats, "token_ids": tokens, "finish_reason": "length",
                  "logits_hash": "b" if fault == "logits" and draft != "off" else "a"}}))
"""


class RefusesUnequalWork(unittest.TestCase):
    def run_bench(self, fault):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            programs = {"peer": PEER, "vericache": OURS.format(fault=fault)}
            for name, text in programs.items():
                (folder / name).write_text(f"#!{sys.executable}\n{text}")
                (folder / name).chmod(0o755)
            (folder / "m.gguf").write_bytes(b"GGUF")
            (folder / "text.txt").write_text("a" * 100)
            done = subprocess.run(
                [sys.executable, str(HERE / "run.py"), "-m", str(folder / "m.gguf")]
                + ["-f", str(folder / "text.txt"), "--prefill", "20", "--depths", "50"]
                + ["--busy-ok", "--decode", "8", "--repeats", "2", "--deep-repeats", "2"]
                + ["--peer-python", str(folder / "peer"), "--results", str(folder / "results")]
                + ["--vericache", str(folder / "vericache")],
                check=False,
                capture_output=True,
                text=True,
            )
            records = [
                json.loads(line)
                for path in folder.glob("results/*.jsonl")
                for line in path.read_text().splitlines()
            ]
        return done, records

    def test_equal_work_is_timed_and_recorded(self):
        done, records = self.run_bench("none")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("decode after 20 tokens", done.stdout)
        self.assertEqual(len(records), (2 + 2) * 4)  # 4 engines; 2 short runs, 2 deep ones
        deep = [r for r in records if r["depth"] == 50 and r["engine"] == "vericache, draft off"]
        self.assertEqual(["prefill_tok_s" in r for r in deep], [True, False])
        ours = next(r for r in records if r["engine"] == "vericache, draft off")
        self.assertEqual((ours["prefill_tok_s"], ours["decode_tok_s"]), (80.0, 16.0))
        for key in ("commit", "cpu", "compiler", "model_sha256", "seed", "token_sha256"):
            self.assertIn(key, ours)

    def test_faults_give_no_number(self):
        words = {
            "prompt": "other tokens",
            "short": "stopped after 8 of 9",
            "token": "first difference at token 3",
            "logits": "is not what the full KV gives",
            "crash": "no such model",
        }
        for fault, text in words.items():
            with self.subTest(fault):
                done, records = self.run_bench(fault)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(text, done.stderr)
                self.assertNotIn("tok/s", done.stdout)
                self.assertEqual(records, [])


if __name__ == "__main__":
    unittest.main()
