"""The documents that the prompts are about: modules of Python's standard library, cut to size.

A module is taken apart into its top-level statements (comments and blanks before a statement go
with it); a document holds modules in a fixed order, up to the last statement that still fits.
Python's own functions and classes are never cut in two.
"""

import ast
import pathlib
import re
import sysconfig

# Modules by document, several to a document, at a target context in tokens.
DOCUMENTS = {
    "4k": [
        ["shlex", "fnmatch"],
        ["textwrap"],
        ["csv"],
        ["posixpath"],
        ["calendar"],
        ["bisect", "colorsys", "genericpath"],
        ["glob", "string"],
        ["quopri", "getopt"],
    ],
    "8k": [
        ["shlex", "fnmatch", "csv"],
        ["textwrap", "posixpath"],
        ["calendar", "colorsys"],
        ["heapq", "bisect", "genericpath"],
        ["glob", "string", "copy", "graphlib"],
        ["quopri", "getopt", "base64"],
    ],
    "16k": [
        ["textwrap", "shlex", "fnmatch", "csv", "posixpath"],
        ["calendar", "colorsys", "bisect", "heapq", "genericpath"],
        ["glob", "string", "quopri", "getopt", "copy", "graphlib", "pprint"],
        ["base64", "urllib.parse"],
        ["statistics", "netrc", "linecache"],
    ],
    "32k": [
        ["argparse", "textwrap", "shlex", "graphlib"],
        ["difflib", "heapq", "fnmatch"],
        ["configparser", "pathlib", "calendar"],
        ["statistics", "random", "pprint"],
    ],
}
# Tokens of a document, at most about. 32K leaves room for question, answer and draft in a context
# of 32,768.
TARGETS = {"4k": 4096, "8k": 8192, "16k": 16384, "32k": 29500}
PROMPTS_PER_DOCUMENT = {"4k": 3, "8k": 4, "16k": 4, "32k": 4}

# The pieces that tokenisers of the GPT-2 family never join, from Qwen2's pattern. With 1.08
# tokens a piece the estimate is within 6 % of Qwen2.5's count on each of the modules above.
PIECE = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)|(?:[^\r\n\w]|_)?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKENS_PER_PIECE = 1.08


def estimate_tokens(text):
    return round(TOKENS_PER_PIECE * len(PIECE.findall(text)))


class Function:
    """A function or a method of a document: where it stands and what it says."""

    def __init__(self, module, node, lines, owner=None):
        self.module, self.name, self.owner = module, node.name, owner
        self.source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        self.parameters = [a.arg for a in node.args.posonlyargs + node.args.args]
        self.tokens = estimate_tokens(self.source)

    @property
    def label(self):
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def key(self):
        return f"{self.module}.{self.label}"


class Document:
    def __init__(self, stdlib, modules, target):
        self.modules, self.functions, self.text = [], [], ""
        room = target
        for module in modules:
            room -= self._add(stdlib, module, room)
        self.name = "+".join(self.modules)

    def _add(self, stdlib, module, room):
        """Takes what fits of a module; returns the tokens used."""
        path = pathlib.Path(stdlib, module.replace(".", "/") + ".py")
        source = path.read_text(encoding="utf-8").expandtabs(4)
        lines, tree = source.split("\n"), ast.parse(source)
        head = f"# ===== {module.replace('.', '/')}.py =====\n"
        used, taken, functions = estimate_tokens(head), 0, []
        for node in tree.body:
            tokens = estimate_tokens("\n".join(lines[taken : node.end_lineno]) + "\n")
            if used + tokens > room:
                break
            used, taken = used + tokens, node.end_lineno
            functions += functions_of(module, node, lines)
        if taken:
            self.modules.append(module)
            self.functions += functions
            self.text += head + "\n".join(lines[:taken]) + "\n\n"
        return used if taken else 0


def functions_of(module, node, lines):
    if isinstance(node, ast.FunctionDef):
        return [Function(module, node, lines)]
    if isinstance(node, ast.ClassDef):
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        return [
            Function(module, n, lines, owner=node.name)
            for n in methods
            if not n.decorator_list
        ]
    return []


def documents(size, stdlib=None):
    stdlib = stdlib or sysconfig.get_paths()["stdlib"]
    return [Document(stdlib, modules, TARGETS[size]) for modules in DOCUMENTS[size]]
