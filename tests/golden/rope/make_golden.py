#!/usr/bin/env python3
"""Makes rope.golden.json: YaRN angles as Hugging Face transformers computes them.

    tests/golden/regenerate.sh        # or, with transformers and torch at hand:
    python tests/golden/rope/make_golden.py

Transformers computes frequencies and angles in float32, which is 0.01 rad off at position 131,071.
So there are two tables of each case: `float32` is what its rotary embedding gives as it is, at
small positions; `float64` is what the same function gives where torch's float32 is replaced by
float64 while it runs, with cosines and sines in float64, rounded once.
"""

import json
import platform
import sys
from pathlib import Path
from unittest import mock

import numpy as np

HERE = Path(__file__).resolve().parent
FLOAT32_POSITIONS = [0, 1, 37]
FLOAT64_POSITIONS = [1, 4097, 131071]

# head_dim, rope_theta, and rope_parameters beside it.
CASES = {
    "qwen2.5-0.5b": (64, 1e6, dict(factor=4.0, original_max_position_embeddings=32768)),
    "qwen2.5-1.5b": (128, 1e6, dict(factor=4.0, original_max_position_embeddings=32768)),
    "odd_factor": (64, 1e5, dict(factor=2.7, original_max_position_embeddings=8192)),
    "betas_and_attention_factor": (
        128,
        1e4,
        dict(
            factor=16.0,
            original_max_position_embeddings=4096,
            beta_fast=48.0,
            beta_slow=2.0,
            attention_factor=1.125,
        ),
    ),
    "partial": (
        64,
        1e4,
        dict(factor=8.0, original_max_position_embeddings=2048, partial_rotary_factor=0.5),
    ),
    # Both ends of the mixed range fall on pair 0.
    "no_range": (16, 1e6, dict(factor=4.0, original_max_position_embeddings=6)),
}


def config_of(head_dim, theta, parameters):
    from transformers import Qwen2Config

    return Qwen2Config(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters=dict(rope_type="yarn", rope_theta=theta, **parameters),
    )


def numbers(values, digits):
    return [float(f"{float(x):.{digits}g}") for x in values]


def rows(cos, sin):
    return {"cos": numbers(cos, 9), "sin": numbers(sin, 9)}


def float32_table(config, half):
    """The rotary embedding as models run it."""
    import torch
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

    embedding = Qwen2RotaryEmbedding(config)
    positions = torch.tensor([FLOAT32_POSITIONS])
    cos, sin = embedding(torch.zeros(1, dtype=torch.float32), positions)
    return [
        dict(position=p, **rows(cos[0, i, :half], sin[0, i, :half]))
        for i, p in enumerate(FLOAT32_POSITIONS)
    ]


def float64_table(config):
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    with (
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch, "float32", torch.float64),
    ):
        inverse, attention = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    assert inverse.dtype == torch.float64
    inverse = inverse.numpy()
    table = []
    for position in FLOAT64_POSITIONS:
        angles = position * inverse
        cos = np.float32(np.cos(angles) * attention)
        sin = np.float32(np.sin(angles) * attention)
        table.append(dict(position=position, **rows(cos, sin)))
    return inverse, float(attention), table


def main():
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    cases = {}
    for name, (head_dim, theta, parameters) in CASES.items():
        config = config_of(head_dim, theta, parameters)
        inverse, attention, exact = float64_table(config)
        cases[name] = {
            "rotary_dim": 2 * len(inverse),
            "rope_theta": theta,
            "parameters": parameters,
            "attention_factor": attention,
            "inverse_frequencies": numbers(inverse, 17),
            "float64": exact,
            "float32": float32_table(config, len(inverse)),
        }
    golden = {
        "tools": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
        "command": "python tests/golden/rope/make_golden.py",
        "cases": cases,
    }
    path = HERE / "rope.golden.json"
    text = json.dumps(golden, indent=1)
    path.write_text(join_lists(text) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes", file=sys.stderr)


def join_lists(text):
    """One line for each list of numbers."""
    lines, inside = [], False
    for line in text.split("\n"):
        if inside:
            lines[-1] += line.strip()
        else:
            lines.append(line)
        inside = lines[-1].endswith(("[", ",")) and lines[-1].count("[") > lines[-1].count("]")
        if lines[-1].endswith("[{"):
            lines[-1:] = [lines[-1][:-1], "{"]
            inside = False
    return "\n".join(lines)


if __name__ == "__main__":
    main()
