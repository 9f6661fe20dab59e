#!/usr/bin/env python3
"""bfcl.py on a data set of its own and with a false checker: neither needs the package."""

import json
import pathlib
import random
import tempfile
import unittest

import bfcl
import documents


def function(name, words=20):
    return {
        "name": name,
        "description": "word " * words,
        "parameters": {
            "type": "dict",
            "properties": {
                "x": {"type": "float", "description": "A number."},
                "pair": {"type": "tuple", "items": {"type": "any"}},
            },
            "required": ["x"],
        },
    }


def write_data(folder, num_entries=60):
    """Entries whose functions are called by numbers: no two are alike."""
    pathlib.Path(folder, "possible_answer").mkdir()
    for category, count in (("simple_python", 1), ("multiple", 2)):
        entries, answers = [], []
        for i in range(num_entries):
            names = [f"{category}{i}of{j}" for j in range(count)]
            entry_id = f"{category}_{i}"
            question = [[{"role": "user", "content": f"Question {entry_id}?"}]]
            functions = [function(n) for n in names]
            entries.append({"id": entry_id, "question": question, "function": functions})
            answers.append({"id": entry_id, "ground_truth": [{names[-1]: {"x": [i]}}]})
        name = f"BFCL_v4_{category}.json"
        for path, lines in ((name, entries), (f"possible_answer/{name}", answers)):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            pathlib.Path(folder, path).write_text(text)


def false_checker(entry, calls):
    """Right is one call of the function that the truth names, with its x."""
    ((name, wanted),) = entry["ground_truth"][0].items()
    [call] = calls
    return call["name"] == name and call["arguments"]["x"] in wanted["x"]


class Prompts(unittest.TestCase):
    def setUp(self):
        with tempfile.TemporaryDirectory() as folder:
            write_data(folder)
            self.entries = bfcl.load_entries(pathlib.Path(folder))
        self.made = list(bfcl.requests(self.entries))

    def test_forty_questions_half_of_each_category_the_same_each_time(self):
        self.assertEqual(len(self.made), bfcl.NUM_ENTRIES)
        self.assertEqual(self.made, list(bfcl.requests(self.entries)))
        simple = [r for r in self.made if "simple_python" in r["custom_id"]]
        self.assertEqual(len(simple), bfcl.NUM_ENTRIES // 2)
        self.assertEqual(len({r["custom_id"] for r in self.made}), bfcl.NUM_ENTRIES)

    def test_the_right_function_is_there_once_among_many(self):
        for request in self.made:
            names = [t["function"]["name"] for t in request["tools"]]
            self.assertEqual(len(names), len(set(names)))
            entry = self.entries[request["custom_id"].removeprefix("bfcl-")]
            for own in entry["function"]:
                self.assertEqual(names.count(own["name"]), 1)
            tokens = documents.estimate_tokens("".join(json.dumps(t) for t in request["tools"]))
            self.assertTrue(4000 < tokens < 8000, tokens)

    def test_the_right_functions_are_not_all_in_front(self):
        firsts = set()
        for request in self.made:
            entry = self.entries[request["custom_id"].removeprefix("bfcl-")]
            names = [t["function"]["name"] for t in request["tools"]]
            firsts.add(names.index(entry["function"][0]["name"]) * 4 // len(names))
        self.assertEqual(firsts, {0, 1, 2, 3})

    def test_lists_follow_each_other(self):
        shown = [json.dumps(r["tools"]) for r in self.made]
        self.assertEqual(len(set(shown)), bfcl.NUM_ENTRIES // bfcl.ENTRIES_PER_LIST)
        self.assertEqual(shown, sorted(shown, key=shown.index))

    def test_types_become_those_of_json_schema(self):
        made = bfcl.as_tool(function("f"))["function"]["parameters"]
        self.assertEqual(made["type"], "object")
        self.assertEqual(made["properties"]["x"]["type"], "number")
        self.assertEqual(made["properties"]["pair"], {"type": "array", "items": {"type": "string"}})

    def test_functions_that_could_stand_in_for_the_right_one_are_left_out(self):
        self.assertTrue(bfcl.alike("math.hypot", ["math_hypot"]))
        self.assertTrue(bfcl.alike("area.triangle", ["x", "calculate_triangle.area"]))
        self.assertFalse(bfcl.alike("math.hypot", ["book_flight"]))
        entry = {"function": [function("get_area")]}
        entries = {"a": entry, "b": {"function": [function("area_get"), function("book")]}}
        tools = bfcl.tools_for([entry], entries, 5000, random.Random(0))
        self.assertEqual({t["function"]["name"] for t in tools}, {"get_area", "book"})


class Judge(unittest.TestCase):
    ENTRIES = {
        "multiple_1": {"category": "multiple", "ground_truth": [{"f": {"x": [1]}}], "function": []}
    }

    def text(self, call, ids):
        return {"text": f"<tool_call>\n{json.dumps(call)}\n</tool_call>", "token_ids": ids}

    def test_right_answers_are_counted_by_text(self):
        good = {"name": "f", "arguments": {"x": 1}}
        answers = [
            {
                "custom_id": "bfcl-multiple_1",
                "kind": "bfcl",
                "spec": spec,
                "full": self.text(good, [1, 2]),
                "unverified": unverified,
                "verified": self.text(good, [1, 2]) if spec == "int2" else None,
            }
            for spec, unverified in (
                ("int2", self.text({"name": "f", "arguments": {"x": 2}}, [1, 3])),
                ("int8", self.text(good, [1, 2])),
                ("int8", {"text": "no call", "token_ids": []}),
            )
        ]
        found = bfcl.judge(answers, self.ENTRIES, false_checker)
        self.assertEqual(found["int2"]["right"], {"full": 1, "unverified": 0, "verified": 1})
        self.assertEqual(found["int2"]["identical"]["unverified"], 0)
        self.assertEqual(found["int8"]["right"], {"full": 2, "unverified": 1})
        rows = bfcl.judged_table(found).split("\n")[2:]
        self.assertEqual(
            rows[0], "| int2 | 1/1 (100%) | 0/1 (0%) | 1/1 (100%) | 0/1 (0%) | 1/1 (100%) |"
        )
        self.assertEqual(rows[1], "| int8 | 2/2 (100%) | 1/2 (50%) | - | 1/2 (50%) | - |")

    def test_a_call_that_the_checker_trips_over_is_wrong(self):
        call = self.text({"name": "f", "arguments": {}}, [])  # false_checker raises KeyError
        self.assertFalse(bfcl.right(self.ENTRIES["multiple_1"], call["text"], false_checker))

    def test_an_answer_without_a_call_is_wrong_whatever_the_checker_says(self):
        call = self.text({"name": "f", "arguments": {}}, [])["text"]
        self.assertFalse(bfcl.right({}, "I cannot.", lambda entry, calls: True))
        self.assertTrue(bfcl.right({}, call, lambda entry, calls: True))


if __name__ == "__main__":
    unittest.main()
