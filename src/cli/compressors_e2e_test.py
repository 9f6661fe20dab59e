#!/usr/bin/env python3
"""`vericache compressors` from outside, on tiny random models. Standard library only.

    src/cli/compressors_e2e_test.py VERICACHE_BINARY
"""

import json
import struct
import sys
import unittest
import xml.etree.ElementTree as ElementTree
import zipfile

from cli_fixture import GOLDEN, LLAMA, TEXT, CliTest, main

WIDE = GOLDEN / "llama_head_dim.gguf"  # heads of 32 channels, which integer codecs want

SPECS = ("int8,int4,int2,k4v2,rot3,kivi4,sink:0.3+int4,snapkv:0.3,window=8+int4,"
         "verify:0.3,window=8+int4,verify:0.3,score=vegas,verify:0.4,window=8,floor=0.2,chunk=64,"
         "kvzip:0.3,window=8+int4,expected:0.3,window=8,h2o:0.3,quest:0.5,whole=0+int4")
NUM_SPECS = 15


def npy(numbers):
    """An .npy file of int32, as numpy writes it."""
    head = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % len(numbers)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() +
            struct.pack(f"<{len(numbers)}i", *numbers))


class Compressors(CliTest):
    def prompts(self, *requests):
        path = self.folder / "prompts.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in requests))
        return path

    def some_prompts(self):
        return self.prompts(
            {"custom_id": "a", "kind": "code", "prompt": TEXT * 4 + " one", "max_tokens": 24},
            {"custom_id": "b", "kind": "code", "prompt": TEXT * 4 + " two", "max_tokens": 24},
            {"custom_id": "c", "kind": "prose", "prompt": "Short.", "max_tokens": 9,
             "temperature": 0.9, "seed": 4, "top_k": 40})

    def study(self, *flags, model=WIDE):
        return self.ok("compressors", "-m", model, "--threads", 2, *flags)

    def report(self, *flags, model=WIDE):
        return json.loads(self.study("--json", *flags, model=model).out)

    def test_every_kind_of_spec_is_measured_and_exact(self):
        prompts = self.some_prompts()
        for model in (WIDE, LLAMA):
            answers = self.folder / "answers.jsonl"
            report = self.report("-f", prompts, "--specs", SPECS, "--draft-len", 8, "--runs", 2,
                                 "--answers", answers, model=model)
            self.assertEqual(len(report["specs"]), NUM_SPECS + 1)
            ngram = report["specs"].pop()
            self.assertEqual(ngram["spec"], "ngram")
            self.assertNotIn("mean_kl", ngram)
            for spec in report["specs"]:
                with self.subTest(model=model.name, spec=spec["spec"]):
                    self.assertEqual(spec["num_identical"], spec["num_decoded"])
                    self.assertEqual(spec["num_decoded"], 3)
                    self.assertEqual(list(spec["by_kind"]), ["code", "prose"])
                    self.assertGreater(spec["kept_fraction"], 0)
                    self.assertLessEqual(spec["read_fraction"], spec["kept_fraction"] + 1e-9)
                    for prompt in spec["prompts"]:
                        # The replay told the rounds that real decoding then had; `verify` chooses
                        # in a round's own pass, which a replay has not, so there only their sum.
                        if spec["spec"].startswith("verify") and "vegas" not in spec["spec"]:
                            self.assertEqual(sum(prompt["runs"]), sum(prompt["verified_runs"]))
                        else:
                            self.assertEqual(prompt["runs"], prompt["verified_runs"])
                        self.assertEqual(sum(prompt["runs"]), prompt["answer_tokens"] - 1)
                        self.assertLessEqual(max(prompt["runs"] or [0]), 9)
            lines = [json.loads(line) for line in answers.read_text().splitlines()]
            self.assertEqual(len(lines), 3 * NUM_SPECS)
            for line in lines:
                self.assertEqual(line["verified"]["token_ids"], line["full"]["token_ids"])
                self.assertTrue(line["verified"]["identical"])
            self.assertTrue(any(line["unverified"]["token_ids"] != line["full"]["token_ids"]
                                for line in lines), "compression must hurt somewhere")

    def test_a_replay_does_not_depend_on_who_shares_the_prompt(self):
        together = self.report("-f", self.some_prompts(), "--specs", SPECS, "--runs", 0)
        alone = self.report("-f", self.prompts({"kind": "code", "prompt": TEXT * 4 + " two",
                                                "max_tokens": 24}), "--specs", SPECS, "--runs", 0)
        scored = ("kvzip", "expected", "h2o", "floor")  # by the shared beginning alone
        for a, b in zip(together["specs"], alone["specs"], strict=True):
            if not any(name in a["spec"] for name in scored):
                self.assertEqual(a["prompts"][1]["runs"], b["prompts"][0]["runs"], a["spec"])

    def test_a_model_drafting_for_itself_is_always_right(self):
        prompts = self.prompts({"prompt": TEXT * 4 + " one", "max_tokens": 24},
                               {"prompt": "Short.", "max_tokens": 9})
        report = self.report("-f", prompts, "--specs", "int4", "--runs", 0, "--draft-model", WIDE)
        row = report["specs"][-1]
        self.assertEqual(row["spec"], "model llama_head_dim")
        self.assertEqual((row["agreement"], row["kept_fraction"]), (1, 1))
        self.assertEqual([p["runs"] for p in row["prompts"]], [[23], [8]])
        other = self.report("-f", prompts, "--specs", "int4", "--runs", 0, "--draft-model",
                            LLAMA)["specs"][-1]
        self.assertLess(other["agreement"], 0.9)

    def test_table_and_plot(self):
        plot = self.folder / "runs.svg"
        done = self.study("-f", self.some_prompts(), "--specs", "int4,sink:0.2+int4", "--runs", 1,
                          "--plot", plot)
        for part in ("code: 2 prompts, drafts of at most 64", "prose: 1 prompt,", "\nint4 ",
                     "\nsink:0.2+int4 ", "kept, read:", "tok/s"):
            self.assertIn(part, done.out)
        self.assertLessEqual(max(map(len, done.out.splitlines())), 100)
        texts = [e.text for e in ElementTree.parse(plot).iter() if e.tag.endswith("text")]
        for part in ("code (2 prompts)", "prose (1 prompts)", "int4", "sink:0.2+int4"):
            self.assertIn(part, texts)
        bare = self.study("-f", self.some_prompts(), "--specs", "int4", "--runs", 0)
        self.assertNotIn("first", bare.out.split("kept, read:")[0])

    def test_kept_positions_from_a_file(self):
        kept = self.folder / "mine.npz"
        with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("all.npy", npy(list(range(0, 60, 2))))
            archive.writestr("L1H0.npy", npy([5, 4, 40]))
        prompts = self.prompts({"prompt": TEXT, "max_tokens": 12})
        spec = self.report("-f", prompts, "--specs", f"kept,file={kept}+int4")["specs"][0]
        self.assertEqual(spec["num_identical"], 1)
        self.assertLess(spec["kept_fraction"], 0.5)
        tokens = spec["prompts"][0]["prompt_tokens"]
        with zipfile.ZipFile(kept, "w") as archive:
            archive.writestr("all.npy", npy([0, tokens]))
        self.fails(1, "compressors", "-m", WIDE, "-f", prompts, "--specs", f"kept,file={kept}",
                   says=f"keeps position {tokens}, but the prompt has {tokens} tokens")

    def test_an_odd_head_size_falls_back_and_says_so_once(self):
        done = self.study("-f", self.some_prompts(), "--specs", "int4,int2", "--runs", 1,
                          model=LLAMA)
        for codec in ("int4", "int2"):
            self.assertEqual(done.err.count(f"{codec} falls back to f16"), 1, done.err)
        done = self.study("-f", self.some_prompts(), "--specs", "int4,int2", "--runs", 1)
        self.assertNotIn("falls back", done.err)

    def test_bad_input_is_told_in_one_line(self):
        hot = self.folder / "hot" / "prompts.jsonl"
        hot.parent.mkdir()
        hot.write_text('{"prompt": "a", "temperature": "hot"}')
        prompts = self.some_prompts()
        for status, flags, says in (
                (2, [], "give the prompts with -f"),
                (2, ["-f", prompts, "--specs", "off"], "'off' drafts nothing"),
                (1, ["-f", hot], 'prompts.jsonl:1: "temperature" must be a number'),
                (2, ["-f", prompts, "--specs", "int9"], "int9"),
                (2, ["-f", prompts, "--specs", "verify:0.2,floor=0.5"], "floor"),
                (2, ["-f", prompts, "--draft-len", 0], "--draft-len"),
                (1, ["-f", prompts, "--plot", self.folder / "no" / "x.svg"], "--plot"),
                (1, ["-f", self.folder / "none"], "none"),
                (1, ["-f", prompts, "--specs", "kept,file=none.npz"], "none.npz: no such file")):
            with self.subTest(says=says):
                self.fails(status, "compressors", "-m", WIDE, *flags, says=says)


if __name__ == "__main__":
    main()
