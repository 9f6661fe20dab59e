#!/usr/bin/env python3
"""Exact figures beside soft ones, for full KV, draft KV unverified, and verified.

    bench/compressors/exact.py ANSWERS.jsonl... [--prompts PROMPTS.jsonl...] [--json]

ANSWERS come from `vericache compressors --answers`. Soft: token F1 against full KV's text. Exact:
the same tokens; Python that parses, and is the same program; functions that answer fixed calls as
the originals do (for prompts with "check", in a child with limits); a tool call that parses, and
is the same call.
"""

import argparse
import ast
import collections
import functools
import json
import pathlib
import re
import textwrap

import sandbox
import table_path  # noqa: F401  (finds bench/table.py)
import table
import tool_calls

TEXTS = ("full", "unverified", "verified")
_BLOCK = re.compile(r"```(?:python|py)?[ ]*\n(.*?)(?:\n```|\Z)", re.DOTALL)


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def token_f1(ours, theirs):
    """F1 of two bags of tokens, as for answers to questions: order does not count."""
    if not ours and not theirs:
        return 1.0
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def python_block(text):
    """The first fenced block; the whole text where nothing is fenced."""
    found = _BLOCK.search(text)
    return textwrap.dedent(found.group(1) if found else text) + "\n"


def program(text):
    """The syntax tree of an answer's Python as text; None where it does not parse."""
    try:
        return ast.dump(ast.parse(python_block(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def structure(kind, text):
    """What must be equal for an answer to mean the same; None where it does not parse."""
    if kind == "code":
        return program(text)
    if kind in ("tool", "bfcl"):
        return tool_calls.parse(text)
    return None


class Counts:
    """Of one kind, spec and text: how many answers are what."""

    def __init__(self):
        self.num_prompts = self.identical = 0
        self.f1 = []
        self.parses = self.same_meaning = None  # None: nothing to parse in this kind
        self.num_checks = self.passes = 0
        self.reasons = collections.Counter()

    def add(self, kind, answer, text, passes):
        full, ours = answer["full"], answer[text]
        self.num_prompts += 1
        self.identical += ours["token_ids"] == full["token_ids"]
        self.f1.append(token_f1(ours["token_ids"], full["token_ids"]))
        if kind in ("code", "tool", "bfcl"):
            found = structure(kind, ours["text"])
            same = found is not None and found == structure(kind, full["text"])
            self.parses = (self.parses or 0) + (found is not None)
            self.same_meaning = (self.same_meaning or 0) + same
        if passes is not None:
            self.num_checks += 1
            self.passes += passes == "passes"
            if passes != "passes":
                self.reasons[passes] += 1

    def record(self):
        return {
            "num_prompts": self.num_prompts,
            "identical": self.identical,
            "token_f1": sum(self.f1) / len(self.f1),
            "parses": self.parses,
            "same_meaning": self.same_meaning,
            "num_checks": self.num_checks,
            "passes": self.passes,
            "failures": dict(self.reasons.most_common()),
        }


def measure(answers, checks, verdict=sandbox.verdict):
    """[{"kind", "spec", "text", counts}], in the order of the answers."""
    judged = functools.cache(lambda custom_id, code: verdict(code, checks[custom_id]))
    found = {}
    for answer in answers:
        for text in TEXTS:
            if answer[text] is None:
                continue
            passes = None
            if answer["custom_id"] in checks:
                passes = judged(answer["custom_id"], python_block(answer[text]["text"]))
            key = answer["kind"], answer["spec"], text
            counts = found.setdefault(key, Counts())
            counts.add(answer["kind"], answer, text, passes)
    order = sorted(found, key=lambda key: (key[0], list(found).index(key)))
    return [dict(zip(("kind", "spec", "text"), key)) | found[key].record() for key in order]


def share(number, of):
    return "-" if number is None or not of else f"{number}/{of}"


def exact_table(rows):
    """Full KV once a kind, with what a perfect copy would reach; then the specs."""
    lines, shown = [], set()
    for row in rows:
        if row["text"] == "full":
            if row["kind"] in shown:
                continue
            shown.add(row["kind"])
        name = "full KV" if row["text"] == "full" else f"{row['spec']}, {row['text']}"
        n = row["num_prompts"]
        lines.append(
            [row["kind"], name, f"{row['token_f1']:.2f}", share(row["identical"], n)]
            + [share(row["parses"], n), share(row["same_meaning"], n)]
            + [share(row["passes"], row["num_checks"])]
        )
    head = ["workload", "text", "token F1", "same tokens", "parses", "same program or call"]
    return table.markdown(head + ["passes checks"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("answers", nargs="+", type=pathlib.Path)
    parser.add_argument("--prompts", nargs="+", default=[], type=pathlib.Path)
    parser.add_argument("--json", action="store_true", help="a record for bench/results")
    args = parser.parse_args()
    prompts = [line for path in args.prompts for line in read_lines(path)]
    checks = {line["custom_id"]: line["check"] for line in prompts if "check" in line}
    answers = [line for path in args.answers for line in read_lines(path)]
    rows = measure(answers, checks)
    print(json.dumps({"exact": rows}, indent=1) if args.json else exact_table(rows))


if __name__ == "__main__":
    main()
