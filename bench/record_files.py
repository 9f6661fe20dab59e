"""Files of records, a JSON line a round: read again by a run that was stopped, drawn by plots."""

import argparse
import json
import pathlib

import table


def read_again(path, common, settings, die):
    """The complete rounds of an earlier run; a line that a kill has cut is dropped.

    settings: what must be the same for records to stand in one file; die(text) where it is not.
    """
    if not path.is_file():
        return []
    records, kept = [], []
    for line in path.read_text("utf-8").splitlines():
        try:
            records.append(json.loads(line))
            kept.append(line + "\n")
        except ValueError:
            print(f"{path}: a line that is not complete is measured again", flush=True)
    for record in records:
        if other := [key for key in settings if record[key] != common[key]]:
            die(f"{path} has records of another {other[0]}: give another file with -o")
    path.write_text("".join(kept), encoding="utf-8")
    return records


def plot_main(description, svg):
    """A command that draws files of records: svg(records) is the picture's text."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    made = svg([record for path in args.files for record in table.load(path)])
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(made, encoding="utf-8")
