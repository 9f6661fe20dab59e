"""The command line that table.py and compressors/report.py share: tables that stand between markers
in documents, written anew from the records or compared with them."""

import argparse
import difflib
import pathlib
import sys


def main(description, docs, results, marked, show, filled):
    """show(path) is the text for one record; filled(text, results) a document with its tables."""
    parser = argparse.ArgumentParser(description=description)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--update", action="store_true", help="write the tables of documents")
    action.add_argument("--check", action="store_true", help="compare them with the records")
    parser.add_argument("--results", type=pathlib.Path, default=results)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    if not args.update and not args.check:
        for path in args.files:
            print("\n" + show(path))
        return
    wrong = 0
    for path in args.files or docs:
        old = path.read_text(encoding="utf-8")
        if not marked.search(old):
            sys.exit(f"{path} holds no table")
        new = filled(old, args.results)
        if args.update:
            path.write_text(new, encoding="utf-8")
        elif old != new:
            wrong += 1
            lines = old.splitlines(True), new.splitlines(True)
            sys.stdout.writelines(difflib.unified_diff(*lines, str(path), "from the records"))
    sys.exit(1 if wrong else 0)
