#!/usr/bin/env python3
"""Makes the golden models and their expected logits (see README.md beside this file).

Tiny random llama and qwen2 models are written by transformers, converted to GGUF by llama.cpp's own
convert_hf_to_gguf.py, and run by transformers in float32 with eager attention. No tensor is written
by code of ours, so a mistake of ours in a layout (the converter permutes Llama's Q and K) cannot
repeat itself in the golden.
"""

import argparse
import hashlib
import json
import logging
import platform
import re
import runpy
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

HERE = Path(__file__).resolve().parent
COMMAND = "python tests/golden/model/make_golden.py --llama-cpp DIR"  # DIR: llama.cpp's source tree
SEED = 20260617613
VOCAB_SIZE = 288
SHORT, LONG = 5, 150  # prompt lengths; LONG spans three 64-position blocks
# Where whole rows of logits are stored.
POSITIONS = {SHORT: [0, 2, 4], LONG: [0, 63, 64, 65, 127, 149]}
GREEDY = 24  # tokens of greedy continuation stored with the short prompt

# The pre-tokenizer regular expressions of the real models, as their tokenizer.json files give them.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

LLAMA = dict(
    kind="llama", rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=10000.0)
)
QWEN2 = dict(
    kind="qwen2", rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1000000.0)
)
# An original context so small that all three regimes show within 150 positions.
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=256,
)
# Pairs of all three kinds (head_dim 32, base 10,000): 3 as trained, 6 between, 7 scaled wholly.
YARN_ROPE = dict(
    rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=1024
)


def sizes(hidden, heads, kv_heads, intermediate, layers, tied):
    return dict(
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        tie_word_embeddings=tied,
    )


# name -> (--outtype, tokenizer.ggml.pre, settings). Sizes keep each file under 300 KB and all of
# them under 1 MB.
MODELS = {
    "llama_tied": ("f32", "smollm", LLAMA | sizes(48, 3, 1, 64, 2, True)),
    "llama_head_dim": ("f16", "smollm", LLAMA | sizes(48, 4, 2, 80, 2, True) | dict(head_dim=32)),
    "llama3_untied": (
        "bf16",
        "llama-bpe",
        LLAMA | sizes(64, 4, 1, 64, 2, False) | dict(rope_parameters=LLAMA3_ROPE),
    ),
    "qwen2_untied": ("f16", "qwen2", QWEN2 | sizes(64, 4, 2, 80, 2, False)),
    "qwen2_tied": ("bf16", "qwen2", QWEN2 | sizes(112, 7, 1, 40, 1, True)),
    "llama_q8_0": ("q8_0", "gpt-2", LLAMA | sizes(64, 4, 2, 96, 2, False)),
    "qwen2_yarn": (
        "f16",
        "qwen2",
        QWEN2 | sizes(64, 2, 1, 80, 2, True) | dict(rope_parameters=YARN_ROPE),
    ),
}

TRAINING_TEXT = [
    "the cat and the hat: in the end, the answer is checked in the full cache",
    "return 12 + 345; // then",
    "there is no other thing than this one here, and that is the reason",
    "for (int i = 0; i < n; ++i)",
]
TOKENIZER_CASES = [
    "",
    "the cat",
    " the  cat\n\n  sat",
    "I'm, you'RE, they'll",
    "year 1984, 20231, 3.14159",
    "tab\tend \r\n x",
    "naïve café – “quoted”",
    "漢字とかな 한글",
    "🙂🚀👩‍💻",
    "if (x<=10){return -1;}\n",
    "<|im_start|>user",
    "   ",
]


def representable(x):
    """Rounds to what f32, f16 and bf16 all hold exactly: a file's type then changes no weight."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    y = bits.astype(np.uint32).view(np.float32).copy()
    y[np.abs(y) < 2.0**-14] = 0.0
    return y


def quantised_q8_0(x, gguf):
    kind = gguf.GGMLQuantizationType.Q8_0
    return gguf.quants.dequantize(
        gguf.quants.quantize(np.ascontiguousarray(x, np.float32), kind), kind
    )


def fill(model, outtype, rng, gguf):
    """Lively weights: logits of std 2, attention far from uniform, norms not 1, biases not 0."""
    import torch

    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = rng.standard_normal(tuple(p.shape)).astype(np.float32)
            if "norm" in name:
                w = 1.0 + 0.25 * noise
            elif name.endswith(".bias"):
                w = 0.5 * noise
            elif "embed_tokens" in name or "lm_head" in name:
                w = noise * (2.0 / np.sqrt(p.shape[1]))
            else:
                gain = 1.4 if ("q_proj" in name or "k_proj" in name) else 1.0
                w = noise * (gain / np.sqrt(p.shape[1]))
            w = representable(w)
            if outtype == "q8_0" and w.ndim == 2:
                w = quantised_q8_0(
                    w, gguf
                )  # transformers then runs the very weights that the file holds
            p.copy_(torch.from_numpy(np.ascontiguousarray(w)))


def make_tokenizer(pre, folder):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tok = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=pre in ("smollm", "gpt-2")
    )
    first = {
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        "gpt-2": [],
        "qwen2": [pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated")],
        "llama-bpe": [pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated")],
    }[pre]
    tok.pre_tokenizer = pre_tokenizers.Sequence(first + [byte_level])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        TRAINING_TEXT,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    assert tok.get_vocab_size() == VOCAB_SIZE, tok.get_vocab_size()
    PreTrainedTokenizerFast(
        tokenizer_object=tok, bos_token="<|endoftext|>", eos_token="<|im_end|>"
    ).save_pretrained(folder)
    plain = Tokenizer.from_str(tok.to_str())
    plain.encode_special_tokens = True  # special-token text inside user text stays text
    return [
        {"text": t, "ids": plain.encode(t, add_special_tokens=False).ids} for t in TOKENIZER_CASES
    ]


def convert(llama_cpp, folder, outfile, outtype, pre):
    """Runs convert_hf_to_gguf.py as it is; only the name of our unknown tokenizer is supplied."""
    script = llama_cpp / "convert_hf_to_gguf.py"
    from conversion.base import TextModel

    argv = [
        str(script),
        str(folder),
        "--outfile",
        str(outfile),
        "--outtype",
        outtype,
        "--model-name",
        outfile.stem,
    ]
    with (
        mock.patch.object(TextModel, "get_vocab_base_pre", lambda self, tokenizer: pre),
        mock.patch.object(sys, "argv", argv),
    ):
        runpy.run_path(str(script), run_name="__main__")


def run(model, ids, kv16):
    """Logits of all positions in one pass.

    kv16: keys (after rope) and values are rounded to f16 before anyone attends to them.
    """
    import torch
    from transformers import DynamicCache

    class F16Cache(DynamicCache):
        def update(self, key_states, value_states, *args, **kwargs):
            return super().update(
                key_states.half().float(), value_states.half().float(), *args, **kwargs
            )

    cache = F16Cache() if kv16 else None
    with torch.no_grad():
        out = model(torch.tensor([ids]), cache=cache, use_cache=kv16)
    return out.logits[0].numpy()


def top(logits):
    order = np.argsort(-logits, axis=-1, kind="stable")
    rows = np.arange(logits.shape[0])
    return order[:, 0], logits[rows, order[:, 0]] - logits[rows, order[:, 1]]


def number(x):
    return float(f"{float(x):.8g}")


def prompt_golden(model, ids):
    result = {"ids": ids, "positions": POSITIONS[len(ids)]}
    plain, kv16 = run(model, ids, False), run(model, ids, True)
    for suffix, logits in (("", plain), ("_kv16", kv16)):
        best, margin = top(logits)
        result["argmax" + suffix] = best.tolist()
        result["margin" + suffix] = [float(f"{m:.3g}") for m in margin]
        result["logits" + suffix] = [[number(x) for x in logits[p]] for p in result["positions"]]
    print(
        f"    {len(ids):4} tokens: logits std {plain.std():.2f}, f16 KV moves one by up to "
        f"{np.abs(kv16 - plain).max():.2g}, smallest margin {top(plain)[1].min():.2g}",
        file=sys.stderr,
    )
    return result


def greedy_golden(model, ids):
    tokens, margins = [], []
    for _ in range(GREEDY):
        best, margin = top(run(model, ids + tokens, True)[-1:])
        tokens.append(int(best[0]))
        margins.append(float(f"{margin[0]:.3g}"))
    return {"greedy_kv16": tokens, "greedy_margin_kv16": margins}


def attention_entropy(model, ids):
    import torch

    with torch.no_grad():
        att = model(torch.tensor([ids]), output_attentions=True).attentions
    return [float(-(a[0, :, -1] * a[0, :, -1].clamp_min(1e-30).log()).sum(-1).mean()) for a in att]


def dumps(value, indent=0):
    """JSON with one line per list of numbers: small, and a changed row is a changed line."""
    pad = " " * indent
    if isinstance(value, dict):
        return (
            "{\n"
            + ",\n".join(f"{pad} {json.dumps(k)}: {dumps(v, indent + 1)}" for k, v in value.items())
            + f"\n{pad}}}"
        )
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return "[\n" + ",\n".join(f"{pad} {dumps(v, indent + 1)}" for v in value) + f"\n{pad}]"
    return json.dumps(value, separators=(",", ":"))


def write(path, value):
    path.write_text(dumps(value) + "\n")
    print(f"  {path.name}: {path.stat().st_size} bytes", file=sys.stderr)


def make_models(args, tools, gguf):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    for index, (name, (outtype, pre, settings)) in enumerate(MODELS.items()):
        print(name, file=sys.stderr)
        settings = dict(settings)
        kind = settings.pop("kind")
        config_type, model_type = {
            "llama": (LlamaConfig, LlamaForCausalLM),
            "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        }[kind]
        config = config_type(
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=2,
            **settings,
        )
        config._attn_implementation = "eager"
        rng = np.random.default_rng([SEED, index])
        model = model_type(config).to(torch.float32).eval()
        fill(model, outtype, rng, gguf)
        gguf_path = args.out / f"{name}.gguf"
        with tempfile.TemporaryDirectory() as tmp:
            model.save_pretrained(tmp, safe_serialization=True)
            cases = make_tokenizer(pre, tmp)
            convert(args.llama_cpp, tmp, gguf_path, outtype, pre)
        short = rng.integers(0, VOCAB_SIZE, SHORT).tolist()
        long = rng.integers(0, VOCAB_SIZE, LONG).tolist()
        entropy = attention_entropy(model, long)
        print(
            f"    mean attention entropy of the last row by layer {[round(e, 2) for e in entropy]} "
            f"(uniform would be {np.log(LONG):.2f})",
            file=sys.stderr,
        )
        write(
            args.out / f"{name}.golden.json",
            {
                "tools": tools,
                "command": COMMAND,
                "model": gguf_path.name,
                "sha256": hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
                "family": kind,
                "outtype": outtype,
                "settings": settings,
                "prompts": [
                    dict(prompt_golden(model, short), **greedy_golden(model, short)),
                    prompt_golden(model, long),
                ],
                "tokenizer": {"pre": pre, "cases": cases},
            },
        )


def make_dequant(args, tools, gguf):
    """Four blocks of each quantised type and the exact float32 values they stand for."""
    rng = np.random.default_rng([SEED, 99])
    types = {}
    for name in ("Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"):
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        values = (
            rng.standard_normal((4, block)) * np.array([[1.0], [0.02], [30.0], [0.3]])
        ).astype(np.float32)
        source = "gguf.quants.quantize"
        try:
            raw = gguf.quants.quantize(values, kind)
        except (
            NotImplementedError
        ):  # no reference quantiser in Python: any bytes with finite scales are a valid block
            source = "random bytes, random f16 scales"
            raw = rng.integers(0, 256, (4, size), dtype=np.uint8)
            scales = (rng.standard_normal((4, 2)) * 0.01).astype(np.float16)
            if name == "Q4_K":
                raw[:, 0:4] = np.abs(scales).view(np.uint8)  # d, dmin
            else:
                raw[:, -2:] = scales[:, :1].copy().view(np.uint8)  # d, last in the block
        expected = gguf.quants.dequantize(raw, kind)
        assert expected.shape == (4, block) and np.isfinite(expected).all()
        types[name] = {
            "block_size": block,
            "block_bytes": size,
            "source": source,
            "blocks_hex": [bytes(b).hex() for b in raw],
            "expected": [[float(f"{float(x):.9g}") for x in row] for row in expected],
        }
    write(args.out / "dequant.json", {"tools": tools, "command": COMMAND, "types": types})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="llama.cpp's source tree")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    args.llama_cpp = args.llama_cpp.resolve()
    sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]
    import gguf
    import tokenizers
    import torch
    import transformers

    logging.disable(logging.INFO)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    source = re.search(r"llama_cpp_python-[0-9.]+", str(args.llama_cpp))
    tools = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": np.__version__,
        "convert_hf_to_gguf": f"llama.cpp as vendored by {source.group(0)}"
        if source
        else "llama.cpp",
    }
    make_models(args, tools, gguf)
    make_dequant(args, tools, gguf)


if __name__ == "__main__":
    main()
