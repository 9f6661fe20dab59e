#!/usr/bin/env python3
"""Checks the repository's own rules: sizes, layers, banned flags. Standard library only.

    tests/repo/hygiene.py [ROOT]

Prints one line per finding, `path:line: [rule] what`, and exits 1 if there is any.
hygiene_test.py plants one violation of each rule and expects it to be found.
"""

import ast
import pathlib
import re
import subprocess
import sys

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 100

# A folder may include folders of a lower number, and itself; folders of one number do not see
# each other.
LAYERS = {
    "base": 0,
    "gguf": 1, "kernels": 1, "storage": 1, "hub": 1,
    "tokenizer": 2, "model": 2, "kv": 2, "remote": 2,
    "engine": 3,
    "scheduler": 4,
    "api": 5,
}
# The outermost folders see the public API (include/vericache) and what is named here, only.
OUTERMOST = {
    "cli": {"base", "hub", "server"},
    "server": {"base"},
    "sim": {"base", "scheduler"},
}
# Written in two halves, so that this file passes its own check.
LEFTOVERS = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")
# What lets a compiler change floating-point results; docs/exactness.md says why that is fatal.
UNSAFE_MATH = re.compile(
    r"-ffast" r"-math|-Of" r"ast|-funsafe" r"-math-optimizations|-fassociative" r"-math"
    r"|-ffp-con" r"tract=(?!off)|pragma\s+GCC\s+opt" r"imize|FP_CON" r"TRACT\s+ON")

CPP = {".cc", ".h"}
CODE = CPP | {".py", ".sh", ".cmake"}
CODE_NAMES = {"CMakeLists.txt", "CMakePresets.json", "Makefile", "demo", "check", "run"}
SKIPPED_FOLDERS = {".git", "build", ".cache", "__pycache__"}


class Finding:
    def __init__(self, path, line, rule, what):
        self.path, self.line, self.rule, self.what = path, line, rule, what

    def __str__(self):
        return f"{self.path}:{self.line}: [{self.rule}] {self.what}"


def list_files(root):
    """What git knows or would add; every file where there is no git or no repository."""
    try:
        out = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        names = [n for n in out.decode().split("\0") if n]
        paths = sorted(pathlib.PurePosixPath(n) for n in set(names))
        if paths:
            return [p for p in paths if (root / p).is_file()]
    except (OSError, subprocess.CalledProcessError):
        pass
    found = (p.relative_to(root) for p in root.rglob("*") if p.is_file())
    return sorted(pathlib.PurePosixPath(p) for p in found
                  if not SKIPPED_FOLDERS.intersection(p.parts))


def is_code(path):
    return path.suffix in CODE or path.name in CODE_NAMES


def strip_cpp(text):
    """Blanks comments, literals and preprocessor lines; keeps every line break."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/'
        r'|R"([^()\\ ]{0,16})\(.*?\)\1"'
        r'|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'"
        r'|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*',
        re.DOTALL | re.MULTILINE)

    def blank(match):
        return re.sub(r"[^\n]+", lambda m: '""' if match.group(0)[0] in "\"'R" else " ",
                      match.group(0))
    return pattern.sub(blank, text)


def kind_of_brace(head, paren_depth):
    """What a `{` opens outside any function, told by the text before it."""
    if paren_depth > 0:
        return "init"
    head = head.strip()
    flat = head
    while True:  # take out whole parentheses, innermost first
        smaller = re.sub(r"\([^()]*\)", "@", flat)
        if smaller == flat:
            break
        flat = smaller
    if re.search(r"\bnamespace\b|\bextern\s+\"", flat):
        return "scope"
    if "@" not in flat or re.match(r"(template\s*<.*>\s*)?(class|struct|union|enum)\b", flat):
        return "scope" if re.search(r"\b(class|struct|union|enum)\b", flat) else "init"
    if re.search(r"(?<![=!<>+\-*/])=(?!=)", flat.replace("operator=", "")):
        return "init"
    if re.search(r"@[^:@]*:(?!:).*[\w>]$", flat):
        return "init"  # a member in a constructor's list: `: size_{n}`
    return "function"


def cpp_functions(text):
    """Yields (first line, number of lines) of each function body. A heuristic on braces."""
    stack = []
    head = ""
    paren_depth = 0
    line = 1
    function_depth = None
    start = 0
    for char in strip_cpp(text):
        if char == "\n":
            line += 1
        if function_depth is not None:
            if char == "{":
                stack.append("block")
            elif char == "}" and stack:
                stack.pop()
                if len(stack) == function_depth:
                    yield start, line - start + 1
                    function_depth, head = None, ""
            continue
        if char == "{":
            kind = kind_of_brace(head, paren_depth)
            if kind == "function":
                function_depth, start = len(stack), line
            stack.append(kind)
            head = head + " " if kind == "init" else ""
        elif char == "}" and stack:
            # After `: size_{n}` the head goes on: the constructor's body is still to come.
            head = head.rstrip() + "@ " if stack.pop() == "init" else ""
        elif char == ";" and paren_depth == 0 and (not stack or stack[-1] != "init"):
            head = ""
        else:
            paren_depth += (char == "(") - (char == ")")
            head += char


def check_sizes(path, text, lines):
    if len(lines) > MAX_FILE_LINES:
        yield Finding(path, len(lines), "file-lines", f"{len(lines)} lines, at most 600")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS and path.suffix != ".json":
            yield Finding(path, number, "columns", f"{len(line)} columns, at most 100")
    functions = []
    if path.suffix in CPP:
        functions = cpp_functions(text)
    elif path.suffix == ".py":
        functions = [(node.lineno, node.end_lineno - node.lineno + 1)
                     for node in ast.walk(ast.parse(text))
                     if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for start, count in functions:
        if count > MAX_FUNCTION_LINES:
            yield Finding(path, start, "function-lines", f"{count} lines, at most 70")


def allowed_include(path, folder, target):
    """True if a file of src/`folder` may include "`target`/..."."""
    if target == folder:
        return True
    if target == "tests":
        return path.name.endswith("_test.cc")
    if folder in OUTERMOST:
        return target == "vericache" or target in OUTERMOST[folder]
    if target == "vericache":
        return folder == "api"
    if folder not in LAYERS or target not in LAYERS:
        return False
    return LAYERS[target] < LAYERS[folder]


def check_layers(path, lines):
    parts = path.parts
    if path.suffix not in CPP:
        return
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if not match or "/" not in match.group(1):
            continue
        target = match.group(1).split("/")[0]
        ours = target in LAYERS or target in OUTERMOST or target in ("vericache", "tests", "src")
        if not ours:
            continue
        if parts[0] == "src":
            good = allowed_include(path, parts[1], target)
        elif parts[0] in ("include", "examples"):
            good = target == "vericache"
        else:
            good = target != "src"
        if not good:
            yield Finding(path, number, "layers", f"must not include {match.group(1)}")


def check_lines(path, lines):
    for number, line in enumerate(lines, 1):
        if LEFTOVERS.search(line):
            yield Finding(path, number, "leftover", "file an issue instead, or do it")
        if UNSAFE_MATH.search(line.split("//" if path.suffix in CPP else "#")[0]):
            yield Finding(path, number, "unsafe-math", "changes floating-point results")
        if line != line.rstrip():
            yield Finding(path, number, "blanks", "blanks at the end of the line")
        if "\t" in line and path.name != "Makefile":
            yield Finding(path, number, "blanks", "a tab")
        if path.suffix in CPP and path.parts[0] == "src" and path.parts[1] != "cli":
            reads = re.search(r"\b(secure_)?getenv\s*\((?!\"TZ\")", line)
            if reads and "_test.cc" not in path.name:
                yield Finding(path, number, "environment", "only src/cli reads the environment")


def check_file(root, path):
    try:
        text = (root / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        yield Finding(path, 1, "encoding", "not UTF-8")
        return
    lines = text.split("\n")
    if lines[-1]:
        yield Finding(path, len(lines), "blanks", "no line break at the end of the file")
    else:
        lines.pop()
    yield from check_sizes(path, text, lines)
    yield from check_layers(path, lines)
    yield from check_lines(path, lines)


def check_tree(root):
    findings = []
    for path in list_files(root):
        if is_code(path):
            findings.extend(check_file(root, path))
    return findings


def main():
    here = pathlib.Path(__file__).resolve()
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else here.parents[2]
    findings = check_tree(root)
    for finding in findings:
        print(finding)
    num_files = sum(is_code(p) for p in list_files(root))
    if num_files == 0:
        print(f"no files found in {root}")
        return 1
    print(f"{num_files} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
