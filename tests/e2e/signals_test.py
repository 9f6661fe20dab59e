#!/usr/bin/env python3
"""Case 55: `run` and `batch` told to stop, at any moment: at once, or at the next step with what is
finished kept; a second signal ends the process whatever it is doing.

    tests/e2e/signals_test.py VERICACHE_BINARY
"""

import json
import os
import signal
import subprocess
import time

from big_model import write_big_model
from cli_fixture import GOLDEN, TEXT, CliTest, main

WIDE = GOLDEN / "llama_head_dim.gguf"
STOPS = ((signal.SIGINT, 130), (signal.SIGTERM, 143))
# So that a pass that reads spilled K/V takes its time: the process is then surely in it.
SLOW = ("--kv-memory", "3MiB", "--kv-read-limit", "1MiB", "--chunk", 64)


class Signals(CliTest):
    def setUp(self):
        super().setUp()
        # Eight layers: a budget can be small beside the full KV of 1,400 tokens, 6 MiB.
        self.deep = self.folder / "cache/deep.gguf"
        write_big_model(self.deep, hidden=256, ffn=512, layers=8, heads=4, kv_heads=2, rows=512)

    def start(self, *args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE):
        process = subprocess.Popen(
            [str(a) for a in (self.binary, *args)], stdin=stdin, stdout=stdout,
            stderr=subprocess.PIPE, env=self.environment(VERICACHE_KV_DIR=str(self.folder)),
            cwd=self.folder)
        self.addCleanup(process.kill)
        os.set_blocking(process.stderr.fileno(), False)
        process.seen = b""
        return process

    def wait_for(self, process, condition, what):
        end = time.monotonic() + 100
        while not condition():
            process.seen += process.stderr.read() or b""
            self.assertIsNone(process.poll(), f"ended before {what}: {process.seen.decode()}")
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.002)

    def wait_for_text(self, process, text):
        self.wait_for(process, lambda: text in process.seen, f"{text} on stderr")

    def ends(self, process, status, timeout=60):
        """It ends by itself with `status`; what it said on stderr."""
        process.wait(timeout)
        os.set_blocking(process.stderr.fileno(), True)
        err = (process.seen + process.stderr.read()).decode()
        process.stderr.close()
        if process.stdout is not None:
            process.stdout.close()
        self.assertEqual(process.returncode, status, err)
        return err

    def long_prompt(self):
        path = self.folder / "prompt.txt"
        path.write_text(TEXT * 3)
        return path

    def in_prefill(self, *flags):
        process = self.start("run", "-m", self.deep, "--raw", "-f", self.long_prompt(), "--threads",
                             1, *SLOW, *flags)
        self.wait_for_text(process, b"model ")  # it is loaded
        time.sleep(1.0)  # the first chunks are written; from now on it reads, for long
        self.assertIsNone(process.poll())
        return process

    def batch(self, *flags, max_tokens=400, count=24, out="answers.jsonl"):
        requests = self.folder / "requests.jsonl"
        requests.write_text("".join(
            json.dumps({"custom_id": f"r{i}", "prompt": TEXT + str(i), "max_tokens": max_tokens})
            + "\n" for i in range(count)))
        return ("batch", "-m", WIDE, "--threads", 1, "-f", requests, "-o", self.folder / out,
                "--max-running", 1, *flags)

    # Nothing has been begun: there is nothing to keep, and the signal does what it always does.
    def test_case_55_idle(self):
        for number, _ in STOPS:
            for command in (("run", "-m", WIDE, "--raw"),
                            ("batch", "-m", WIDE, "-f", "-", "-o", self.folder / "none.jsonl")):
                with self.subTest(number=number, command=command[0]):
                    process = self.start(*command, stdin=subprocess.PIPE)
                    time.sleep(0.2)  # it waits for its prompt
                    process.send_signal(number)
                    self.ends(process, -number)
                    process.stdin.close()
        self.assertEqual(list(self.folder.glob("none.jsonl*")), [])

    def test_case_55_in_prefill(self):
        for number, status in STOPS:
            with self.subTest(number=number):
                session = self.folder / "none.kv"
                process = self.in_prefill("--session", session)
                process.send_signal(number)
                err = self.ends(process, status)
                self.assertEqual(len([line for line in err.splitlines()
                                      if line.startswith("vericache: ")]), 1, err)
                self.assertFalse(session.exists())
        # Spill files have no name, whatever happens: nothing of them is left.
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"cache", "prompt.txt"})

    def test_case_55_while_answering(self):
        for number, status in STOPS:
            with self.subTest(number=number):
                process = self.start("run", "-m", WIDE, "--raw", "-p", "Hi", "-n", 1900,
                                     "--ignore-eos", "--threads", 1)
                self.assertNotEqual(process.stdout.read(1), b"")
                process.send_signal(number)
                process.stdout.read()
                self.assertIn("stopped", self.ends(process, status))

    def test_case_55_batch_keeps_what_is_finished(self):
        for number, status in STOPS:
            with self.subTest(number=number):
                out = f"answers{int(number)}.jsonl"
                part = self.folder / (out + ".part")
                command = self.batch(out=out)
                process = self.start(*command)
                self.wait_for(process, lambda: part.exists() and
                              part.read_bytes().count(b"\n") >= 2, "two answers")
                process.send_signal(number)
                err = self.ends(process, status)
                self.assertIn("answers are there and kept", err.splitlines()[-1])
                there = part.read_bytes().count(b"\n")
                self.assertGreaterEqual(there, 2)
                done = self.ok(*command)
                self.assertIn(f"24 requests: {24 - there} computed, {there} kept;", done.err)

    def test_case_55_batch_in_prefill(self):
        for number, status in STOPS:
            with self.subTest(number=number):
                requests = self.folder / "slow.jsonl"
                requests.write_text(json.dumps({"prompt": TEXT * 3, "max_tokens": 4}) + "\n")
                # The small pass limit is what the reads are slow in.
                process = self.start("batch", "-m", self.deep, "--threads", 1, "-f", requests, "-o",
                                     self.folder / "slow_answers.jsonl", "--progress",
                                     *SLOW)
                self.wait_for_text(process, b"0 of 1")
                time.sleep(0.3)
                process.send_signal(number)
                self.ends(process, status)

    # A file is whole or not there, also if the signal comes while it is written; the second signal
    # does not wait for the disk.
    def test_case_55_in_a_disk_write(self):
        session = self.folder / "s.kv"
        prompt = self.long_prompt()
        self.ok("run", "-m", WIDE, "--raw", "-f", prompt, "-n", 4, "--session", session)
        whole = session.read_bytes()
        for number, status in STOPS:
            for delay in (0, 0.001, 0.003):
                with self.subTest(number=number, delay=delay):
                    before = session.read_bytes()
                    process = self.start("run", "-m", WIDE, "--raw", "-f", prompt, "-p",
                                         f"{number} {delay}", "-n", 1, "--session", session)
                    self.wait_for(process, lambda: len(list(self.folder.glob("s.kv*"))) > 1 or
                                  session.read_bytes() != before or process.poll() is not None,
                                  "the write") if process.poll() is None else None
                    time.sleep(delay)
                    if process.poll() is None:
                        process.send_signal(number)
                    process.wait(60)
                    process.stdout.close()
                    process.stderr.close()
                    self.assertIn(process.returncode, (0, status, -number))
                    # The old session or the new one, and either is good.
                    self.run_json("--raw", "-f", prompt, "-n", 2, "--session", session, model=WIDE)
        self.assertGreater(len(whole), 1000)

    def test_case_55_a_second_signal_ends_it_at_once(self):
        for first, _ in STOPS:
            for second, _ in STOPS:
                with self.subTest(first=first, second=second):
                    process = self.in_prefill("--kv-read-limit", "1KiB")
                    process.send_signal(first)
                    time.sleep(0.3)
                    # It is in a read that takes minutes; the first signal is heard after it.
                    self.assertIsNone(process.poll())
                    process.send_signal(second)
                    self.ends(process, -second, timeout=20)

    def test_case_55_a_second_signal_ends_a_blocked_write(self):
        for number, _ in STOPS:
            with self.subTest(number=number):
                # Nobody reads its output: the pipe is full after a while.
                process = self.start("run", "-m", WIDE, "--raw", "-p", "Hi", "-n", 1900,
                                     "--ignore-eos", "--threads", 1, "--show-rounds")
                time.sleep(1.0)
                process.send_signal(number)
                time.sleep(0.2)
                if process.poll() is None:
                    process.send_signal(number)
                process.wait(20)
                process.stdout.close()
                process.stderr.close()


if __name__ == "__main__":
    main()
