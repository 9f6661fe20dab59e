#!/usr/bin/env python3
"""exact.py and the sandbox on small made-up answers: what parses, what passes, what is cut off."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import exact
import sandbox
import tool_calls

HERE = pathlib.Path(__file__).resolve().parent
CHECK = {
    "module": "string",
    "functions": [
        {
            "name": "double",
            "source": "def double(x):\n    return x + x",
            "calls": ["(2,)", "('ab',)", "(None,)"],
        }
    ],
}
GOOD = "```python\ndef double(x):\n    return 2 * x if x is not None else x + x\n```"
WRONG = "```python\ndef double(x):\n    return 3 * x\n```"
BROKEN = "```python\ndef double(x:\n    return 2 * x\n```"
GAVE_UP = "ran out of time or memory"
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


def text_of(text, ids):
    return {"text": text, "token_ids": ids}


def answer(kind, unverified, custom_id="1", full=GOOD, ids=(1, 2, 3)):
    return {
        "custom_id": custom_id,
        "kind": kind,
        "spec": "int4",
        "full": text_of(full, [1, 2, 3]),
        "unverified": text_of(unverified, list(ids)),
        "verified": text_of(full, [1, 2, 3]) | {"identical": True},
    }


class Sandbox(unittest.TestCase):
    def verdict(self, body, head="def double(x):\n"):
        return sandbox.verdict(head + body, CHECK)

    def test_the_same_outcomes_pass(self):
        self.assertEqual(self.verdict("    return 2 * x if x is not None else x + x"), "passes")
        annotated = "def double(x: Missing[int]) -> Other:\n    return x + x"
        self.assertEqual(sandbox.verdict(annotated, CHECK), "passes")

    def test_other_outcomes_do_not(self):
        self.assertEqual(self.verdict("    return 3 * x"), "double(2,) has another outcome")
        # None + None raises TypeError: an answer where the original raises is another outcome.
        self.assertIn("(None,)", self.verdict("    return x + x if x else 0"))
        self.assertEqual(sandbox.verdict("triple = 3", CHECK), "does not define double")
        self.assertEqual(sandbox.verdict("def double(x:", CHECK), "SyntaxError")

    def test_an_answer_cannot_claim_to_pass(self):
        claim = "    import os\n    print('passes')\n    os.write(1, b'passes\\n')\n"
        self.assertEqual(self.verdict(claim + "    return 0"), "double(2,) has another outcome")
        self.assertEqual(self.verdict("    import os\n    os._exit(0)"), GAVE_UP)
        forged = (
            "    import os\n"
            "    for stream in range(20):\n"
            "        try:\n"
            "            os.write(stream, b'passes\\n')\n"
            "        except OSError:\n"
            "            pass\n"
            "    os._exit(0)"
        )
        self.assertEqual(self.verdict(forged), GAVE_UP)

    def test_what_an_answer_prints_is_not_in_the_way(self):
        noisy = "    import os\n    os.write(1, b'x')\n    return x + x"
        self.assertEqual(self.verdict(noisy), "passes")

    def test_time_and_memory_have_limits(self):
        with mock.patch.object(sandbox, "CPU_SECONDS", 1):
            start = time.monotonic()
            self.assertEqual(self.verdict("    while True: pass"), GAVE_UP)
            self.assertLess(time.monotonic() - start, sandbox.WALL_SECONDS)
        with mock.patch.object(sandbox, "WALL_SECONDS", 1):
            slow = "    import time\n    time.sleep(60)\n    return x + x"
            start = time.monotonic()
            self.assertEqual(self.verdict(slow), GAVE_UP)
            self.assertLess(time.monotonic() - start, 10)
        hungry = self.verdict("    return bytearray(1 << 30)")
        self.assertEqual(hungry, "double(2,) has another outcome")  # MemoryError, not a result

    def test_nothing_of_the_session_is_in_reach(self):
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder, "written")
            spy = (
                "    import os\n"
                f"    open({str(target)!r}, 'w').write('x' * 10000)\n"
                "    return x + x"
            )
            self.assertNotEqual(self.verdict(spy), "passes")
            self.assertFalse(target.exists() and target.stat().st_size)
        clean = "    import os\n    assert not os.listdir('.') and 'HOME' not in os.environ\n"
        self.assertEqual(self.verdict(clean + "    return x + x"), "passes")


class ToolCalls(unittest.TestCase):
    def test_forms_of_a_call(self):
        want = [{"name": "f", "arguments": {"x": 1}}]
        bare = '{"name": "f", "arguments": {"x": 1}}'
        fenced = f"```json\n{bare}\n```"
        for text in (CALL, bare, fenced, f"{bare}<|im_end|>", f"[{bare}]", f"{bare}\nDone."):
            self.assertEqual(tool_calls.parse(text), want, text)
        self.assertEqual(tool_calls.parse(CALL + "\n" + CALL), want * 2)

    def test_what_is_no_call(self):
        doubled = '{{"name": "f", "arguments": {}}}'
        for text in ("", "No.", CALL.replace("}}", "}"), '{"name": "f"}', '"f"', "[]", doubled):
            self.assertIsNone(tool_calls.parse(text), text)


class Measures(unittest.TestCase):
    def test_f1_counts_tokens_not_their_order(self):
        self.assertEqual(exact.token_f1([1, 2, 3], [3, 2, 1]), 1.0)
        self.assertEqual(exact.token_f1([1, 1, 2], [1, 3]), 0.4)
        self.assertEqual(exact.token_f1([], []), 1.0)
        self.assertEqual(exact.token_f1([], [1]), 0.0)

    def test_the_block_is_found_and_shifted_to_the_left(self):
        shifted = "So:\n```python\n  a = 1\n  b = 2\n```\nEnd"
        self.assertEqual(exact.python_block(shifted), "a = 1\nb = 2\n")
        self.assertEqual(exact.python_block("```py\na = (\n"), "a = (\n\n")  # cut at the limit
        self.assertIsNone(exact.program("```py\na = (\n"))
        self.assertEqual(exact.program("```\na=1 # x\n```"), exact.program("```\na = 1\n```"))

    def test_code_is_counted_by_spec_and_text(self):
        answers = [
            answer("code", WRONG, "1", ids=(1, 2, 9)),
            answer("code", BROKEN, "2", ids=(7,)),
            answer("code", GOOD, "3"),
        ]
        rows = exact.measure(answers, {"1": CHECK, "2": CHECK})
        by_text = {row["text"]: row for row in rows}
        full, draft = by_text["full"], by_text["unverified"]
        self.assertEqual((full["identical"], full["parses"], full["passes"]), (3, 3, 2))
        self.assertEqual((draft["identical"], draft["parses"], draft["same_meaning"]), (1, 2, 1))
        self.assertEqual((draft["passes"], draft["num_checks"]), (0, 2))
        self.assertAlmostEqual(draft["token_f1"], (2 / 3 + 0 + 1) / 3)
        self.assertEqual(sum(draft["failures"].values()), 2)
        self.assertEqual(by_text["verified"]["passes"], 2)

    def test_the_same_text_of_other_tokens_is_not_the_same(self):
        rows = exact.measure([answer("prose", GOOD, ids=(1, 2, 4))], {})
        self.assertEqual([row["identical"] for row in rows], [1, 0, 1])

    def test_tool_calls_must_be_equal_and_prose_has_nothing_to_parse(self):
        other = CALL.replace("1", "2")
        answers = [answer("tool", other, full=CALL), answer("tool", CALL + " ", full=CALL)]
        rows = exact.measure(answers + [answer("prose", "text")], {})
        found = {(row["kind"], row["text"]): row for row in rows}
        self.assertEqual(found["tool", "unverified"]["parses"], 2)
        self.assertEqual(found["tool", "unverified"]["same_meaning"], 1)
        self.assertIsNone(found["prose", "unverified"]["parses"])

    def test_answers_without_a_verified_text_have_no_row(self):
        one = answer("prose", "text") | {"verified": None}
        self.assertEqual([r["text"] for r in exact.measure([one], {})], ["full", "unverified"])

    def test_the_command_prints_a_table(self):
        with tempfile.TemporaryDirectory() as folder:
            answers, prompts = pathlib.Path(folder, "a.jsonl"), pathlib.Path(folder, "p.jsonl")
            answers.write_text(json.dumps(answer("code", WRONG, ids=(1, 9))) + "\n")
            prompts.write_text(json.dumps({"custom_id": "1", "check": CHECK}) + "\n")
            done = subprocess.run(
                [sys.executable, str(HERE / "exact.py"), str(answers), "--prompts", str(prompts)],
                check=True,
                capture_output=True,
                text=True,
            )
        self.assertIn("| code | full KV | 1.00 | 1/1 | 1/1 | 1/1 | 1/1 |", done.stdout)
        self.assertIn("| code | int4, unverified | 0.40 | 0/1 | 1/1 | 0/1 | 0/1 |", done.stdout)
        self.assertIn("| code | int4, verified | 1.00 | 1/1 | 1/1 | 1/1 | 1/1 |", done.stdout)


if __name__ == "__main__":
    unittest.main()
