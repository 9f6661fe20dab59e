#!/usr/bin/env python3
"""Tests of merge.py: figures by hand, and what must not be joined."""

import copy
import unittest

import merge


def prompt(custom_id, kind, runs, **extra):
    return {"custom_id": custom_id, "kind": kind, "answer_tokens": sum(runs) + 1, "runs": runs,
            "num_compared": sum(runs), "agreement": 0.5, "mean_kl": 0.1, "kept_fraction": 0.1,
            "read_fraction": 0.1} | extra


def part(*prompts, spec="int4"):
    return {"model": "m", "draft_len": 64, "num_threads": 2, "isa": "avx2",
            "specs": [{"spec": spec, "prompts": list(prompts)}]}


class Merge(unittest.TestCase):
    def test_figures(self):
        timed = {"identical": True, "first_divergence": -1, "token_f1": 1.0,
                 "verified_decode_s": 2.0, "full_decode_s": 1.0}
        merged = merge.merge([
            part(prompt("a", "code", [10, 20], kept_fraction=0.2, **timed)),
            part(prompt("b", "code", [30], agreement=0.9, mean_kl=0.3),
                 prompt("c", "prose", [4, 1]))])
        whole = merged["specs"][0]
        self.assertEqual([p["custom_id"] for p in whole["prompts"]], ["a", "b", "c"])
        self.assertEqual((whole["num_prompts"], whole["num_rounds"]), (3, 5))
        self.assertEqual(whole["mean_run_length"], 13)
        code = whole["by_kind"]["code"]
        self.assertEqual((code["mean_run_length"], code["median_run_length"]), (20, 20))
        self.assertEqual(code["p10_run_length"], 10)
        self.assertAlmostEqual(code["agreement"], 0.7)
        self.assertAlmostEqual(code["mean_kl"], 0.2)
        self.assertAlmostEqual(code["kept_fraction"], 0.15)
        self.assertEqual((code["num_decoded"], code["num_identical"]), (1, 1))
        self.assertEqual(code["first_divergence_median"], 31)
        self.assertEqual((code["verified_tok_s"], code["full_tok_s"]), (15, 30))
        self.assertNotIn("num_identical", whole["by_kind"]["prose"])

    def test_chosen_specs(self):
        one = part(prompt("a", "code", [1]))
        one["specs"].append({"spec": "int8", "prompts": []})
        self.assertEqual([s["spec"] for s in merge.only(one, ["int8", "int4"])["specs"]],
                         ["int8", "int4"])
        with self.assertRaisesRegex(ValueError, "no int2"):
            merge.only(one, ["int2"])

    def test_parts_that_do_not_fit(self):
        one = part(prompt("a", "code", [1]))
        for change in ({"model": "n"}, {"draft_len": 32}, {"isa": "scalar"}):
            with self.assertRaises(ValueError):
                merge.merge([one, copy.deepcopy(one) | change])
        with self.assertRaisesRegex(ValueError, "specs"):
            merge.merge([one, part(prompt("b", "code", [1]), spec="int8")])
        with self.assertRaisesRegex(ValueError, "two parts"):
            merge.merge([one, one])


if __name__ == "__main__":
    unittest.main()
