"""Names of variants and of draft specs, as they stand in records."""

import re

RAM_SERIAL = "full KV in RAM, one after another"
RAM_AT_ONCE = "full KV in RAM, all at once"
RAM_DRAFT = "VeriCache, all in RAM"
UNVERIFIED = "draft KV alone in RAM, unverified"
STREAMED = "full KV read for every token"
LOCK_STEP = "VeriCache, lock-step"
STAGGERED = "VeriCache, staggered"
PEERS = {
    "off": "llama.cpp in RAM, flash attention off",
    "on": "llama.cpp in RAM, flash attention on",
}
BUDGET = re.compile(r" @1/(\d+)$")
SPEC = re.compile(r"^\w+(:[\d.]+)(?:,[^+]*)?(\+\w+)?$")


def under_budget(name, parts):
    """The variant under a budget of a `parts`-th of the full KV of all requests."""
    return f"{name} @1/{parts}"


def base_of(name):
    return BUDGET.sub("", name)


def parts_of(name):
    """8 for a budget of an eighth; None in RAM."""
    found = BUDGET.search(name)
    return int(found.group(1)) if found else None


def sink_of(spec):
    """A draft KV as large as `spec` that `vericache bench` can step on; None if there is none."""
    found = SPEC.match(spec)
    return f"sink{found.group(1)}{found.group(2) or ''}" if found else None
