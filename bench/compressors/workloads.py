#!/usr/bin/env python3
"""Writes prompts for `vericache compressors`: code edits, tool calls, prose, over long contexts.

    bench/compressors/workloads.py code 4k -o prompts/code-4k.jsonl

The document stands first in the system message, and the prompts of one document follow each
other, so that its KV is computed once; the three workloads share the documents. The same Python
gives the same file. Lengths are estimates: no tokeniser is needed.
"""

import argparse
import json
import pathlib
import sys

from checks import CHECKS
from documents import DOCUMENTS, PROMPTS_PER_DOCUMENT, documents, estimate_tokens

MAX_TOKENS = 256
# A rewrite is as long as what it rewrites: within these it fills most of MAX_TOKENS and ends.
EDIT_TOKENS = (100, 180)
FEWER_TOKENS = (50, 180)  # for documents with few functions of that size
SYSTEM = (
    "{text}\n# ===== end of the sources =====\n\n"
    "You are an assistant for programmers. The sources above are the context of each question."
)
EDITS = [
    "add a type annotation to each parameter and to the return value",
    "{renames}",
    "raise TypeError with a clear message as the first statement after the docstring if the first "
    "argument is None",
    "add the comment line `# reviewed` above each return statement",
]
EDIT_RULES = (
    "Copy {names} from {module}.py in the sources above, line by line, and make one change: "
    "{edit}. Everything else stays as it is, docstrings and comments too. Answer with one Python "
    "code block that begins with `def {first}(`{indent} and ends with the last line of "
    "`{last}`. Write nothing else."
)


def tool(name, description, **properties):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
            },
        },
    }


def text_field(description):
    return {"type": "string", "description": description}


def list_of(description, **properties):
    items = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "array", "description": description, "items": items}


TOOLS = [
    tool(
        "record_symbols",
        "Stores what an index of the code base knows about functions and methods.",
        module=text_field("The module, for example shlex."),
        symbols=list_of(
            "One entry a function, in the order asked for.",
            name=text_field("The name as it stands in the source."),
            signature=text_field("The whole def line, copied from the source."),
            returns=text_field("What it returns, in a few words."),
            summary=text_field("What it does, in one sentence."),
        ),
    ),
    tool(
        "plan_tests",
        "Queues test cases for a function.",
        function=text_field("The function under test."),
        cases=list_of(
            "The cases, each with another purpose.",
            name=text_field("A name such as test_empty_input."),
            given=text_field("The arguments, described in plain words without quotation marks."),
            expected=text_field("What must come out, in plain words without quotation marks."),
            reason=text_field("Why this case matters, in one sentence."),
        ),
    ),
    tool(
        "replace_lines",
        "Replaces single lines of a source file.",
        file=text_field("The file, for example shlex.py."),
        edits=list_of(
            "The edits in the order of the lines.",
            function=text_field("The function that the line belongs to."),
            old=text_field("The line as it stands in the source, copied exactly."),
            new=text_field("The line that takes its place."),
        ),
    ),
]
CALLS = [
    "Call record_symbols once, with one entry for each of {names} of {module}.",
    "Call plan_tests once, with three different cases for {first} of {module}; describe arguments "
    "and results in plain words.",
    "Call replace_lines once on {module}.py, with one edit for the def line of each of {names}: "
    "the old line as it stands, and the same line with type annotations.",
]
FORMS = [
    '{"module": ..., "symbols": [{...}, ...]}',
    '{"function": ..., "cases": [{...}, ...]}',
    '{"file": ..., "edits": [{...}, ...]}',
]
CALL_RULES = (
    " Answer with one tool call and nothing else, in this form:\n<tool_call>\n"
    '{{"name": "{tool}", "arguments": {form}}}\n</tool_call>'
)
QUESTIONS = [
    "Explain {names} of the module {module} in four paragraphs, for a reader who has not seen the "
    "source. First paragraph: the purpose. Second: the steps, in the order of the statements. "
    "Third: the special cases and the errors. Fourth: how a caller uses them. No lists, no code.",
    "Write an article of four paragraphs on the module {module}. First paragraph: which problem "
    "it solves. Second: its classes and functions, and how they work together. Third: the part "
    "that {names} play. Fourth: what it leaves to its callers. No lists, no code.",
    "Write a review of {names} of the module {module} in four paragraphs. First paragraph: what "
    "the code takes and returns. Second: what is done well. Third: what could go wrong, with the "
    "statement that it hangs on. Fourth: what you would test. No lists, no code.",
    "Tell a beginner in four paragraphs what happens when somebody calls {first} of the module "
    "{module}. First paragraph: why one would call it. Second: what it does first. Third: what it "
    "does then, and which other functions it relies on. Fourth: an example, told in words. No "
    "lists, no code.",
]


def quoted(functions):
    names = [f"`{f.label}`" for f in functions]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def groups(functions, low, high):
    """Runs of neighbours (of one module and one class) that have low to high tokens."""
    found, current = [], []
    for function in functions:
        usable = function.tokens <= high
        same = current and (current[0].module, current[0].owner) == (
            function.module,
            function.owner,
        )
        if not same or not usable or sum(f.tokens for f in current) + function.tokens > high:
            found, current = found + [current], []
        if usable:
            current = current + [function]
    return [g for g in found + [current] if g and sum(f.tokens for f in g) >= low]


def spread(items, count):
    """`count` of the items, evenly, in order; all of them where there are fewer."""
    if len(items) <= count:
        return items
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def trios(functions):
    """Three neighbours of one module and one class at a time; the last ones may be two."""
    found = []
    for function in functions:
        last = found[-1] if found else []
        same = last and (last[0].module, last[0].owner) == (function.module, function.owner)
        if same and len(last) < 3:
            last.append(function)
        else:
            found.append([function])
    return [group for group in found if len(group) > 1]


def choose(document, kind, count):
    """Groups of functions all over the document, those preferred first."""
    found = trios(document.functions)
    if kind != "tool":
        found = groups(document.functions, *EDIT_TOKENS)
    if len(found) < count:
        found = groups(document.functions, *FEWER_TOKENS)
    prefer = has_checks if kind == "code" else is_top_level
    liked = [i for i, group in enumerate(found) if prefer(group)]
    others = [i for i in range(len(found)) if i not in liked]
    picked = spread(liked, count)
    picked = picked + spread(others, count - len(picked))
    if len(picked) < count:
        sys.exit(f"workloads.py: {document.name} has {len(picked)} groups of functions of {count}")
    return [found[i] for i in sorted(picked)]


def is_top_level(group):
    return group[0].owner is None


def has_checks(group):
    return all(f.key in CHECKS for f in group)


def renames(functions):
    """What to call the first parameter, for each function that has one."""
    said = []
    for f in functions:
        own = f.parameters[1:] if f.owner else f.parameters
        if own:
            said.append(f"rename the parameter `{own[0]}` of `{f.label}` to `{own[0]}_given`")
    return "; ".join(said)


def code_prompt(group, number):
    edit = EDITS[number % len(EDITS)]
    if "{renames}" in edit and not renames(group):
        edit = EDITS[0]
    asked = EDIT_RULES.format(
        names=quoted(group),
        module=group[0].module.replace(".", "/"),
        edit=edit.format(renames=renames(group)),
        first=group[0].name,
        last=group[-1].label,
        indent=", not indented," if group[0].owner else "",
    )
    fields = {"targets": [f.key for f in group]}
    if has_checks(group):
        fields["check"] = {
            "module": group[0].module,
            "functions": [
                {"name": f.name, "source": f.source, "calls": CHECKS[f.key]} for f in group
            ],
        }
    return asked, fields


def asking(template, group):
    asked = template.format(
        names=quoted(group), first=f"`{group[0].label}`", module=group[0].module
    )
    return asked, {"targets": [f.key for f in group]}


def tool_prompt(group, number):
    which = number % len(CALLS)
    asked, fields = asking(CALLS[which], group)
    rules = CALL_RULES.format(tool=TOOLS[which]["function"]["name"], form=FORMS[which])
    return asked + rules, fields | {"tools": TOOLS}


def prose_prompt(group, number):
    return asking(QUESTIONS[number % len(QUESTIONS)], group[:3])


WORKLOADS = {"code": code_prompt, "tool": tool_prompt, "prose": prose_prompt}


def requests(kind, size, stdlib=None):
    number = 0
    for index, document in enumerate(documents(size, stdlib)):
        for group in choose(document, kind, PROMPTS_PER_DOCUMENT[size]):
            asked, fields = WORKLOADS[kind](group, number)
            number += 1
            yield {
                "custom_id": f"{kind}-{size}-{index:02}-{number:03}",
                "kind": kind,
                "document": document.name,
                "messages": [
                    {"role": "system", "content": SYSTEM.format(text=document.text)},
                    {"role": "user", "content": asked},
                ],
                "max_tokens": MAX_TOKENS,
                **fields,
            }


def tokens_of(request):
    """Estimated length of the prompt, tools included."""
    tools = "".join(json.dumps(t) for t in request.get("tools", []))
    return estimate_tokens("".join(m["content"] for m in request["messages"]) + tools)


def write(path, made):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(request, ensure_ascii=False) + "\n" for request in made]
    path.write_text("".join(lines), encoding="utf-8")
    lengths = [tokens_of(request) for request in made]
    print(
        f"{path}: {len(made)} prompts, {min(lengths):,} to {max(lengths):,} tokens (estimated), "
        f"{sum('check' in r for r in made)} with checks"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("kind", choices=WORKLOADS)
    parser.add_argument("size", choices=DOCUMENTS)
    parser.add_argument("--stdlib", type=pathlib.Path, help="folder of another Python's library")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    write(args.output, list(requests(args.kind, args.size, args.stdlib)))


if __name__ == "__main__":
    main()
