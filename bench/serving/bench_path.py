"""Lets the tools of this folder import those of bench and bench/compressors."""

import pathlib
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent
for folder in (BENCH, BENCH / "compressors"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
