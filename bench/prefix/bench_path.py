"""Lets the tools of this folder import those of bench, its folders and tests/netns."""

import pathlib
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent
for folder in (BENCH, BENCH / "compressors", BENCH / "serving", BENCH.parent / "tests/netns"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
