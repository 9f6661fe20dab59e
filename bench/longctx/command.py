"""The vericache command, run once: its output, its notices, the memory that it took."""

import json
import os
import pathlib
import re
import subprocess
import tempfile

MESSAGE_MAX = 300
FITTED = re.compile(r"note: draft (\S+) instead of|note: no draft KV")


class Failed(Exception):
    """The command refused, or ended with an error; the message is its last line."""


class Ended:
    def __init__(self, stdout, stderr, peak_rss_bytes):
        self.stdout, self.stderr, self.peak_rss_bytes = stdout, stderr, peak_rss_bytes

    def fitted_spec(self, asked):
        """The draft spec in use: a small budget may have shrunk the one asked for."""
        found = FITTED.search(self.stderr)
        return asked if not found else found.group(1) or "off"


def run(command, env=None):
    """REQUIRES: nothing else that this process waits for ends meanwhile."""
    command = [str(word) for word in command]
    os.sync()  # no write of an earlier run may fall into this one
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        stdout = out.read().decode("utf-8", "replace")
        stderr = err.read().decode("utf-8", "replace")
    if process.returncode != 0:
        lines = stderr.strip().splitlines() or [f"ended with {process.returncode}"]
        raise Failed(lines[-1][:MESSAGE_MAX])
    return Ended(stdout, stderr, usage.ru_maxrss * 1024)


class Vericache:
    """`flags` are those that all commands share: model, threads, prefix store, read limit."""

    def __init__(self, binary, model, threads, store, read_limit, kv_dir):
        self.binary, self.model, self.threads = binary, model, threads
        self.store, self.read_limit, self.kv_dir = store, read_limit, kv_dir

    def flags(self, budget):
        flags = ["-m", self.model, "--threads", self.threads]
        if budget:
            flags += ["--kv-memory", budget]
            flags += ["--kv-dir", self.kv_dir] if self.kv_dir else []
            flags += ["--kv-read-limit", self.read_limit] if self.read_limit else []
        return flags

    def kept(self, mode="ro"):
        return ["--prefix-store", self.store, "--prefix-store-mode", mode]

    def answer(self, text, num_tokens):
        """The full KV's answer; leaves the prompt's K/V in the prefix store."""
        with tempfile.TemporaryDirectory() as folder:
            prompt, receipt = pathlib.Path(folder, "prompt"), pathlib.Path(folder, "receipt")
            prompt.write_text(text, encoding="utf-8")
            command = [self.binary, "run", *self.flags(0), *self.kept("rw"), "-f", prompt]
            command += ["-n", num_tokens, "--draft", "off", "--json", "--receipt", receipt]
            result = json.loads(run(command).stdout)
            result["prompt_ids"] = json.loads(receipt.read_text())["prompt_token_ids"]
        return result

    def base_rss_bytes(self):
        """Peak memory of a run with next to no context: loading the model, mostly."""
        command = [self.binary, "run", *self.flags(0), "-p", "Hi", "-n", 2, "--ctx", 512, "--json"]
        return run(command).peak_rss_bytes

    def run_one(self, request, num_tokens, draft, draft_len, budget):
        """One request by `vericache run`: its JSON, and what ended."""
        with tempfile.TemporaryDirectory() as folder:
            prompt = pathlib.Path(folder, "prompt")
            prompt.write_text(request.text, encoding="utf-8")
            command = [self.binary, "run", *self.flags(budget), *self.kept(), "-f", prompt]
            command += ["-n", num_tokens, "--draft", draft, "--draft-len", draft_len, "--json"]
            ended = run(command)
        return json.loads(ended.stdout), ended

    def run_batch(self, requests, num_tokens, draft, draft_len, budget, lock_step):
        """Many at once by `vericache batch`: their JSON, its stats, its timeline, what ended."""
        with tempfile.TemporaryDirectory() as folder:
            names = ("requests.jsonl", "answers.jsonl", "stats.json", "timeline.json")
            asked, answers, stats, timeline = (pathlib.Path(folder, name) for name in names)
            lines = [r.line(num_tokens, draft, draft_len) for r in requests]
            asked.write_text("".join(lines), encoding="utf-8")
            command = [self.binary, "batch", *self.flags(budget), *self.kept(), "-f", asked]
            command += ["-o", answers, "--stats", stats, "--max-running", len(requests)]
            command += ["--timeline", timeline]
            ended = run(command + (["--lock-step"] if lock_step else []))
            found = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
            known = [json.loads(file.read_text("utf-8")) for file in (stats, timeline)]
            return found, *known, ended

    def compare(self, request, num_tokens, draft):
        """`vericache compare` on one request: its row, of which we want the unverified answer."""
        with tempfile.TemporaryDirectory() as folder:
            asked = pathlib.Path(folder, "requests.jsonl")
            asked.write_text(request.line(num_tokens, draft, "auto"), encoding="utf-8")
            command = [self.binary, "compare", *self.flags(0), *self.kept(), "-f", asked]
            ended = run(command + ["-n", num_tokens, "--draft", draft, "--json"])
        return json.loads(ended.stdout), ended

    def parts(self, depth, widths, specs, decode):
        """`vericache bench`: what a step, a verification and a draft step take at `depth`."""
        command = [self.binary, "bench", "-m", self.model, "--threads", self.threads, "--json"]
        command += ["--depths", depth, "--widths", ",".join(map(str, widths)), "--repeat", 1]
        command += ["--decode", decode, "--prefill", 64, "--draft-specs", ",".join(specs) or "none"]
        return json.loads(run(command).stdout)
