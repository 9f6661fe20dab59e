#!/usr/bin/env python3
"""The demo's second part: a document whose KV does not fit into its memory.

    scripts/demo_budget.py COMMAND MODEL STORE

Asks a few questions about this repository's own documentation, with all full KV in RAM and with an
eighth of that: VeriCache, and for one question full KV read from disk for every token. The answers
must be the same bits, or it exits 1. STORE keeps the document's KV: a second run has no prefill.
"""

import json
import pathlib
import subprocess
import sys

DOCUMENT = ["README.md", "ARCHITECTURE.md", "docs/exactness.md", "docs/compressors.md",
            "docs/benchmarks.md", "docs/adding_a_compressor.md", "docs/why_own_kernels.md"]
DOCUMENT_BYTES = 36_000  # about 16,000 tokens: these pages are dense with figures
QUESTIONS = ["What does the command vericache compressors show? Answer in three sentences.",
             "Write the shell commands that build VeriCache and run its demo; comment on each.",
             "Explain what is kept at the end of a round, in three sentences."]
TOKENS = 64


def text_of_document(root):
    text = "\n\n".join((root / name).read_text() for name in DOCUMENT)
    return text[:DOCUMENT_BYTES]


class Runner:
    def __init__(self, command, model, store, document):
        self.command, self.model, self.store, self.document = command, model, store, document

    def run(self, question, *flags):
        """One answer, as `vericache run --json` tells it."""
        done = subprocess.run(
            [self.command, "run", "-m", self.model, "-f", self.document, "-p", question, "-n",
             str(TOKENS), "--json", "--prefix-store", self.store, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"demo: vericache run failed: {done.stderr.strip().splitlines()[-1]}")
        return json.loads(done.stdout)


def mib(size):
    return f"{size / 2**20:.1f} MiB"


def speed(answer):
    stats = answer["stats"]
    seconds = stats["draft_s"] + stats["verify_s"]
    return (answer["usage"]["completion_tokens"] - 1) / seconds if seconds > 0 else 0.0


def row(name, answers, memory):
    rate = sum(speed(a) for a in answers) / len(answers)
    run = sum(a["stats"]["mean_run_length"] for a in answers) / len(answers)
    print(f"  {name:<46} {mib(memory):>10} {rate:>8.1f} {run:>10.1f}", flush=True)


def check_same(want, got, name):
    if got["logits_hash"] != want["logits_hash"] or got["token_ids"] != want["token_ids"]:
        sys.exit(f"demo: {name} gave another answer than full KV in RAM: please report this")


def main():
    command, model, store = sys.argv[1:]
    root = pathlib.Path(__file__).resolve().parent.parent
    document = pathlib.Path(store).parent / "demo_budget.txt"
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(text_of_document(root))
    runner = Runner(command, model, store, str(document))
    print("  reading the document ...", flush=True)
    full = [runner.run(question, "--draft", "off") for question in QUESTIONS]
    usage = full[0]["usage"]
    print(f"  {usage['prompt_tokens']} tokens, {usage['cached_tokens']} of them from the prefix "
          f"store; prefill {full[0]['stats']['prefill_s']:.1f} s")
    full_bytes = max(a["stats"]["full_bytes"] for a in full)
    eighth = str(full_bytes // 8)
    print(f"  {'':<46} {'KV memory':>10} {'tok/s':>8} {'tok/round':>10}")
    row("full KV, all in RAM", full, full_bytes)
    drafted = [runner.run(question, "--kv-memory", eighth) for question in QUESTIONS]
    for want, got in zip(full, drafted):
        check_same(want, got, "VeriCache")
    row("VeriCache in an eighth", drafted,
        max(a["stats"]["kv_memory"]["peak_bytes"] for a in drafted))
    streamed = [runner.run(QUESTIONS[0], "--kv-memory", eighth, "--draft", "off")]
    check_same(full[0], streamed[0], "streamed full KV")
    row("full KV from disk for every token, an eighth", streamed,
        streamed[0]["stats"]["kv_memory"]["peak_bytes"])
    print(f"  {len(QUESTIONS) + 1} of {len(QUESTIONS) + 1} answers identical to full KV in RAM, "
          "tokens and logits")


if __name__ == "__main__":
    main()
