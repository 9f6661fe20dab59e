"""The engines that bench/run.py times: vericache as a process, and the workers of bench/peers."""

import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def die(text):
    raise SystemExit(f"bench/run.py: {text}")


def token_hash(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()


def states_folder():
    """Where the peers' prefilled KV is kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache, "vericache/bench_states")


class Peer:
    """A worker of bench/peers, spoken to in JSON lines."""

    def __init__(self, label, python, script, model, threads, flash=False, kv="f16"):
        self.label, self.flash, self.kv = label, flash, kv
        self.model_sha256, self.states, self.fresh = "", None, False
        command = [python, str(ROOT / "bench/peers" / script), "worker", "-m", str(model)]
        self.process = subprocess.Popen(
            command + ["--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.info = self.ask(op="info")
        self.at = None  # (prompt, next token, where its KV is from) of what its KV holds

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
        self.ask(op="open", n_ctx=n_ctx, flash_attn=self.flash, kv=self.kv)

    def state_path(self, ids):
        key = [self.model_sha256, self.info["version"], self.info["system_info"], self.kv]
        key = json.dumps(key + [self.flash, token_hash(ids)])
        return self.states / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.kv"

    def hold(self, depth, answer):
        """Its own count of positions must be what was asked for."""
        if answer["depth"] != depth:
            die(f"{self.label} holds {answer['depth']} positions, not {depth}: no time")

    def prefill(self, prompt):
        answer = self.ask(op="prefill", ids=prompt.ids)
        self.hold(len(prompt.ids), answer)
        return answer["token"], {"prefill_tok_s": len(prompt.ids) / answer["seconds"]}

    def restore(self, prompt):
        """KV of `prompt` from the states folder, prefilled and kept there where it is missing."""
        path, result = self.state_path(prompt.ids), {}
        source = "prefilled, reloaded"
        if self.fresh or not path.is_file():
            token, result = self.prefill(prompt)
            self.ask(op="save", path=str(path), token=token)
            source = "prefilled"
        if prompt.synthetic or source != "prefilled":
            answer = self.ask(op="load", path=str(path), depth=prompt.depth)
            token = answer["token"]
            if answer["cells"] < prompt.depth:
                source, result = f"tiled from {answer['cells']}", {}
        self.at = (prompt, token, source)
        return result

    def measure(self, prompt, n, fresh, append):
        """fresh: prefill even where the KV of this prompt is there already.
        append: time the prefill of the prompt's tail behind it as well.
        """
        result = {"prompt_tokens": len(prompt.ids), "prompt_token_sha256": token_hash(prompt.ids)}
        if prompt.is_long and self.states:
            if self.at is None or self.at[0] is not prompt:
                result |= self.restore(prompt)
        elif fresh or self.at is None or self.at[0] is not prompt:
            token, rate = self.prefill(prompt)
            self.at = (prompt, token, "prefilled")
            result |= rate
        if append:
            answer = self.ask(op="append", ids=prompt.tail_ids, pos=prompt.depth)
            self.hold(prompt.depth + len(prompt.tail_ids), answer)
            result["append_tok_s"] = len(prompt.tail_ids) / answer["seconds"]
        answer = self.ask(op="decode", token=self.at[1], pos=prompt.depth, n=n)
        if len(answer["tokens"]) != n + 1:
            die(f"{self.label} decoded {len(answer['tokens']) - 1} tokens, not {n}")
        self.hold(prompt.depth + n, answer)
        result |= {"kv_source": self.at[2], "kv_cells": answer["depth"]}
        return result | {"tokens": answer["tokens"], "decode_tok_s": n / answer["seconds"]}

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def run_json(command):
    command = [str(word) for word in command]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        what = f"{' '.join(command)} ended with {done.returncode}"
        die(f"{what}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


class Ours:
    """`vericache run`, one process a measurement; the time to load the model is not counted."""

    kv = "f16"

    def __init__(self, label, binary, model, threads, draft):
        self.label, self.binary, self.model = label, binary, model
        self.threads, self.draft = threads, draft

    def open(self, n_ctx):
        pass

    def run(self, prompt, n, session, keep):
        """One run from a copy of `session`, where there is one; the copy replaces it if `keep`."""
        with tempfile.TemporaryDirectory() as folder:
            receipt, copy = pathlib.Path(folder, "receipt.json"), pathlib.Path(folder, "session")
            if session and session.is_file() and not keep:
                shutil.copyfile(session, copy)
            command = [self.binary, "run", "-m", self.model, "--raw", "-f", prompt.path]
            command += ["-n", n + 1, "--threads", self.threads, "--json", "--receipt", receipt]
            command += ["--draft", self.draft] if self.draft != "default" else []
            command += ["--session", copy] if session else []
            answer = run_json(command)
            if keep and copy.is_file():
                shutil.move(copy, session)
            prompt_ids = json.loads(receipt.read_text())["prompt_token_ids"]
        self.check(prompt, n, answer, prompt_ids)
        return answer

    def measure(self, prompt, n, fresh, append):
        """n forward passes after the token that the prefill gives: n + 1 tokens.

        Without a draft and not fresh, the prompt's KV is taken from a session made before.
        """
        if prompt.synthetic:
            return self.synthetic(prompt, n, append)
        is_kept = prompt.is_long and self.draft == "off"
        session = prompt.path.with_suffix(".session") if is_kept else None
        answer = self.run(prompt, n, session, is_kept and (fresh or not session.is_file()))
        cached = answer["usage"].get("cached_tokens", 0)
        if cached not in (0, prompt.depth - 1):
            die(f"{self.label} found {cached} tokens of the prompt in a cache")
        result = self.result(prompt, answer, cached)
        if session and append:
            answer = self.run(prompt.tail, 0, session, False)
            cached = answer["usage"].get("cached_tokens", 0)
            if not prompt.depth <= cached <= prompt.depth + n:
                die(f"{self.label} appended behind {cached} positions, not {prompt.depth}")
            seconds = answer["stats"]["prefill_s"]
            result["append_tok_s"] = (prompt.tail.depth - cached) / seconds
        return result

    def synthetic(self, prompt, n, append):
        """`vericache bench` on random K/V; its two rounds must give the same outputs."""
        command = [self.binary, "bench", "-m", self.model, "--threads", self.threads, "--json"]
        command += ["--decode", n, "--depths", prompt.depth, "--repeat", 2, "--widths", "none"]
        command += ["--draft-specs", "none", "--prefill", len(prompt.tail_ids) if append else 1]
        answer = run_json(command + (["--prefill-depths"] if append else []))
        rate = answer.get(f"decode_tps_{prompt.depth}")
        if answer["decode"] != n or not rate:
            die(f"{self.label} did not decode {n} tokens behind {prompt.depth} positions")
        result = {"prompt_tokens": prompt.depth, "tokens": [], "decode_tok_s": rate}
        if append:
            result["append_tok_s"] = answer[f"prefill_tps_{prompt.depth}"]
        return result | {"kv_source": "random", "kv_cells": prompt.depth + n}

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

    def result(self, prompt, answer, cached):
        stats = answer["stats"]
        result = {
            "prompt_tokens": prompt.depth,
            "prompt_token_sha256": token_hash(prompt.ids),
            "tokens": answer["token_ids"],
            "logits_hash": answer["logits_hash"],
            "decode_tok_s": (len(answer["token_ids"]) - 1) / (stats["draft_s"] + stats["verify_s"]),
            "stats": stats,
            "kv_source": "prefilled, reloaded" if cached else "prefilled",
            "kv_cells": prompt.depth + len(answer["token_ids"]) - 1,
        }
        if not cached:
            result["prefill_tok_s"] = prompt.depth / stats["prefill_s"]
        return result

    def close(self):
        pass
