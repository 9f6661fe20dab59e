"""Lets the tools of this folder import bench/table.py and bench/plot.py."""

import pathlib
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent
if str(BENCH) not in sys.path:
    sys.path.append(str(BENCH))
