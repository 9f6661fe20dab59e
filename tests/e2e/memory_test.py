#!/usr/bin/env python3
"""What `vericache run` takes of a machine's memory: its weights once, its KV budget, little else.

    tests/e2e/memory_test.py VERICACHE_BINARY
"""

import json
import os
import subprocess

from big_model import write_big_model
from cli_fixture import CliTest, main

MIB = 1 << 20
BUDGET = 8 * MIB
# Code, tokenizer, scratch of a pass: the same for a model of any size.
BASE = 40 * MIB


class Memory(CliTest):
    def peak(self, *args):
        """Peak resident bytes of a run, and its answer."""
        out = self.folder / "out.json"
        with open(out, "wb") as stdout, open(self.folder / "err", "wb") as stderr:
            process = subprocess.Popen([str(a) for a in (self.binary, *args)], stdout=stdout,
                                       stderr=stderr, env=self.environment(), cwd=self.folder)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0, (self.folder / "err").read_text())
        return usage.ru_maxrss * 1024, json.loads(out.read_text())

    # The file is mapped, repacked, and given back as that goes on: at no moment is a model in
    # memory twice, nor its largest matrix. Prompts do not bring the embedding back page by page.
    def test_peak_is_weights_and_budget(self):
        model = self.folder / "big.gguf"
        weights = write_big_model(model)
        prompt = self.folder / "prompt.txt"
        prompt.write_text(" ".join(f"{i} stones and {i * 7919 % 1000} more" for i in range(40)))
        flags = ("run", "-m", model, "--raw", "-f", prompt, "-n", 4, "--ignore-eos", "--json",
                 "--threads", 2, "--kv-memory", BUDGET, "--kv-dir", self.folder, "--ctx", 2048,
                 "--chunk", 64)
        peak, answer = self.peak(*flags)
        self.assertEqual(answer["usage"]["completion_tokens"], 4)
        self.assertLessEqual(answer["stats"]["kv_memory"]["peak_bytes"], BUDGET)
        self.assertGreater(weights, 150 * MIB)
        print(f"weights {weights / MIB:.0f} MiB, peak {peak / MIB:.0f} MiB")
        self.assertLess(peak, 1.1 * (weights + BUDGET) + BASE)


if __name__ == "__main__":
    main()
