"""Compares the oracle of make_golden.py with kvpress's own scoring code, tensor by tensor.

Where we differ by design, kvpress's way is compared and ours follows from a change of one piece:
  snapkv    kvpress averages over queries and heads where we sum (the order is the same) and pools
            by the mean where we take the maximum; both pools are compared.
  h2o       kvpress divides by the number of queries that saw a key (ObservedAttention); the paper,
            and we, do not.
  expected  kvpress keeps no newest tokens; scores are compared.
  kvzip     kvpress keeps no newest tokens: compared with a window of 0, to the kept set.
"""

import importlib.util
import logging
import sys
from importlib.metadata import version
from types import SimpleNamespace
from unittest import mock

import make_golden as oracle
import numpy as np

TOLERANCE = 1e-5  # kvpress takes some softmaxes in float32


def near(ours, theirs, what):
    worst = np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max()
    assert worst < TOLERANCE, f"{what}: relative difference {worst:.2g}"
    return worst


class FakeLayer:
    """An attention layer whose query projection gives back what it gets."""

    def __init__(self, case, layer=0, rotary_emb=None):
        self.config = SimpleNamespace(
            num_attention_heads=case["num_heads"],
            num_key_value_heads=case["num_kv_heads"],
            _attn_implementation="sdpa",
        )
        self.head_dim = case["head_dim"]
        self.layer_idx = layer
        self.rotary_emb = rotary_emb

    def q_proj(self, hidden):
        return hidden


def heads_first(torch, x):
    """[rows][heads][d] to [1, heads, rows, d]."""
    return torch.from_numpy(np.ascontiguousarray(x.swapaxes(0, 1)))[None]


def hidden_of(torch, q):
    return torch.from_numpy(np.ascontiguousarray(q.reshape(1, len(q), -1)))


def unrotated(torch, rows, d):
    return torch.ones(1, rows, d, dtype=torch.float64), torch.zeros(1, rows, d, dtype=torch.float64)


def compare_sink(torch, kvpress, case, spec):
    keys = heads_first(torch, oracle.tensor(case, oracle.K, 0))
    press = kvpress.StreamingLLMPress(1 - spec["fraction"], n_sink=spec["sinks"])
    kept = int(spec["fraction"] * case["num_tokens"])
    if kept <= spec["sinks"]:  # kvpress then keeps the sinks alone
        return 0.0
    scores = press.score(FakeLayer(case), None, keys, keys, None, {})
    theirs = scores[0].topk(kept, dim=-1).indices.sort(dim=-1).values.tolist()
    assert theirs == oracle.select_sink(case, spec)[: case["num_kv_heads"]], case
    return 0.0


def compare_snapkv(torch, kvpress, case, spec):
    window, width, d = spec["window"], spec["pool"], case["head_dim"]
    if case.get("rows", window) != window:
        return 0.0  # kvpress knows whole windows only
    functional = torch.nn.functional
    worst = 0.0
    for layer in range(case["num_layers"]):
        hidden = hidden_of(torch, oracle.tensor(case, oracle.Q, layer))
        keys = heads_first(torch, oracle.tensor(case, oracle.K, layer))
        press = kvpress.SnapKVPress(0.5, window_size=window, kernel_size=width)
        at = dict(position_embeddings=unrotated(torch, case["num_tokens"], d))
        for how, pool in ((np.mean, functional.avg_pool1d), (np.max, functional.max_pool1d)):
            with mock.patch.object(functional, "avg_pool1d", pool):
                theirs = press.score(FakeLayer(case), hidden, keys, keys, None, at)[0].numpy()
            if how is np.max:  # kvpress then pools each head before the mean over heads: ours after
                if case["num_heads"] != case["num_kv_heads"]:
                    continue
            for head in range(case["num_kv_heads"]):
                ours = oracle.snapkv_scores(case, layer, head, window, window, width, how)
                ours /= window * (case["num_heads"] // case["num_kv_heads"])
                worst = max(worst, near(ours, theirs[head, :-window], case))
    return worst


def compare_h2o(torch, kvpress, case, spec):
    total, worst = case["num_tokens"], 0.0
    group = case["num_heads"] // case["num_kv_heads"]
    for layer in range(case["num_layers"]):
        queries = heads_first(torch, oracle.tensor(case, oracle.Q, layer))
        keys = heads_first(torch, oracle.tensor(case, oracle.K, layer))
        logits = queries @ keys.repeat_interleave(group, dim=1).transpose(2, 3)
        logits = logits / case["head_dim"] ** 0.5
        hidden = torch.ones(total, total, dtype=torch.bool).triu(1)
        weights = logits.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        press = kvpress.ObservedAttentionPress(0.5)
        theirs = press.score(FakeLayer(case), None, keys, keys, weights, {})[0].numpy()
        for head in range(case["num_kv_heads"]):
            ours = oracle.h2o_scores(case, layer, head) / group / np.arange(total, 0, -1)
            worst = max(worst, near(ours, theirs[head], case))
    return worst


def neox_order(case):
    """Channels so that pair i becomes (i, i + d / 2), as kvpress has them; and pairs that turn."""
    d, rotary = case["head_dim"], case["rotary_dim"]
    half, rest = rotary // 2, (d - rotary) // 2
    if case["adjacent"]:
        first, second = np.arange(0, rotary, 2), np.arange(1, rotary, 2)
    else:
        first, second = np.arange(half), np.arange(half, rotary)
    still = np.arange(rotary, d)
    return np.concatenate([first, still[:rest], second, still[rest:]]), half


def compare_expected(torch, kvpress, case, spec):
    order, turning = neox_order(case)
    inverse = case["rope_theta"] ** (-2.0 * np.arange(turning) / case["rotary_dim"])
    inverse = np.pad(inverse, (0, case["head_dim"] // 2 - turning))  # the others stand still

    def rotary_emb(x, position_ids):
        angles = position_ids[0, :, None].double() * torch.from_numpy(inverse)
        angles = torch.cat([angles, angles], dim=-1)[None]
        return angles.cos(), angles.sin()

    worst = 0.0
    for layer in range(case["num_layers"]):
        hidden = hidden_of(torch, oracle.tensor(case, oracle.RAW_Q, layer)[..., order])
        keys = heads_first(torch, oracle.tensor(case, oracle.K, layer)[..., order])
        values = heads_first(torch, oracle.tensor(case, oracle.V, layer))
        press = kvpress.ExpectedAttentionPress(0.5, spec["future"], spec["sinks"])
        layer_object = FakeLayer(case, layer, rotary_emb)
        theirs = press.score(layer_object, hidden, keys, values, None, {})[0].numpy()
        for head in range(case["num_kv_heads"]):
            ours = oracle.expected_scores(case, spec, layer, head)
            worst = max(worst, near(ours, theirs[head, spec["sinks"] :], case))
    return worst


def compare_kvzip(torch, kvpress, case, spec):
    total, heads, d = case["num_tokens"], case["num_kv_heads"], case["head_dim"]
    press = kvpress.KVzipPress(1 - spec["fraction"], chunk_size=spec["chunk"])
    press.context_length = total
    press.score_val = torch.zeros(case["num_layers"], 1, heads, total, dtype=torch.float64)
    layers = [FakeLayer(case, layer) for layer in range(case["num_layers"])]
    for number, (begin, end) in enumerate(oracle.chunks(case)):
        press.start_idx, press.end_idx = begin, end
        for layer, layer_object in enumerate(layers):
            q = oracle.tensor(case, oracle.Q, layer, number + 1)
            keys = [oracle.tensor(case, oracle.K, layer, which) for which in (0, number + 1)]
            keys = heads_first(torch, np.concatenate(keys))
            at = dict(position_embeddings=unrotated(torch, len(q), d))
            press.score_kvzip(layer_object, hidden_of(torch, q), keys, keys, None, at)
    ours = oracle.kvzip_scores(case)
    worst = near(ours, press.score_val.reshape(-1, total).numpy(), case)
    if int(ours.size * press.compression_ratio) + int(ours.size * spec["fraction"]) != ours.size:
        return worst  # the two ways of rounding keep one pair more or less
    kept = oracle.choose_kvzip(case, ours, spec["fraction"], press.n_sink, 0)
    press.compress_post(
        SimpleNamespace(
            model=SimpleNamespace(layers=[SimpleNamespace(self_attn=one) for one in layers])
        )
    )
    for layer, layer_object in enumerate(layers):
        gone = np.zeros((heads, total), bool)
        _, head_indices, positions = layer_object.masked_key_indices
        gone[head_indices, positions] = True
        for head in range(heads):
            assert np.flatnonzero(~gone[head]).tolist() == kept[layer * heads + head], case
    return worst


def import_kvpress():
    """kvpress imports what only other methods of it need; stand-ins will do."""
    for name in ("cachetools", "datasets", "fire", "requests"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = mock.MagicMock()
    import kvpress

    return kvpress


def compare(cases):
    import torch

    kvpress = import_kvpress()
    logging.disable(logging.WARNING)
    torch.set_default_dtype(torch.float64)  # of the matrices that kvpress makes itself
    compared = {
        "sink": compare_sink,
        "snapkv": compare_snapkv,
        "verify": compare_snapkv,
        "h2o": compare_h2o,
        "expected": compare_expected,
        "kvzip": compare_kvzip,
    }
    for case in cases:
        spec = oracle.parse(case["spec"])
        if spec["score"] == "vegas":
            continue  # not in kvpress
        with torch.no_grad():
            worst = compared[spec["selector"]](torch, kvpress, case, spec)
        if "instruction" in case and spec["selector"] == "verify":
            worst = max(worst, compare_kvzip(torch, kvpress, case, spec))
        print(f"{case['spec']:45} as in kvpress, to {worst:.1g}")
    return {"kvpress": version("kvpress"), "torch": torch.__version__}
