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
import json, os, sys
fault, held = {fault!r}, 0
for line in sys.stdin:
    r = json.loads(line)
    op = r["op"]
    a = {{}}
    if op == "info":
        a = {{"name": "x", "version": "1", "system_info": "", "context": 1000}}
    elif op == "tokenize":
        a = {{"ids": list(r["text"].encode())}}
    elif op == "detokenize":
        a = {{"text": bytes(r["ids"]).decode()}}
    elif op == "prefill":
        held = len(r["ids"]) - (fault == "peer prefill")
        a = {{"seconds": 0.5, "token": 7}}
    elif op == "save":
        os.makedirs(os.path.dirname(r["path"]), exist_ok=True)
        open(r["path"], "w").write(str(held))
    elif op == "load":
        cells, held = int(open(r["path"]).read()), r["depth"]
        a = {{"token": 7, "cells": cells}}
    elif op == "append":
        a = {{"seconds": 0.25, "depth": r["pos"] + len(r["ids"])}}
    elif op == "decode":
        end = held + r["n"] - (fault == "peer decode")
        a = {{"seconds": 0.25, "tokens": [7] * (r["n"] + 1 - (fault == "peer short")),
             "depth": end}}
    print(json.dumps({{"depth": held}} | a), flush=True)
"""

OURS = """
import json, os, sys
fault = {fault!r}
a = sys.argv
value = lambda flag: a[a.index(flag) + 1]
if a[1] == "inspect":
    tensors = [{{"name": "token_embd.weight", "num_bytes": 60}},
               {{"name": "output.weight", "num_bytes": 40}}, {{"name": "x", "num_bytes": 100}}]
    print(json.dumps({{"tensors": tensors, "kv_bytes_per_token": 8, "num_layers": 1,
                      "num_heads": 2, "head_dim": 4}}))
    sys.exit()
if a[1] == "bench":
    depth = value("--depths")
    found = {{"decode": int(value("--decode")), "decode_tps_" + depth: 20.0}}
    if "--prefill-depths" in a:
        found["prefill_tps_" + depth] = 100.0
    if fault == "bench":
        found["decode_tps_" + depth] = None  # it did not fit into the context
    print(json.dumps(found))
    sys.exit()
draft = value("--draft") if "--draft" in a else "default"
n = int(value("-n")) - (fault == "short")
ids = list(open(value("-f"), "rb").read()) + [1] * (fault == "prompt")
tokens = [5] * n
if fault == "token" and draft != "off":
    tokens[3] = 6
json.dump({{"prompt_token_ids": ids}}, open(value("--receipt"), "w"))
stats = {{"rounds": n - 1, "prefill_s": 0.25, "draft_s": 0.0, "verify_s": 0.5}}
usage = {{"prompt_tokens": len(ids), "completion_tokens": n}}
is_new = True
if "--session" in a:  # the KV of the prompt is kept there
    is_new = not os.path.exists(value("--session"))
    held = 0 if is_new else int(open(value("--session")).read())
    usage["cached_tokens"] = min(held, len(ids) - 1)
    open(value("--session"), "w").write(str(len(ids)))
if fault == "crash":
    sys.exit("vericache: no such model")
wrong = fault == "logits" and draft != "off" or fault == "reloaded" and not is_new
print(json.dumps({{"usage": usage, "stats": stats, "token_ids": tokens, "finish_reason": "length",
                  "logits_hash": "b" if wrong else "a"}}))
"""


def run_bench(fault, *options, runs=1):
    """The last run's process, its records, and the names of the states that the peers keep."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, text in {"peer": PEER, "vericache": OURS}.items():
            (folder / name).write_text(f"#!{sys.executable}\n{text.format(fault=fault)}")
            (folder / name).chmod(0o755)
        (folder / "m.gguf").write_bytes(b"GGUF")
        (folder / "text.txt").write_text("a" * 100)
        for run in range(runs):
            results = folder / f"results{run}"
            done = subprocess.run(
                [sys.executable, str(HERE / "run.py"), "-m", str(folder / "m.gguf")]
                + ["-f", str(folder / "text.txt"), "--prefill", "20", "--depths", "50"]
                + ["--busy-ok", "--decode", "8", "--repeats", "2", "--deep-repeats", "2"]
                + ["--peer-python", str(folder / "peer"), "--results", str(results)]
                + ["--vericache", str(folder / "vericache")]
                + [o.format(folder=folder) for o in options],
                check=False,
                capture_output=True,
                text=True,
            )
        records = [
            json.loads(line)
            for path in results.glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        states = [path.name for path in folder.glob("states/*")]
    return done, records, states


def one(records, engine, depth, repeat=0):
    (found,) = (
        r for r in records if (r["engine"], r["depth"], r["repeat"]) == (engine, depth, repeat)
    )
    return found


class RefusesUnequalWork(unittest.TestCase):
    def test_equal_work_is_timed_and_recorded(self):
        done, records, _ = run_bench("none")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("decode after 20 tokens", done.stdout)
        self.assertEqual(len(records), (2 + 2) * 4)  # 4 engines; 2 short runs, 2 deep ones
        deep = [r for r in records if r["depth"] == 50 and r["engine"] == "vericache, draft off"]
        self.assertEqual(["prefill_tok_s" in r for r in deep], [True, False])
        ours = next(r for r in records if r["engine"] == "vericache, draft off")
        self.assertEqual((ours["prefill_tok_s"], ours["decode_tok_s"]), (80.0, 16.0))
        for key in ("commit", "cpu", "compiler", "model_sha256", "seed", "token_sha256"):
            self.assertIn(key, ours)

    def test_a_step_reads_the_weights_and_the_kv(self):
        _, records, _ = run_bench("none", "--peers", "off,q8_0")
        ours = one(records, "vericache, draft off", 50)
        self.assertEqual(ours["step_bytes"], 140 + (50 + 4) * 8)  # not the embedding
        q8_0 = one(records, "llama.cpp, q8_0 KV", 50)
        self.assertEqual((q8_0["kv"], q8_0["step_bytes"]), ("q8_0", 370))

    def test_faults_give_no_number(self):
        words = {
            "prompt": "other tokens",
            "short": "stopped after 8 of 9",
            "token": "first difference at token 3",
            "logits": "is not what the full KV gives",
            "crash": "no such model",
            "peer prefill": "holds 19 positions, not 20",
            "peer decode": "holds 27 positions, not 28",
            "peer short": "decoded 7 tokens, not 8",
        }
        for fault, text in words.items():
            with self.subTest(fault):
                done, records, _ = run_bench(fault)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(text, done.stderr)
                self.assertNotIn("tok/s", done.stdout)
                self.assertEqual(records, [])

    def test_a_reloaded_session_must_give_the_same_logits(self):
        done, records, _ = run_bench("reloaded", "--drafts", "off")
        self.assertIn("other logits in a repeat", done.stderr)
        self.assertNotIn("tok/s", done.stdout)
        self.assertEqual([r for r in records if r["repeat"] == 1 and r["depth"] == 50], [])


class DeepKv(unittest.TestCase):
    STATES = ("--states", "{folder}/states")

    def test_a_later_run_reloads_what_the_first_prefilled(self):
        for runs, source in ((1, "prefilled"), (2, "prefilled, reloaded")):
            with self.subTest(source):
                done, records, states = run_bench("none", *self.STATES, runs=runs)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(len(states), 2)  # flash attention off and on
                peer = one(records, "llama.cpp, flash attention on", 50)
                self.assertEqual((peer["kv_source"], peer["kv_cells"]), (source, 58))
                self.assertEqual("prefill_tok_s" in peer, runs == 1)

    def test_fresh_prefills_again(self):
        _, records, _ = run_bench("none", *self.STATES, "--fresh", runs=2)
        self.assertIn("prefill_tok_s", one(records, "llama.cpp, flash attention on", 50))

    def test_synthetic_depths_are_named_so(self):
        done, records, _ = run_bench("none", *self.STATES, "--synthetic", "30", "--append", "10")
        self.assertEqual(done.returncode, 0, done.stderr)
        peer = one(records, "llama.cpp, flash attention off", 50)
        self.assertEqual((peer["kv_source"], peer["kv_cells"]), ("tiled from 30", 58))
        self.assertNotIn("prefill_tok_s", peer)
        self.assertEqual(peer["append_tok_s"], 40)
        ours = one(records, "vericache, draft off", 50)
        self.assertEqual((ours["kv_source"], ours["decode_tok_s"]), ("random", 20))
        self.assertEqual(ours["append_tok_s"], 100)

    def test_a_depth_beyond_the_context_gives_no_number(self):
        done, records, _ = run_bench("bench", *self.STATES, "--synthetic", "30")
        self.assertIn("did not decode 8 tokens behind 50 positions", done.stderr)
        self.assertEqual([r for r in records if r["depth"] == 50], [])

    def test_a_tail_is_prefilled_behind_an_honest_prompt(self):
        done, records, _ = run_bench("none", "--append", "10", "--append-repeats", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        for engine in ("vericache, draft off", "llama.cpp, flash attention on"):
            self.assertEqual(one(records, engine, 50)["append_tok_s"], 40, engine)
            self.assertNotIn("append_tok_s", one(records, engine, 50, 1))


if __name__ == "__main__":
    unittest.main()
