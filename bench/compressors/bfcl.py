#!/usr/bin/env python3
"""A slice of the Berkeley Function Calling Leaderboard, with far more tools than are needed.

    PYTHON bench/compressors/bfcl.py prompts -o prompts/bfcl.jsonl
    PYTHON bench/compressors/bfcl.py judge ANSWERS.jsonl...

PYTHON has the package bfcl-eval, which brings questions, right answers and the AST checker. Each
list of tools holds the functions of five questions and, to reach its length, functions of other
questions, shuffled by a fixed seed; the five prompts follow each other. `judge` says how many
calls the checker accepts: of full KV's text, of the text of draft KV without verification, and of
the verified text.
"""

import argparse
import importlib.resources
import json
import pathlib
import random
import re
import sys
import types

import table_path  # noqa: F401  (finds bench/table.py)
import table
import tool_calls
from documents import estimate_tokens
from workloads import write

CATEGORIES = ("simple_python", "multiple")
NUM_ENTRIES = 40
ENTRIES_PER_LIST = 5
LIST_TOKENS = (4500, 6000, 7500)  # of a list of tools, in turn
SEED = 2605
MAX_TOKENS = 256
SYSTEM = "You are a helpful assistant."
# Behind each question. Without it the small Qwen coders put two braces around a call.
FORM = (
    "\n\nAnswer with one call of the function that fits, and with nothing else, in this form:\n"
    '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
)
# Types of the data set in JSON Schema's words; bfcl-eval does the same before it asks a model.
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
TEXTS = ("full", "unverified", "verified")


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def package_data():
    return importlib.resources.files("bfcl_eval") / "data"


def load_entries(data):
    """{id: entry}, the entry with its right answer and its category."""
    entries = {}
    for category in CATEGORIES:
        answers = read_lines(data / "possible_answer" / f"BFCL_v4_{category}.json")
        truth = {line["id"]: line["ground_truth"] for line in answers}
        for line in read_lines(data / f"BFCL_v4_{category}.json"):
            extra = {"ground_truth": truth[line["id"]], "category": category}
            entries[line["id"]] = line | extra
    return entries


def json_schema(node):
    """The description of a function with the types of JSON Schema."""
    if isinstance(node, list):
        return [json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: json_schema(value) for key, value in node.items()}
    if isinstance(made.get("type"), str):
        made["type"] = JSON_TYPES.get(made["type"], made["type"])
    return made


def as_tool(function):
    return {"type": "function", "function": json_schema(function)}


def words_of(name):
    return set(re.split(r"[._]", name.lower()))


def alike(name, others):
    """True where a function could answer in another's place, by its name."""
    words = words_of(name)
    return any(2 * len(words & words_of(o)) >= len(words | words_of(o)) for o in others)


def lists_of_entries(entries, rng):
    """Lists of questions none of whose functions are alike, half of each category."""
    order = []
    for category in CATEGORIES:
        ids = sorted(i for i, e in entries.items() if e["category"] == category)
        order.append(rng.sample(ids, len(ids)))
    waiting = [entries[i] for pair in zip(*order) for i in pair]
    lists = []
    while sum(map(len, lists)) < NUM_ENTRIES and waiting:
        names, taken = [], []
        for entry in waiting:
            own = [f["name"] for f in entry["function"]]
            if len(taken) < ENTRIES_PER_LIST and not any(alike(n, names) for n in own):
                names, taken = names + own, taken + [entry]
        lists.append(taken)
        waiting = [e for e in waiting if e not in taken]
    return lists


def tools_for(taken, entries, target, rng):
    """The functions of the questions and padding, each name once, shuffled."""
    functions = [f for entry in taken for f in entry["function"]]
    names = [f["name"] for f in functions]
    pool = [f for entry in entries.values() for f in entry["function"]]
    room = target - sum(estimate_tokens(json.dumps(as_tool(f))) for f in functions)
    for function in rng.sample(pool, len(pool)):
        tokens = estimate_tokens(json.dumps(as_tool(function)))
        if tokens <= room and not alike(function["name"], names):
            functions, names = functions + [function], names + [function["name"]]
            room -= tokens
    rng.shuffle(functions)
    return [as_tool(f) for f in functions]


def requests(entries):
    rng = random.Random(SEED)
    for index, taken in enumerate(lists_of_entries(entries, rng)):
        target = LIST_TOKENS[index % len(LIST_TOKENS)]
        tools = tools_for(taken, entries, target, rng)
        for entry in taken:
            yield {
                "custom_id": f"bfcl-{entry['id']}",
                "kind": "bfcl",
                "document": f"tools {index}",
                "messages": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": entry["question"][0][0]["content"] + FORM},
                ],
                "tools": tools,
                "max_tokens": MAX_TOKENS,
            }


def ast_checker():
    """bfcl-eval's own checker, without the SDKs of all the services it can ask.

    The checker looks one thing up in the package's table of models: whether a model cannot take
    dots in names. Ours can, so that a table that says so for each name stands in for it.
    """

    class Models(dict):
        def __missing__(self, name):
            return types.SimpleNamespace(underscore_to_dot=False)

    stand_in = types.ModuleType("bfcl_eval.constants.model_config")
    stand_in.MODEL_CONFIG_MAPPING = Models()
    sys.modules.setdefault(stand_in.__name__, stand_in)
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker as check

    def accepts(entry, calls):
        made = [{call["name"]: call["arguments"]} for call in calls]
        category, truth = entry["category"], entry["ground_truth"]
        return check(entry["function"], made, truth, Language.PYTHON, category, "any")["valid"]

    return accepts


def right(entry, text, accepts):
    calls = tool_calls.parse(text)
    if calls is None:
        return False
    try:
        return bool(accepts(entry, calls))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False  # the checker trips over calls of a wrong shape


def judge(answers, entries, accepts):
    """{spec: {"num_prompts", "identical": n, text: {"parses": n, "right": n}}}"""
    found = {}
    for answer in answers:
        entry = entries[answer["custom_id"].removeprefix("bfcl-")]
        counts = found.setdefault(answer["spec"], {"num_prompts": 0, "identical": {}, "right": {}})
        counts["num_prompts"] += 1
        for text in TEXTS:
            if answer[text] is None:
                continue
            same = answer[text]["token_ids"] == answer["full"]["token_ids"]
            good = right(entry, answer[text]["text"], accepts)
            counts["identical"][text] = counts["identical"].get(text, 0) + same
            counts["right"][text] = counts["right"].get(text, 0) + good
    return found


def judged_table(found):
    rows = []
    for spec, counts in found.items():
        n = counts["num_prompts"]
        row = [spec]
        for what, texts in (("right", TEXTS), ("identical", TEXTS[1:])):
            for text in texts:
                number = counts[what].get(text)
                row.append("-" if number is None else f"{number}/{n} ({number / n:.0%})")
        rows.append(row)
    head = ["draft KV", "right, full KV", "right, unverified", "right, verified"]
    return table.markdown(
        head + ["same tokens as full KV, unverified", "same tokens, verified"], rows
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    actions = parser.add_subparsers(dest="action", required=True)
    prompts = actions.add_parser("prompts", help="write a file of prompts")
    prompts.add_argument("-o", "--output", type=pathlib.Path, required=True)
    judging = actions.add_parser("judge", help="count right calls in answers")
    judging.add_argument("answers", nargs="+", type=pathlib.Path)
    judging.add_argument("--json", action="store_true", help="the counts as JSON")
    args = parser.parse_args()
    try:
        entries = load_entries(package_data())
    except ModuleNotFoundError:
        sys.exit("bfcl.py: this Python has no bfcl-eval; see bench/compressors/README.md")
    if args.action == "prompts":
        write(args.output, list(requests(entries)))
        return
    answers = [line for path in args.answers for line in read_lines(path)]
    found = judge(answers, entries, ast_checker())
    print(json.dumps({"bfcl": found}, indent=1) if args.json else judged_table(found))


if __name__ == "__main__":
    main()
