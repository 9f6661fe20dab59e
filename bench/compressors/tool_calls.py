"""The tool calls in an answer, as JSON says them."""

import json
import re

_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FENCED = re.compile(r"```(?:json|xml)?\s*\n(.*?)```", re.DOTALL)


def first_value(text):
    """The JSON value that a text begins with, without what follows; all of it if there is none."""
    try:
        return text[: json.JSONDecoder().raw_decode(text)[1]]
    except ValueError:
        return text


def parse(text):
    """[{"name": ..., "arguments": {...}}], or None where the answer is not one or more calls.

    Calls stand in <tool_call> tags. The small Qwen coders often leave the tags out: a fenced
    block counts as well, or JSON that an answer begins with, but nothing that is not strict JSON.
    """
    pieces = _TAGGED.findall(text) or _FENCED.findall(text)
    if not pieces and text.lstrip().startswith(("{", "[")):
        pieces = [first_value(text.lstrip())]
    calls = []
    for piece in pieces:
        try:
            found = json.loads(piece)
        except ValueError:
            return None
        calls += found if isinstance(found, list) else [found]
    good = all(
        isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("arguments"), dict)
        for call in calls
    )
    return calls if calls and good else None
