"""The recorded conversation of the coding agent: a repository in the system message, four tools,
and nine calls with their results.

It is written down here, not taken from any engine: each engine writes its own answer to each turn,
but what stands in the conversation afterwards is the recorded call and its result. So all engines
see the same conversation, whatever they say. What the tools answer is cut from the repository by
plain code; the reports of the tests are made up.
"""

import json
import re

import bench_path  # noqa: F401  (finds bench/compressors)
import documents
from workloads import text_field, tool

MODULES = ["shlex", "fnmatch", "csv"]
TOOLS = [
    tool("read_file", "Returns lines of a file, with their numbers.",
         path=text_field("The file, for example shlex.py."),
         first=text_field("Number of the first line."), last=text_field("Number of the last.")),
    tool("grep", "Returns the lines of a file that hold a text, with their numbers.",
         pattern=text_field("The text, taken literally."), path=text_field("The file.")),
    tool("write_file", "Replaces a file, or makes it.",
         path=text_field("The file."), content=text_field("All that it shall hold.")),
    tool("run_tests", "Runs the tests of a file and returns the report.",
         path=text_field("The file of tests.")),
]
SYSTEM = (
    "{text}\n# ===== end of the repository =====\n\n"
    "You are a coding agent. The repository is above. Work on the user's task step by step: call "
    "one tool at a time, wait for its result, and end with a short summary."
)
TASK = (
    "Give shlex.split a parameter `maxsplit` that works as the one of str.split: after so many "
    "splits the rest of the text comes as the last item, unchanged. -1, the default, splits "
    "everything. Write tests in test_split.py, and run them until they pass."
)
TESTS = '''import shlex
import unittest


class SplitTest(unittest.TestCase):
    def test_default_splits_all(self):
        self.assertEqual(shlex.split("a 'b c' d"), ["a", "b c", "d"])

    def test_one_split_keeps_the_rest(self):
        self.assertEqual(shlex.split("a 'b c' d", maxsplit=1), ["a", "'b c' d"])

    def test_zero_splits_nothing(self):
        self.assertEqual(shlex.split("a b", maxsplit=0), ["a b"])


if __name__ == "__main__":
    unittest.main()
'''
FIRST_TRY = '''def split(s, comments=False, posix=True, maxsplit=-1):
    """Split the string *s* using shell-like syntax, at most *maxsplit* times."""
    if s is None:
        raise ValueError("s argument must not be None")
    lex = shlex(s, posix=posix)
    lex.whitespace_split = True
    if not comments:
        lex.commenters = ''
    tokens = list(lex)
    if maxsplit < 0 or len(tokens) <= maxsplit:
        return tokens
    return tokens[:maxsplit] + [" ".join(tokens[maxsplit:])]
'''
SECOND_TRY = '''def split(s, comments=False, posix=True, maxsplit=-1):
    """Split the string *s* using shell-like syntax, at most *maxsplit* times."""
    if s is None:
        raise ValueError("s argument must not be None")
    lex = shlex(s, posix=posix)
    lex.whitespace_split = True
    if not comments:
        lex.commenters = ''
    tokens = []
    while maxsplit < 0 or len(tokens) < maxsplit:
        token = lex.get_token()
        if token == lex.eof:
            return tokens
        tokens.append(token)
    rest = lex.instream.read().strip()
    return tokens + [rest] if rest else tokens
'''
NO_PARAMETER = (
    ".EE\nERROR: test_one_split_keeps_the_rest (test_split.SplitTest)\n  File \"test_split.py\", "
    "line 10\nTypeError: split() got an unexpected keyword argument 'maxsplit'\n"
    "ERROR: test_zero_splits_nothing (test_split.SplitTest)\n  File \"test_split.py\", line 13\n"
    "TypeError: split() got an unexpected keyword argument 'maxsplit'\nFAILED (errors=2)"
)
QUOTES_LOST = (
    ".F.\nFAIL: test_one_split_keeps_the_rest (test_split.SplitTest)\n  File \"test_split.py\", "
    "line 10\nAssertionError: Lists differ: ['a', 'b c d'] != ['a', \"'b c' d\"]\n"
    "FAILED (failures=1)"
)
PASSED = "...\nRan 3 tests in 0.002s\nOK"


class Repository:
    def __init__(self, size, stdlib=None):
        stdlib = stdlib or documents.sysconfig.get_paths()["stdlib"]
        self.text = documents.Document(stdlib, MODULES, size).text
        parts = re.split(r"# ===== (\S+) =====\n", self.text)[1:]
        self.files = {name: body.split("\n") for name, body in zip(parts[::2], parts[1::2])}

    def numbered(self, path, numbers):
        lines = self.files[path]
        found = [f"{n}: {lines[n - 1]}" for n in numbers if 0 < n <= len(lines)]
        return "\n".join(found) or "no lines"

    def grep(self, path, pattern):
        return self.numbered(
            path, [n for n, line in enumerate(self.files[path], 1) if pattern in line])

    def around(self, path, pattern, before, count):
        """A call of read_file that begins `before` lines above the first line with `pattern`."""
        found = [n for n, line in enumerate(self.files[path], 1) if pattern in line]
        first = max(1, (found[0] if found else 1) - before)
        arguments = {"path": path, "first": str(first), "last": str(first + count - 1)}
        return "read_file", arguments, self.numbered(path, range(first, first + count))


def steps(repository):
    """[(tool, arguments, result)]"""
    path = "shlex.py"
    wrote = "wrote {} lines"
    return [
        ("grep", {"pattern": "def ", "path": path}, repository.grep(path, "def ")),
        repository.around(path, "def split", 2, 20),
        repository.around(path, "def get_token", 0, 40),
        ("write_file", {"path": "test_split.py", "content": TESTS},
         wrote.format(TESTS.count("\n"))),
        ("run_tests", {"path": "test_split.py"}, NO_PARAMETER),
        ("write_file", {"path": "shlex_split.py", "content": FIRST_TRY},
         wrote.format(FIRST_TRY.count("\n"))),
        ("run_tests", {"path": "test_split.py"}, QUOTES_LOST),
        ("write_file", {"path": "shlex_split.py", "content": SECOND_TRY},
         wrote.format(SECOND_TRY.count("\n"))),
        ("run_tests", {"path": "test_split.py"}, PASSED),
    ]


def turns(size, stdlib=None):
    """The messages of each of the ten turns, each the beginning of the next."""
    repository = Repository(size, stdlib)
    messages = [
        {"role": "system", "content": SYSTEM.format(text=repository.text)},
        {"role": "user", "content": TASK},
    ]
    yield list(messages)
    for number, (name, arguments, result) in enumerate(steps(repository)):
        call = {"id": f"call_{number}", "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result},
        ]
        yield list(messages)
