"""Tables that stand between markers in documents, written anew from the records or compared with
them: what table.py and the report.py of the benchmarks share.

    <!-- NAME KINDS: FILE... -->     KINDS: comma-separated, may be missing
    <!-- end -->
"""

import argparse
import difflib
import pathlib
import re
import sys


def marked(name):
    return re.compile(rf"(<!-- {name} ?([\w,]*): (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def fill(text, name, known, show):
    """`text` with its tables made anew: show(file, kinds) for each record that a marker names.

    known: the kinds a marker may name; None: any.
    """

    def made_anew(match):
        kinds = [kind for kind in match.group(2).split(",") if kind]
        if known is not None and (unknown := [kind for kind in kinds if kind not in known]):
            sys.exit(f"<!-- {name}: no table {', '.join(unknown)}")
        made = "\n\n".join(show(file, kinds) for file in match.group(3).split())
        return f"{match.group(1)}{made}\n{match.group(5)}"

    if text.count(f"<!-- {name}") != len(marked(name).findall(text)):
        sys.exit(f"<!-- {name}: a marker without its end, or without a file")
    return marked(name).sub(made_anew, text)


def main(description, docs, results, name, show, filled):
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
        if not marked(name).search(old):
            sys.exit(f"{path} holds no table")
        new = filled(old, args.results)
        if args.update:
            path.write_text(new, encoding="utf-8")
        elif old != new:
            wrong += 1
            lines = old.splitlines(True), new.splitlines(True)
            sys.stdout.writelines(difflib.unified_diff(*lines, str(path), "from the records"))
    sys.exit(1 if wrong else 0)
