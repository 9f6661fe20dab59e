#!/usr/bin/env python3
"""Makes the golden kept sets (see README.md beside this file).

A slow oracle in float64, written from the recipes of the papers, chooses positions from tensors
that a tiny generator makes here and in golden_test.cc alike. Before anything is written, its scores
are compared with those of NVIDIA's kvpress on the same tensors, wherever kvpress has the method.
"""

import argparse
import json
import platform
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
COMMAND = "python tests/golden/compressors/make_golden.py"
CUT_MARGIN = 1e-4  # relative: scores in float32 must not change places at the cut
SINKS_SEEN = 4  # keys that every softmax of a repetition sees (kvpress: n_sink)


class Close(Exception):
    """Two scores at the cut are too close to each other: another seed is taken."""


# --- Tensors -------------------------------------------------------------------------------------


def uniform(seed, count):
    """Numbers count of [-1, 1): SplitMix64, upper 24 bits."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def floats(seed, shape, scale, offset):
    """scale * uniform + offset * (channel % 5 - 2), in float32; the channel is the last axis."""
    values = uniform(seed, int(np.prod(shape))).reshape(shape) * np.float32(scale)
    return values + np.float32(offset) * (np.arange(shape[-1]) % 5 - 2).astype(np.float32)


K, V, Q, RAW_Q = range(4)
FORM = {K: (1.7, 0.25), V: (0.5, 0.0), Q: (3.0, 0.25), RAW_Q: (6.0, 2.0)}  # scale, offset


def tensor(case, which, layer, repeat=0):
    """[rows][heads][head_dim] in float64; keys and values are rounded to f16, as any cache is.

    repeat 0: of the prompt; i + 1: of the repetition of chunk i.
    """
    heads = case["num_heads"] if which in (Q, RAW_Q) else case["num_kv_heads"]
    rows = case["num_tokens"] if repeat == 0 else repeat_rows(case, repeat - 1)
    seed = case["seed"] * 65536 + repeat * 256 + layer * 4 + which
    values = floats(seed, (rows, heads, case["head_dim"]), *FORM[which])
    if which in (K, V):
        values = values.astype(np.float16)
    return values.astype(np.float64)


def chunks(case):
    size, total = parse(case["spec"])["chunk"], case["num_tokens"]
    return [(begin, min(total, begin + size)) for begin in range(0, total, size)]


def repeat_rows(case, chunk):
    """An instruction of any length, then the chunk itself."""
    begin, end = chunks(case)[chunk]
    return case["instruction"] + end - begin


def parse(text):
    spec = dict(sinks=4, window=32, pool=7, chunk=2048, future=512, floor=0.0, score="snapkv")
    head, *pairs = text.split("+")[0].split(",")
    spec["selector"], _, fraction = head.partition(":")
    spec["fraction"] = float(fraction) if fraction else 0.25
    for pair in pairs:
        key, value = pair.split("=")
        kind = type(spec.get(key, ""))
        spec[key] = kind(value)
    return spec


# --- Pieces --------------------------------------------------------------------------------------


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attention(queries, first_pos, keys):
    """Causal weights [rows][heads][keys]; keys: of one KV head."""
    logits = np.einsum("rhd,td->rht", queries, keys) / np.sqrt(keys.shape[-1])
    seen = np.arange(keys.shape[0]) <= (first_pos + np.arange(len(queries)))[:, None]
    return softmax(np.where(seen[:, None, :], logits, -np.inf))


def group_of(case, tensor_of_heads, kv_head):
    size = case["num_heads"] // case["num_kv_heads"]
    return tensor_of_heads[:, kv_head * size : (kv_head + 1) * size]


def pooled(values, width, how):
    half = width // 2
    padded = np.pad(values, half, constant_values=0.0)  # scores are not negative
    return how(np.lib.stride_tricks.sliding_window_view(padded, width), axis=-1)


def check_cut(ranked, count):
    """ranked: scores, largest first. Equal ones are equal in float32, too: max-pool copies them."""
    if 0 < count < len(ranked):
        above, below = ranked[count - 1], ranked[count]
        if above != below and above - below <= CUT_MARGIN * abs(above):
            raise Close


def best(scores, count):
    """The `count` largest; ties: the lower position."""
    count = min(max(0, count), len(scores))
    order = np.argsort(-scores, kind="stable")
    check_cut(scores[order], count)
    return sorted(order[:count].tolist())


def best_of_all(scores, count):
    """scores [lists][positions], one budget: positions per list. Ties: the lower list."""
    flat = scores.reshape(-1)
    order = best(flat, count)
    width = scores.shape[1]
    return [[i % width for i in order if i // width == n] for n in range(len(scores))]


def share(fraction, total, at_least):
    return min(total, max(int(fraction * total), at_least))


# --- Recipes: lists of positions, [layer * num_kv_heads + kv_head] -------------------------------


def heads_of(case):
    return [(la, h) for la in range(case["num_layers"]) for h in range(case["num_kv_heads"])]


def select_sink(case, spec):
    """StreamingLLM (2309.17453): sinks and the newest; original positions are kept."""
    total = case["num_tokens"]
    count = share(spec["fraction"], total, spec["sinks"] + 1)
    sinks = min(spec["sinks"], count - 1)
    return [[*range(sinks), *range(total - count + sinks, total)] for _ in heads_of(case)]


def snapkv_scores(case, layer, kv_head, window, rows, width, how):
    """SnapKV (2404.14469) of the keys before the window, summed over queries and heads."""
    total = case["num_tokens"]
    queries = group_of(case, tensor(case, Q, layer)[total - rows :], kv_head)
    weights = attention(queries, total - rows, tensor(case, K, layer)[:, kv_head])
    return pooled(weights.sum(axis=(0, 1))[: total - window], width, how)


def select_snapkv(case, spec):
    total = case["num_tokens"]
    window = min(spec["window"], total)
    rows = case.get("rows", window)
    count = share(spec["fraction"], total, window) - window
    floor = [[]] * len(heads_of(case))
    if spec["floor"] > 0:  # KVzip's share of all pairs comes first and out of the same budget
        scores = kvzip_scores(case)
        floor = best_of_all(scores, int(spec["floor"] * scores.size))
        count -= min(count, int(spec["floor"] * total))
    kept = []
    for (layer, kv_head), first in zip(heads_of(case), floor):
        scores = snapkv_scores(case, layer, kv_head, window, rows, spec["pool"], np.max)
        first = [pos for pos in first if pos < total - window]
        rest = np.setdiff1d(np.arange(total - window), first)
        voted = rest[best(scores[rest], count)].tolist()
        kept.append(sorted(first + voted) + [*range(total - window, total)])
    return kept


def select_vegas(case, spec):
    """The first and the last query of a round; one choice for all heads of a layer."""
    total = case["num_tokens"]
    rows = case["rows"]
    kept = []
    for layer in range(case["num_layers"]):
        votes = np.zeros(total)
        queries, keys = tensor(case, Q, layer), tensor(case, K, layer)
        for row in sorted({total - rows, total - 1}):
            for kv_head in range(case["num_kv_heads"]):
                group = group_of(case, queries[row : row + 1], kv_head)
                votes += attention(group, row, keys[:, kv_head]).sum(axis=(0, 1))
        count = share(spec["fraction"], total, 1)
        positions = best(votes[:-1], count - 1) + [total - 1]
        kept += [positions] * case["num_kv_heads"]
    return kept


def h2o_scores(case, layer, kv_head):
    """H2O (2306.14048): attention received from all queries, summed over the group."""
    queries = group_of(case, tensor(case, Q, layer), kv_head)
    return attention(queries, 0, tensor(case, K, layer)[:, kv_head]).sum(axis=(0, 1))


def select_h2o(case, spec):
    total = case["num_tokens"]
    half = int(spec["fraction"] / 2 * total)
    recent = total - max(1, half)
    return [
        best(h2o_scores(case, layer, kv_head)[:recent], half) + [*range(recent, total)]
        for layer, kv_head in heads_of(case)
    ]


def mean_rotation(case, spec):
    """E[R] over the positions ahead, [head_dim][head_dim]; channels from rotary_dim on stay."""
    d, rotary, half = case["head_dim"], case["rotary_dim"], case["rotary_dim"] // 2
    ahead = case["num_tokens"] + np.arange(spec["future"])
    angles = ahead[:, None] * case["rope_theta"] ** (-2.0 * np.arange(half) / rotary)
    cos, sin = np.cos(angles).mean(axis=0), np.sin(angles).mean(axis=0)
    rotation = np.eye(d)
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if case["adjacent"] else (i, i + half)
        rotation[[a, a, b, b], [a, b, a, b]] = [cos[i], -sin[i], sin[i], cos[i]]
    return rotation


def expected_scores(case, spec, layer, kv_head):
    """Expected Attention (2510.00636) of the keys behind the sinks."""
    sinks, d = spec["sinks"], case["head_dim"]
    keys = tensor(case, K, layer)[sinks:, kv_head]
    values = tensor(case, V, layer)[sinks:, kv_head]
    rotation = mean_rotation(case, spec)
    weights = []
    for queries in group_of(case, tensor(case, RAW_Q, layer)[sinks:], kv_head).swapaxes(0, 1):
        mean = rotation @ queries.mean(axis=0)
        centred = queries - queries.mean(axis=0)
        covariance = rotation @ (centred.T @ centred / len(queries)) @ rotation.T
        logits = keys @ mean / np.sqrt(d)
        logits += np.einsum("ti,ij,tj->t", keys, covariance, keys) / (2 * d)
        weights.append(softmax(logits))
    return np.mean(weights, axis=0) * np.linalg.norm(values, axis=-1)


def select_expected(case, spec):
    total, sinks = case["num_tokens"], spec["sinks"]
    recent = max(sinks, total - spec["window"])
    count = share(spec["fraction"], total, 0) - sinks - (total - recent)
    kept = []
    for layer, kv_head in heads_of(case):
        scores = expected_scores(case, spec, layer, kv_head)[: recent - sinks]
        chosen = [pos + sinks for pos in best(scores, count)]
        kept.append([*range(sinks), *chosen, *range(recent, total)])
    return kept


def kvzip_scores(case):
    """KVzip (2505.23416): the most that any query of the repetition attends to a key of the chunk,
    where softmax runs over 4 sinks, the chunk and the repetition's own keys. [lists][positions]"""
    scores = np.zeros((len(heads_of(case)), case["num_tokens"]))
    for number, (begin, end) in enumerate(chunks(case)):
        sinks = min(SINKS_SEEN, begin)
        for n, (layer, kv_head) in enumerate(heads_of(case)):
            prompt = tensor(case, K, layer)[:, kv_head]
            own = tensor(case, K, layer, number + 1)[:, kv_head]
            keys = np.concatenate([prompt[:sinks], prompt[begin:end], own])
            queries = group_of(case, tensor(case, Q, layer, number + 1), kv_head)
            weights = attention(queries, len(keys) - len(own), keys)
            scores[n, begin:end] = weights[..., sinks : sinks + end - begin].max(axis=(0, 1))
    return scores


def choose_kvzip(case, scores, fraction, sinks, window):
    """One budget over all layers and heads; sinks and window come first and out of it."""
    total = case["num_tokens"]
    recent = max(sinks, total - window)
    count = int(fraction * scores.size) - len(scores) * (sinks + total - recent)
    return [
        [*range(sinks), *(pos + sinks for pos in chosen), *range(recent, total)]
        for chosen in best_of_all(scores[:, sinks:recent], count)
    ]


def select_kvzip(case, spec):
    scores = kvzip_scores(case)
    return choose_kvzip(case, scores, spec["fraction"], spec["sinks"], spec["window"])


def select(case):
    spec = parse(case["spec"])
    name = "vegas" if spec["score"] == "vegas" else spec["selector"]
    kept = {
        "sink": select_sink,
        "snapkv": select_snapkv,
        "verify": select_snapkv,
        "vegas": select_vegas,
        "h2o": select_h2o,
        "expected": select_expected,
        "kvzip": select_kvzip,
    }[name](case, spec)
    for part in spec["keep"].split("/") if "keep" in spec else []:
        first, _, last = part.partition("-")
        for n, (layer, _head) in enumerate(heads_of(case)):
            if int(first) <= layer <= int(last or first):
                kept[n] = [*range(case["num_tokens"])]
    return kept


# --- Cases ---------------------------------------------------------------------------------------


def shape(layers, heads, kv_heads, head_dim, num_tokens):
    return dict(
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        num_tokens=num_tokens,
    )


def rope(adjacent, rotary_dim, theta):
    return dict(adjacent=adjacent, rotary_dim=rotary_dim, rope_theta=theta)


REPEAT = dict(instruction=7)
NEOX32, ADJACENT32 = rope(False, 32, 10000.0), rope(True, 32, 10000.0)
CASES = [
    ("sink:0.25", shape(2, 4, 2, 32, 130)),
    ("sink:0.1,sinks=0", shape(1, 2, 2, 32, 99)),
    ("sink:0.02,sinks=8", shape(1, 2, 1, 32, 100)),
    ("snapkv:0.25", shape(2, 4, 4, 32, 300)),
    ("snapkv:0.25", shape(2, 4, 2, 48, 257)),
    ("snapkv:0.5,window=64,pool=5", shape(1, 6, 2, 64, 200)),
    ("snapkv:0.15,window=16,pool=1", shape(2, 4, 1, 32, 333)),
    ("snapkv:0.4,window=1,pool=3", shape(1, 2, 2, 40, 128)),
    ("snapkv:0.35,window=8,pool=63", shape(1, 4, 2, 32, 320)),
    ("snapkv:0.25,keep=1", shape(3, 4, 2, 32, 180)),
    ("verify:0.25", shape(2, 8, 2, 32, 290) | dict(rows=32)),
    ("verify:0.3,window=32", shape(2, 3, 1, 64, 190) | dict(rows=5)),
    ("verify:0.2,window=8,pool=9", shape(1, 4, 4, 32, 210) | dict(rows=8)),
    ("verify:0.07,score=vegas", shape(3, 4, 2, 32, 400) | dict(rows=7)),
    ("verify:0.3,score=vegas", shape(2, 6, 2, 48, 150) | dict(rows=1)),
    ("verify:0.15,score=vegas,keep=0/2", shape(3, 2, 2, 64, 222) | dict(rows=2)),
    ("verify:0.3,floor=0.1,chunk=64", shape(2, 4, 2, 32, 250) | dict(rows=32) | REPEAT),
    ("verify:0.25,floor=0.25,chunk=128", shape(2, 4, 1, 32, 200) | dict(rows=32) | REPEAT),
    ("h2o:0.25", shape(2, 4, 2, 32, 300)),
    ("h2o:0.4", shape(1, 4, 4, 64, 161)),
    ("h2o:0.1,keep=1", shape(2, 8, 2, 32, 200)),
    ("expected:0.3", shape(2, 4, 2, 32, 280) | NEOX32),
    ("expected:0.3", shape(1, 4, 1, 32, 200) | ADJACENT32),
    ("expected:0.25,sinks=0,window=1,future=64", shape(1, 3, 3, 48, 190) | rope(False, 24, 5e5)),
    ("expected:0.5,sinks=9,window=16", shape(2, 4, 4, 64, 150) | rope(True, 16, 1e6)),
    ("kvzip:0.3,chunk=64", shape(2, 4, 2, 32, 300) | REPEAT),
    ("kvzip:0.2,chunk=128,window=8", shape(3, 4, 4, 32, 256) | REPEAT),
    ("kvzip:0.4", shape(2, 6, 2, 48, 230) | REPEAT),
    ("kvzip:0.25,chunk=80,sinks=0,window=1", shape(2, 4, 1, 64, 161) | dict(instruction=1)),
    ("kvzip:0.3,chunk=96,sinks=20,keep=0", shape(2, 4, 2, 32, 200) | REPEAT),
]


def make_case(number, spec, settings):
    for attempt in range(200):
        case = {"spec": spec, "seed": (number + 1) * 1000 + attempt, **settings}
        try:
            kept = select(case)
        except Close:
            continue
        for positions in kept:
            assert positions == sorted(set(positions)) and positions[-1] == case["num_tokens"] - 1
        return case, kept
    raise RuntimeError(f"no seed for {spec}")


def ranges(positions):
    """[0, 1, 2, 7] as "0-2/7"."""
    parts, start = [], 0
    for i in range(1, len(positions) + 1):
        if i < len(positions) and positions[i] == positions[i - 1] + 1:
            continue
        first, last = positions[start], positions[i - 1]
        parts.append(str(first) if first == last else f"{first}-{last}")
        start = i
    return "/".join(parts)


def write_kept_files(out):
    """What kept_file_test.cc reads: numpy's own .npz files, with and without compression."""
    arrays = {
        "L0": np.array([0, 1, 2, 77], np.int32),
        "L0H1": np.array([300, 5, 9, 5], np.uint16),
        "all": np.arange(0, 400, 100, dtype=np.int64),
    }
    np.savez(out / "kept_stored.npz", **arrays)
    np.savez_compressed(out / "kept_deflated.npz", **arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    made = [make_case(i, spec, settings) for i, (spec, settings) in enumerate(CASES)]
    sys.path.insert(0, str(HERE))
    import against_kvpress

    tools = {"python": platform.python_version(), "numpy": np.__version__}
    tools |= against_kvpress.compare([case for case, _ in made])
    lines = []
    for case, kept in made:
        text = json.dumps({**case, "kept": [ranges(positions) for positions in kept]})
        lines.append("  " + text.replace(', "kept"', ',\n   "kept"'))
    (args.out / "kept.golden.json").write_text(
        '{"tools": %s,\n "command": %s,\n "cases": [\n%s\n ]}\n'
        % (json.dumps(tools), json.dumps(COMMAND), ",\n".join(lines))
    )
    write_kept_files(args.out)


if __name__ == "__main__":
    main()
