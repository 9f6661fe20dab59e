"""Runs functions that a model wrote, apart from everything: `python3 -I -S`, limits, a time limit.

The child gets the answer and the checks on its standard input and says in one line whether each
rewritten function answers as the original does. It starts in an empty folder with an empty
environment, may write to no file, and loses its streams before the answer runs, so that nothing
the answer prints is taken for the verdict.
"""

import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile

CPU_SECONDS = 5
MEMORY_BYTES = 512 << 20
WALL_SECONDS = 15  # more than the CPU limit: a sleeping answer ends too
OPEN_FILES = 64

CHILD = r"""
import __future__, ast, importlib, json, os, sys
job = json.load(sys.stdin)
verdict = os.fdopen(os.dup(1), "w")
nothing = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(nothing, stream)

def names_of(source):
    # Annotations are never evaluated: a name that only they use need not exist.
    flags = __future__.annotations.compiler_flag
    names = dict(vars(importlib.import_module(job["module"])))
    exec(compile(source, "<answer>", "exec", flags, True), names)
    return names

def outcome(function, call):
    arguments = ast.literal_eval(call)
    try:
        result = function(*arguments)
        if hasattr(result, "__next__"):
            result = list(result)
        return repr((result, arguments))
    except BaseException as error:
        return type(error).__name__

def judge():
    defined = {n.name for n in ast.parse(job["code"]).body if isinstance(n, ast.FunctionDef)}
    wanted = [f["name"] for f in job["functions"]]
    if missing := [name for name in wanted if name not in defined]:
        return "does not define " + ", ".join(missing)
    old = names_of("\n\n".join(f["source"] for f in job["functions"]))
    new = names_of(job["code"])
    for f in job["functions"]:
        for call in f["calls"]:
            if outcome(old[f["name"]], call) != outcome(new[f["name"]], call):
                return f["name"] + call + " has another outcome"
    return "passes"

try:
    said = judge()
except BaseException as error:
    said = type(error).__name__
print(job["token"], said, file=verdict)
verdict.flush()
os._exit(0)
"""


def _limit():
    for what, value in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),  # root is above it; its processes end with the group
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (value, value))


def verdict(code, check):
    """ "passes", or why the code does not pass `check` (as workloads.py writes it)."""
    token = secrets.token_hex(16)
    job = json.dumps({**check, "code": code, "token": token})
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd=folder,
            preexec_fn=_limit,
            start_new_session=True,
            text=True,
        )
        try:
            said, _ = child.communicate(job, timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            said = ""
        finally:  # what the answer started goes with it
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
    for line in said.splitlines():
        if line.startswith(token + " "):
            return line.removeprefix(token + " ")
    return "ran out of time or memory"
