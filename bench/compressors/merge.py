#!/usr/bin/env python3
"""Joins records of `vericache compressors --json` over different prompts into one record.

    bench/compressors/merge.py PART.json... [--spec SPEC]... -o bench/results/NAME.json

A long study is run a document at a time; the figures of the whole are computed anew from the
prompts of all parts, by the same definitions as in the command. All parts have the same model,
draft length, threads and specs.
"""

import argparse
import json
import pathlib
import statistics
import sys

SAME = ("model", "draft_len", "num_threads", "isa")


def quantile(values, share):
    """The lower of the two values that the share lies between, as in the command."""
    return sorted(values)[int(share * (len(values) - 1))]


def weighted(prompts, key):
    total = sum(p["num_compared"] for p in prompts)
    return sum(p[key] * p["num_compared"] for p in prompts) / total if total else 0.0


def decoded(prompts):
    """What the prompts tell that were decoded with the spec; {} if none was."""
    chosen = [p for p in prompts if "identical" in p]
    if not chosen:
        return {}
    tokens = sum(p["answer_tokens"] - 1 for p in chosen)
    firsts = [p["first_divergence"] if p["first_divergence"] >= 0 else p["answer_tokens"]
              for p in chosen]
    return {
        "num_identical": sum(p["identical"] for p in chosen),
        "first_divergence_median": statistics.median(firsts),
        "token_f1": statistics.mean(p["token_f1"] for p in chosen),
        "verified_tok_s": tokens / sum(p["verified_decode_s"] for p in chosen),
        "full_tok_s": tokens / sum(p["full_decode_s"] for p in chosen),
    }


def summarize(prompts):
    runs = [run for p in prompts for run in p["runs"]]
    # What proposes without a draft KV has no distribution to compare.
    kl = {"mean_kl": weighted(prompts, "mean_kl")} if "mean_kl" in prompts[0] else {}
    return kl | {
        "num_prompts": len(prompts),
        "num_rounds": len(runs),
        "kept_fraction": statistics.mean(p["kept_fraction"] for p in prompts),
        "read_fraction": statistics.mean(p["read_fraction"] for p in prompts),
        "mean_run_length": statistics.mean(runs) if runs else 0.0,
        "median_run_length": statistics.median(runs) if runs else 0.0,
        "p10_run_length": quantile(runs, 0.1) if runs else 0.0,
        "agreement": weighted(prompts, "agreement"),
        "num_decoded": sum("identical" in p for p in prompts),
    } | decoded(prompts)


def only(part, names):
    """The part with these specs alone, in this order."""
    specs = {spec["spec"]: spec for spec in part["specs"]}
    if missing := [name for name in names if name not in specs]:
        raise ValueError(f"a part has no {missing[0]}")
    return part | {"specs": [specs[name] for name in names]}


def merge(parts):
    first = parts[0]
    names = [spec["spec"] for spec in first["specs"]]
    for part in parts[1:]:
        for key in SAME:
            if part[key] != first[key]:
                raise ValueError(f"parts differ in {key}: {part[key]!r} and {first[key]!r}")
        if [spec["spec"] for spec in part["specs"]] != names:
            raise ValueError("parts differ in their specs")
    merged = {key: first[key] for key in SAME} | {"specs": []}
    for idx, name in enumerate(names):
        prompts = [p for part in parts for p in part["specs"][idx]["prompts"]]
        ids = [p["custom_id"] for p in prompts]
        if len(set(ids)) != len(ids):
            raise ValueError("a prompt is in two parts")
        kinds = dict.fromkeys(p["kind"] for p in prompts)
        by_kind = {kind: summarize([p for p in prompts if p["kind"] == kind]) for kind in kinds}
        merged["specs"].append({"spec": name} | summarize(prompts)
                               | {"by_kind": by_kind, "prompts": prompts})
    return merged


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", type=pathlib.Path)
    parser.add_argument("-o", "--output", required=True, type=pathlib.Path)
    parser.add_argument("--spec", action="append", help="join this spec alone; may be repeated")
    args = parser.parse_args()
    try:
        parts = [json.loads(path.read_text(encoding="utf-8")) for path in args.parts]
        if args.spec:
            parts = [only(part, args.spec) for part in parts]
        merged = merge(parts)
    except (KeyError, ValueError) as error:
        sys.exit(f"{parser.prog}: {error}")
    args.output.write_text(json.dumps(merged) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
