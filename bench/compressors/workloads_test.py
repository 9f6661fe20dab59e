#!/usr/bin/env python3
"""The prompts: the same each time, the document first, checks that the originals answer."""

import ast
import importlib
import json
import pathlib
import tempfile
import unittest

import checks
import documents
import sandbox
import workloads

MODULE = '''"""Doc."""
import os


def first(a, b=1):
    """First."""
    return a + b


# Belongs to the class.
class Box:
    def put(self, thing):
        self.thing = thing

    @property
    def size(self):
        return 1


def last(text):
    return text.upper()
'''


class Documents(unittest.TestCase):
    def make(self, target, modules=("one", "two")):
        with tempfile.TemporaryDirectory() as folder:
            for name in modules:
                pathlib.Path(folder, f"{name}.py").write_text(MODULE)
            return documents.Document(folder, list(modules), target)

    def test_modules_stand_in_order_and_functions_are_found(self):
        made = self.make(10_000)
        self.assertEqual(made.name, "one+two")
        names = [f.key for f in made.functions if f.module == "one"]
        self.assertEqual(names, ["one.first", "one.Box.put", "one.last"])  # no property
        self.assertLess(made.text.index("one.py"), made.text.index("two.py"))
        self.assertEqual(made.functions[0].source, MODULE[MODULE.index("def") :].split("\n\n\n")[0])

    def test_a_cut_falls_between_statements_and_keeps_to_the_size(self):
        whole = self.make(10_000, ["one"])
        cut = self.make(documents.estimate_tokens(whole.text) - 5, ["one"])
        self.assertEqual([f.label for f in cut.functions], ["first", "Box.put"])
        self.assertTrue(whole.text.startswith(cut.text.rstrip("\n")))
        self.assertNotIn("def last", cut.text)
        ast.parse(cut.text)
        self.assertLess(documents.estimate_tokens(cut.text), documents.estimate_tokens(whole.text))

    def test_the_estimate_counts_words_marks_and_blanks(self):
        self.assertEqual(documents.estimate_tokens(""), 0)
        # Words with the blank or mark before them, marks with the breaks behind, other blanks.
        self.assertEqual(len(documents.PIECE.findall("def f(x):\n    return x")), 7)
        self.assertEqual(documents.estimate_tokens("word " * 100), 109)


class Requests(unittest.TestCase):
    def setUp(self):
        self.made = {kind: list(workloads.requests(kind, "4k")) for kind in workloads.WORKLOADS}

    def test_the_same_python_gives_the_same_prompts(self):
        for kind, made in self.made.items():
            self.assertEqual(made, list(workloads.requests(kind, "4k")))

    def test_documents_stand_first_are_shared_and_follow_each_other(self):
        systems = {}
        for kind, made in self.made.items():
            self.assertGreaterEqual(len(made), 24)
            self.assertEqual(len({r["custom_id"] for r in made}), len(made))
            shown = [r["messages"][0]["content"] for r in made]
            systems[kind] = list(dict.fromkeys(shown))
            self.assertEqual(shown, sorted(shown, key=systems[kind].index))
            self.assertTrue(all(s.startswith("# ===== ") for s in shown))
        self.assertEqual(systems["code"], systems["tool"])
        self.assertEqual(systems["code"], systems["prose"])

    def test_what_is_asked_about_stands_in_the_document(self):
        for made in self.made.values():
            for request in made:
                for target in request["targets"]:
                    name = target.rsplit(".", 1)[1]
                    self.assertIn(f"def {name}(", request["messages"][0]["content"])

    def test_lengths_and_checks(self):
        for kind, made in self.made.items():
            for request in made:
                self.assertLess(abs(workloads.tokens_of(request) - 4200), 900, request["custom_id"])
                self.assertEqual(request["kind"], kind)
                self.assertEqual("tools" in request, kind == "tool")
        checked = {
            f["name"] for r in self.made["code"] if "check" in r for f in r["check"]["functions"]
        }
        self.assertGreaterEqual(len(checked), 8)

    def test_the_originals_pass_their_own_checks(self):
        for request in self.made["code"]:
            if check := request.get("check"):
                code = "\n\n".join(f["source"] for f in check["functions"])
                self.assertEqual(sandbox.verdict(code, check), "passes", request["custom_id"])

    def test_a_line_is_a_request(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "sub", "p.jsonl")
            workloads.write(path, self.made["tool"])
            lines = path.read_text(encoding="utf-8").splitlines()
        self.assertEqual([json.loads(line) for line in lines], self.made["tool"])


class Choice(unittest.TestCase):
    def test_spread_is_even_and_in_order(self):
        self.assertEqual(workloads.spread([1, 2, 3, 4, 5, 6], 3), [2, 4, 6])
        self.assertEqual(workloads.spread([1, 2], 3), [1, 2])

    def test_groups_stay_within_module_class_and_size(self):
        class F:
            def __init__(self, name, tokens, owner=None, module="m"):
                self.name, self.tokens, self.owner, self.module = name, tokens, owner, module

        made = [F("a", 40), F("b", 70), F("c", 90), F("big", 500), F("d", 120, "C"), F("e", 60)]
        found = [[f.name for f in g] for g in workloads.groups(made, 100, 180)]
        self.assertEqual(found, [["a", "b"], ["d"]])
        found = [[f.name for f in g] for g in workloads.trios(made)]
        self.assertEqual(found, [["a", "b", "c"]])


class Checks(unittest.TestCase):
    def test_each_checked_function_answers_at_least_one_call(self):
        for key, calls in checks.CHECKS.items():
            module, name = key.rsplit(".", 1)
            function = getattr(importlib.import_module(module), name)
            answered = 0
            for call in calls:
                arguments = ast.literal_eval(call)
                self.assertIsInstance(arguments, tuple, key)
                try:
                    function(*arguments)
                    answered += 1
                except Exception as error:  # an error can be the right answer, but not a misfit
                    self.assertNotIn("positional argument", str(error), key)
            self.assertGreater(answered, 0, key)


if __name__ == "__main__":
    unittest.main()
