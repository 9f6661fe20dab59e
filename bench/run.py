#!/usr/bin/env python3
"""Prefill and decode speed of vericache beside its peers, interleaved; see bench/README.md.

Prints no time for unequal work: every engine gets the same prompt token ids and decodes the same
number of tokens, and what vericache drafts must equal what it decodes on the full KV alone, token
by token and in the hash of the logits, before anything is timed. Standard library only.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

import quiet

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUSY = 0.1  # share of all cores in other hands above which no ratio is trusted
MARGIN = 16  # tokens a prompt may be shorter than asked, for the cut to survive tokenising again


def die(text):
    sys.exit(f"bench/run.py: {text}")


def token_hash(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()


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


class Peer:
    """A worker of bench/peers, spoken to in JSON lines."""

    def __init__(self, label, python, script, model, threads, flash):
        self.label, self.flash = label, flash
        command = [python, str(ROOT / "bench/peers" / script), "worker", "-m", str(model)]
        self.process = subprocess.Popen(
            command + ["--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.info = self.ask(op="info")
        self.at = None  # the depth that its KV holds, and the next token there

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            die(
                f"{self.label} ended at {request['op']}; run its command by hand to see why: "
                f"{' '.join(self.process.args)}"
            )
        answer = json.loads(line)
        if "error" in answer:
            die(f"{self.label}: {answer['error']}")
        return answer

    def open(self, n_ctx):
        self.at = None
        self.ask(op="open", n_ctx=n_ctx, flash_attn=self.flash)

    def measure(self, prompt, n, fresh):
        """fresh: prefill even where the KV of this prompt is there already."""
        result = {"prompt_tokens": len(prompt.ids), "prompt_token_sha256": token_hash(prompt.ids)}
        if fresh or self.at is None or self.at[0] is not prompt:
            answer = self.ask(op="prefill", ids=prompt.ids)
            self.at = (prompt, answer["token"])
            result["prefill_tok_s"] = len(prompt.ids) / answer["seconds"]
        answer = self.ask(op="decode", token=self.at[1], pos=len(prompt.ids), n=n)
        if len(answer["tokens"]) != n + 1:
            die(f"{self.label} decoded {len(answer['tokens']) - 1} tokens, not {n}")
        result |= {"tokens": answer["tokens"], "decode_tok_s": n / answer["seconds"]}
        return result

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Ours:
    """`vericache run`, one process a measurement; the time to load the model is not counted."""

    def __init__(self, label, binary, model, threads, draft):
        self.label, self.binary, self.model = label, binary, model
        self.threads, self.draft = threads, draft

    def open(self, n_ctx):
        pass

    def measure(self, prompt, n, fresh):
        """n forward passes after the token that the prefill gives: n + 1 tokens.

        Without a draft and not fresh, the prompt's KV is taken from a session made before.
        """
        session = prompt.path.with_suffix(".session") if self.draft == "off" else None
        with tempfile.TemporaryDirectory() as folder:
            receipt, copy = pathlib.Path(folder, "receipt.json"), pathlib.Path(folder, "session")
            if session and session.is_file() and not fresh:
                shutil.copyfile(session, copy)
            command = [self.binary, "run", "-m", self.model, "--raw", "-f", prompt.path]
            command += ["-n", n + 1, "--threads", self.threads, "--json", "--receipt", receipt]
            command += ["--draft", self.draft] if self.draft != "default" else []
            command += ["--session", copy] if session and prompt.is_long else []
            command = [str(word) for word in command]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode != 0:
                what = f"{' '.join(command)} ended with {done.returncode}"
                die(f"{what}: {done.stderr.strip()[-400:]}")
            if session and copy.is_file() and not session.is_file():
                shutil.move(copy, session)
            answer = json.loads(done.stdout)
            prompt_ids = json.loads(receipt.read_text())["prompt_token_ids"]
        self.check(prompt, n, answer, prompt_ids)
        return self.result(prompt_ids, answer)

    def check(self, prompt, n, answer, prompt_ids):
        usage = answer["usage"]
        if prompt_ids != prompt.ids:
            die(
                f"{self.label} read the prompt as other tokens than its peers ({len(prompt_ids)} "
                f"and {len(prompt.ids)}): unequal work, no time"
            )
        if usage["completion_tokens"] != n + 1 or answer["finish_reason"] != "length":
            die(
                f"{self.label} stopped after {usage['completion_tokens']} of {n + 1} tokens "
                f"({answer['finish_reason']}): unequal work, no time; take another --file"
            )
        if self.draft == "off" and answer["stats"]["rounds"] != n:
            die(f"{self.label} made {answer['stats']['rounds']} passes, not {n}: no time")
        if usage.get("cached_tokens", 0) not in (0, len(prompt_ids) - 1):
            die(f"{self.label} found {usage['cached_tokens']} tokens of the prompt in a cache")

    def result(self, prompt_ids, answer):
        stats = answer["stats"]
        result = {
            "prompt_tokens": len(prompt_ids),
            "prompt_token_sha256": token_hash(prompt_ids),
            "tokens": answer["token_ids"],
            "logits_hash": answer["logits_hash"],
            "decode_tok_s": (len(answer["token_ids"]) - 1) / (stats["draft_s"] + stats["verify_s"]),
            "stats": stats,
        }
        if not answer["usage"].get("cached_tokens", 0):
            result["prefill_tok_s"] = len(prompt_ids) / stats["prefill_s"]
        return result

    def close(self):
        pass


class Prompt:
    """The longest beginning of the text, of at most `size` tokens, that tokenises to itself."""

    def __init__(self, peer, ids, size, is_long, folder):
        self.is_long = is_long  # worth keeping its KV between repeats
        for n in range(min(size, len(ids)), max(size - MARGIN, 0), -1):
            text = peer.ask(op="detokenize", ids=ids[:n])["text"]
            if peer.ask(op="tokenize", text=text)["ids"] == ids[:n]:
                self.ids, self.path = ids[:n], pathlib.Path(folder, f"prompt_{n}.txt")
                self.path.write_text(text, encoding="utf-8")
                return
        die(f"no cut near {size} tokens survives tokenising again (the text has {len(ids)})")


def check_equal(results):
    """What is drafted must be what the full KV gives."""
    plain = results["vericache, draft off"]
    for label, result in results.items():
        if label.startswith("vericache") and (
            result["tokens"] != plain["tokens"] or result["logits_hash"] != plain["logits_hash"]
        ):
            at = next(
                (i for i, (a, b) in enumerate(zip(result["tokens"], plain["tokens"])) if a != b),
                None,
            )
            die(f"{label} is not what the full KV gives (first difference at token {at}): no time")


def spread(values):
    if not values:
        return "-"
    return f"{statistics.median(values):.1f} ({min(values):.1f}..{max(values):.1f}, {len(values)})"


class Report:
    def __init__(self, args, model, model_sha256):
        stamp = datetime.datetime.now(datetime.UTC)
        self.common = {
            "time": stamp.isoformat(timespec="seconds"),
            "commit": output_of("git", "-C", str(ROOT), "rev-parse", "HEAD"),
            "uncommitted_changes": bool(
                output_of("git", "-C", str(ROOT), "status", "--porcelain", "-uno")
            ),
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "compiler": compiler(args.vericache.parent),
            "model": model.name,
            "model_sha256": model_sha256,
            "threads": args.threads,
            "temperature": 0,
            "seed": 0,
            "kv": "f16",
        }
        name = f"{stamp:%Y%m%d-%H%M%S}-{model.stem}.jsonl"
        args.results.mkdir(parents=True, exist_ok=True)
        self.path = args.results / name
        self.rates = {}
        self.busiest = 0.0

    def add(self, engine, depth, repeat, result):
        record = self.common | {"engine": engine.label, "depth": depth, "repeat": repeat}
        if isinstance(engine, Peer):
            record |= {"engine_version": engine.info["version"]}
            record |= {"engine_system_info": engine.info["system_info"]}
        record |= {"token_sha256": token_hash(result["tokens"]), "load": os.getloadavg()[0]}
        self.busiest = max(self.busiest, result["others_cpu_share"])
        record |= {k: v for k, v in result.items() if k != "tokens"}
        with open(self.path, "a") as f:
            f.write(json.dumps(record) + "\n")
        for what in ("prefill_tok_s", "decode_tok_s"):
            if what in result:
                self.rates.setdefault((depth, what), {}).setdefault(engine.label, []).append(
                    result[what]
                )

    def show(self):
        print("\ntok/s: median (lowest..highest, runs); ratio to llama.cpp's better median\n")
        for (depth, what), rates in sorted(self.rates.items()):
            title = "prefill" if what == "prefill_tok_s" else "decode after"
            print(f"{title} {depth} tokens")
            peers = [statistics.median(v) for k, v in rates.items() if k.startswith("llama.cpp")]
            for label, values in rates.items():
                ratio = f"{statistics.median(values) / max(peers):5.2f}x" if peers else ""
                print(f"  {label:32} {spread(values):32} {ratio}")
        if self.busiest > BUSY:
            print(
                f"\nOther work took up to {self.busiest:.0%} of the CPU: the peers wait by "
                "spinning and lose most, so no ratio above means anything."
            )
        print(f"\nrecords: {self.path}")


def find_model(name):
    if name.endswith(".gguf") or "/" in name:
        path = pathlib.Path(name)
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        path = pathlib.Path(cache, "vericache/models", f"{name}.gguf")
    if not path.is_file():
        die(f"no model at {path}; fetch it with scripts/fetch_model.sh {path.stem}")
    return path


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="smollm2-135m", help="name or path")
    parser.add_argument(
        "-f", "--file", type=pathlib.Path, default=ROOT / "bench/data/perplexity.txt"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the short prompt")
    parser.add_argument("--decode", type=int, default=32, help="tokens decoded after each prompt")
    parser.add_argument(
        "--depths", default="8192", help="longer prompts, comma-separated; '' for none"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--deep-repeats", type=int, default=2, help="for the longer prompts")
    parser.add_argument("--drafts", default="off,default", help="';' or ',' between draft specs")
    parser.add_argument("--peer-python", help="a Python that has llama_cpp; none: no peer")
    parser.add_argument("--ik-python", help="a Python that has ik_llama_cpp")
    parser.add_argument("--busy-ok", action="store_true", help="measure on a busy machine too")
    parser.add_argument("--no-ours", action="store_true", help="the peers alone")
    parser.add_argument("--vericache", type=pathlib.Path, default=ROOT / "build/release/vericache")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench/results")
    args = parser.parse_args()
    if not args.peer_python:
        parser.error("--peer-python is needed (bench/run.sh makes one)")
    if not args.no_ours and not args.vericache.is_file():
        die(f"no {args.vericache}; build it with scripts/build.sh")
    return args


def engines_of(args, model):
    engines = []
    if not args.no_ours:
        separator = ";" if ";" in args.drafts else ","
        drafts = ["off"] + [d for d in args.drafts.split(separator) if d not in ("", "off")]
        engines += [
            Ours(f"vericache, draft {d}", args.vericache, model, args.threads, d) for d in drafts
        ]
    for flash in (False, True):
        label = f"llama.cpp, flash attention {'on' if flash else 'off'}"
        engines.append(Peer(label, args.peer_python, "llamacpp.py", model, args.threads, flash))
    if args.ik_python:
        engines.append(
            Peer("ik_llama.cpp", args.ik_python, "ikllama.py", model, args.threads, False)
        )
    return engines


def measure(args, engines, report, prompt):
    depth = len(prompt.ids)
    workers = [e.process.pid for e in engines if isinstance(e, Peer)]
    for engine in engines:
        engine.open(depth + args.decode + 1)
    for repeat in range(args.deep_repeats if prompt.is_long else args.repeats):
        turn = repeat % len(engines)  # nobody is always first
        results = {}
        for engine in engines[turn:] + engines[:turn]:
            print(f"  {depth} tokens, run {repeat + 1}: {engine.label}", file=sys.stderr)
            fresh = repeat == 0 or not prompt.is_long
            others = quiet.Others(workers)
            result = engine.measure(prompt, args.decode, fresh)
            results[engine.label] = result | {"others_cpu_share": round(others.share(), 3)}
        if not args.no_ours:
            check_equal(results)
        for engine in engines:
            report.add(engine, depth, repeat, results[engine.label])


def main():
    args = parse_args()
    share = 0 if args.busy_ok else quiet.share_now()
    if share > BUSY:
        die(f"other work takes {share:.0%} of the CPU: wait for it to end, or add --busy-ok")
    model = find_model(args.model)
    report = Report(args, model, sha256_file(model))
    engines = engines_of(args, model)
    peer = next(e for e in engines if isinstance(e, Peer))
    print(f"{model.name}, {args.threads} threads, {report.common['cpu']}")
    print(f"{peer.label}: {peer.info['version']}: {peer.info['system_info']}", flush=True)
    ids = peer.ask(op="tokenize", text=args.file.read_text(encoding="utf-8"))["ids"]
    limit = peer.info["context"] - args.decode - 2
    sizes = [args.prefill] + [min(int(d), limit) for d in args.depths.split(",") if d]
    with tempfile.TemporaryDirectory() as folder:
        for index, size in enumerate(sizes):
            measure(args, engines, report, Prompt(peer, ids, size, index > 0, folder))
    for engine in engines:
        engine.close()
    report.show()


if __name__ == "__main__":
    main()
