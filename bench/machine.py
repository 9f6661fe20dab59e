"""What bench/run.py notes about the machine, the build and the model."""

import hashlib
import json
import os
import pathlib
import re
import subprocess

# Bytes of K and V in each type, as a share of f16's: blocks of 32 values behind an f16 scale.
KV_SHARE = {"f16": 1.0, "q8_0": 34 / 64, "q4_0": 18 / 64}


def output_of(*command):
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def sha256_file(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def cpu_name():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    fields = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", text, re.MULTILINE))
    flags = fields.get("flags", "").split()
    known = [f for f in ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni") if f in flags]
    return f"{fields.get('model name', os.uname().machine)} [{' '.join(known)}]"


def compiler(build):
    cache = build / "CMakeCache.txt"
    text = cache.read_text() if cache.is_file() else ""
    found = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", text, re.MULTILINE)
    return output_of(found.group(1), "--version").split("\n")[0] if found else "unknown"


def limits(program, threads):
    """Bytes read and multiply-adds a second right now (bench/limits.cc); {} without a program."""
    if not program:
        return {}
    found = json.loads(output_of(str(program), str(threads)) or "{}")
    if not found.get("read_gb_s"):
        raise SystemExit(f"bench/run.py: {program} gave no figure")
    return {key: found[key] for key in ("read_gb_s", "fma_gflops")}


def model_sizes(binary, model):
    """What a decode step reads and computes, from `vericache inspect`; {} where it cannot tell."""
    text = output_of(str(binary), "inspect", str(model), "--tensors", "--json")
    if not text:
        return {}
    info = json.loads(text)
    tensors = {t["name"]: t["num_bytes"] for t in info["tensors"]}
    weights = sum(tensors.values())
    if "output.weight" in tensors:  # else the embedding is the output matrix, and read whole
        weights -= tensors["token_embd.weight"]
    return {
        "weight_bytes": weights,
        "kv_bytes_token": info["kv_bytes_per_token"],
        # q*k and p*v, a multiplication and an addition each
        "attention_flops_key": 4 * info["num_layers"] * info["num_heads"] * info["head_dim"],
    }
