#!/usr/bin/env python3
"""End-to-end tests of `vericache run` and its bad input.    run_test.py VERICACHE"""

import hashlib
import json
import re
import struct
import subprocess
import unittest

from cli_fixture import GOLDEN, LLAMA, QWEN, TEXT, CliTest, main

RUN_KEYS = ["text", "token_ids", "finish_reason", "usage", "logits_hash", "stats"]
STATS_KEYS = ["rounds", "drafted", "accepted", "mean_run_length", "kept_fraction", "draft_bytes",
              "full_bytes", "prefill_s", "draft_s", "verify_s", "kv_memory", "arrival", "choice",
              "times", "modes"]


class RunJson(CliTest):
    def test_has_exactly_the_documented_fields(self):
        answer = self.run_json("-p", TEXT, "-n", 24)
        self.assertEqual(list(answer), RUN_KEYS)
        self.assertEqual(list(answer["stats"]), STATS_KEYS)
        self.assertEqual(list(answer["usage"]),
                         ["prompt_tokens", "completion_tokens", "cached_tokens"])
        self.assertRegex(answer["logits_hash"], "^[0-9a-f]{64}$")
        self.assertEqual(answer["usage"]["completion_tokens"], len(answer["token_ids"]))
        self.assertEqual(answer["usage"]["cached_tokens"], 0)
        stats = answer["stats"]
        self.assertGreater(stats["rounds"], 0)
        self.assertGreater(stats["full_bytes"], stats["draft_bytes"])
        self.assertLess(stats["kept_fraction"], 1)
        # The first token comes out of the prefill, the others out of rounds.
        self.assertAlmostEqual(stats["mean_run_length"] * stats["rounds"],
                               len(answer["token_ids"]) - 1)

    def test_drafted_equals_plain_on_every_spec_and_thread_count(self):
        for model in (LLAMA, QWEN):
            plain = self.run_json("-p", TEXT, "-n", 40, "--draft", "off", model=model)
            self.assertEqual(plain["stats"]["drafted"], 0)
            self.assertEqual(plain["stats"]["mean_run_length"], 1)
            for flags in (["--draft", "int4"], ["--draft", "sink:0.1"], ["--threads", 1],
                          ["--draft-len", 9, "--draft", "snapkv:0.1+int8"], ["--chunk", 7],
                          ["--isa", "scalar", "-n", 40]):
                with self.subTest(model=model.name, flags=flags):
                    answer = self.run_json("-p", TEXT, "-n", 40, "--draft-len", 8, *flags,
                                           model=model)
                    self.assertEqual(answer["token_ids"], plain["token_ids"])
                    self.assertEqual(answer["logits_hash"], plain["logits_hash"])
                    self.assertEqual(answer["text"], plain["text"])
                    self.assertGreater(answer["stats"]["drafted"], 0)

    def test_proposals_change_nothing(self):
        text = TEXT + " " + TEXT  # look-up finds something
        plain = self.run_json("-p", text, "-n", 60, "--draft", "off")
        self.assertEqual([m["mode"] for m in plain["stats"]["modes"]], ["plain"])
        small = ["--draft-model", GOLDEN / "qwen2_tied.gguf"]
        for flags, mode in ((["--draft", "off", "--propose", "ngram"], "ngram"),
                            (["--draft", "off", "--propose", "model"], "draft-model"),
                            (["--propose", "ngram,model"], None), (["--propose", "off"], None),
                            ([], None)):
            for length in ([], ["--draft-len", 6]):
                with self.subTest(flags=flags, length=length):
                    answer = self.run_json("-p", text, "-n", 60, *flags, *length, *small)
                    self.assertEqual(answer["token_ids"], plain["token_ids"])
                    self.assertEqual(answer["logits_hash"], plain["logits_hash"])
                    stats = answer["stats"]
                    for name in ("rounds", "drafted", "accepted"):
                        self.assertEqual(sum(m[name] for m in stats["modes"]), stats[name])
                    used = {m["mode"] for m in stats["modes"]}
                    if mode and length:
                        self.assertIn(mode, used)
                    if not mode and (length or "off" in flags) and "ngram,model" not in flags:
                        self.assertLessEqual(used, {"plain", "draft-kv"})

    def test_a_prompt_alone_tells_what_it_took(self):
        got = self.run_json("-p", TEXT, "-n", 0)
        self.assertEqual(got["usage"]["completion_tokens"], 0)
        self.assertGreater(got["stats"]["prefill_s"], 0)
        self.assertEqual(got["stats"]["prefill_s"], got["stats"]["times"]["prefill_s"])

    def test_sampling_is_a_function_of_the_seed(self):
        def ids(seed, *flags):
            return self.run_json("-p", TEXT, "-n", 32, "--temp", 1, "--seed", seed,
                                 *flags)["token_ids"]
        self.assertEqual(ids(42), ids(42))
        self.assertEqual(ids(42), ids(42, "--draft", "off"))
        self.assertNotEqual(ids(42), ids(43))
        for seed in (0, 4294967295, 2**63, 2**64 - 1):
            self.assertEqual(len(ids(seed)), len(ids(seed)))

    def test_absent_seed_is_random_told_and_repeats(self):
        done = self.ok("run", "-m", LLAMA, "--json", "-p", TEXT, "-n", 32, "--temp", 1)
        note = next(x for x in done.err.splitlines() if x.startswith("vericache: note: seed "))
        seed = int(note.split()[-1])
        again = self.run_json("-p", TEXT, "-n", 32, "--temp", 1, "--seed", seed)
        self.assertEqual(again["token_ids"], json.loads(done.out)["token_ids"])


class RunPrompts(CliTest):
    def test_text_file_and_stdin_are_the_same_prompt(self):
        file = self.folder / "prompt.txt"
        file.write_text(TEXT)
        by_text = self.run_json("-p", TEXT, "-n", 8)
        self.assertEqual(self.run_json("-f", file, "-n", 8)["logits_hash"], by_text["logits_hash"])
        self.assertEqual(self.run_json("-n", 8, stdin=TEXT)["logits_hash"], by_text["logits_hash"])
        self.assertEqual(self.run_json("-f", "-", "-n", 8, stdin=TEXT)["token_ids"],
                         by_text["token_ids"])

    def test_file_and_text_are_document_and_question(self):
        file = self.folder / "prompt.txt"
        file.write_text("A long document.")
        both = self.run_json("-f", file, "-p", "A question?", "-n", 8)
        joined = self.run_json("-p", "A long document.\n\nA question?", "-n", 8)
        self.assertEqual(both["logits_hash"], joined["logits_hash"])

    def test_prompt_text_is_taken_literally(self):
        for text in ("-5", "[a,b]", "--temp", "{}", "%d %s", "a\\nb"):
            with self.subTest(text=text):
                by_text = self.run_json(f"-p{text}" if text[0] != "-" else "-p", *(
                    [text] if text[0] == "-" else []), "-n", 2)
                self.assertEqual(by_text["logits_hash"],
                                 self.run_json("-n", 2, stdin=text)["logits_hash"])

    def test_plain_output_is_the_verified_text_and_a_summary(self):
        answer = self.run_json("-p", TEXT, "-n", 24)
        done = self.ok("run", "-m", LLAMA, "-p", TEXT, "-n", 24)
        self.assertEqual(done.out, answer["text"])
        for part in (answer["logits_hash"], "24 tokens", "tok/s", "rounds   ", "kept fraction",
                     "no chat template", "context 2048"):
            self.assertIn(part, done.err)
        self.assertNotIn("\x1b", done.err + done.out)

    def test_name_in_the_models_folder(self):
        (self.models / "tiny.gguf").write_bytes(LLAMA.read_bytes())
        self.assertEqual(self.run_json("-p", "Hi", "-n", 3, model="tiny")["token_ids"],
                         self.run_json("-p", "Hi", "-n", 3)["token_ids"])

    def test_chat_template_and_system(self):
        model = self.chat_model()
        chat = self.run_json("-p", "Hello", "--system", "Be brief.", "-n", 8, model=model)
        # Special tokens of the template count once each, so the prompt is short.
        raw = self.run_json("-p", "Hello", "--raw", "-n", 8, model=model)
        self.assertGreater(chat["usage"]["prompt_tokens"], raw["usage"]["prompt_tokens"])
        self.assertNotIn("no chat template",
                         self.ok("run", "-m", model, "-p", "Hello", "-n", 2).err)
        receipt = self.folder / "r.json"
        self.run_json("-p", "Hello", "-n", 2, "--receipt", receipt, model=model)
        ids = json.loads(receipt.read_text())["prompt_token_ids"]
        self.assertEqual((ids[0], ids.count(1), ids.count(2)), (1, 2, 1))  # <|im_start|>: 1

    def test_environment_twins_and_the_command_line_wins(self):
        env = {"VERICACHE_MAX_TOKENS": "5", "VERICACHE_MODEL": str(LLAMA), "VERICACHE_JSON": "1",
               "VERICACHE_DRAFT": "int8", "VERICACHE_DEPTHS": "nonsense of another command"}
        answer = json.loads(self.ok("run", "-p", TEXT, env=env).out)
        self.assertEqual(answer["usage"]["completion_tokens"], 5)
        self.assertGreater(answer["stats"]["kept_fraction"], 0.4)
        answer = json.loads(self.ok("run", "-p", TEXT, "-n", 3, env=env).out)
        self.assertEqual(answer["usage"]["completion_tokens"], 3)
        self.fails(2, "run", "-p", "x", env=env | {"VERICACHE_TEMP": "hot"},
                   says=["--temp (or VERICACHE_TEMP)", "'hot'"])


class RunFiles(CliTest):
    def test_trace_has_a_line_a_round(self):
        trace = self.folder / "trace.jsonl"
        answer = self.run_json("-p", TEXT, "-n", 40, "--trace", trace)
        rounds = [json.loads(line) for line in trace.read_text().splitlines()]
        self.assertEqual(len(rounds), answer["stats"]["rounds"])
        self.assertEqual(list(rounds[0]), ["drafted", "accepted", "emitted", "draft_ns",
                                           "verify_ns", "draft_bytes", "full_bytes", "mode"])
        for key in ("drafted", "accepted"):
            self.assertEqual(sum(r[key] for r in rounds), answer["stats"][key])
        self.assertEqual(sum(r["emitted"] for r in rounds), 39)
        self.assertGreater(min(r["verify_ns"] for r in rounds), 0)

    def test_receipt_names_model_prompt_and_sampling(self):
        receipt = self.folder / "receipt.json"
        answer = self.run_json("-p", TEXT, "-n", 9, "--temp", 0.7, "--seed", 2**64 - 1,
                               "--receipt", receipt)
        r = json.loads(receipt.read_text())
        self.assertEqual(list(r), ["contract", "model", "prompt_token_ids", "prompt_hash",
                                   "token_ids", "sampling", "logits_hash"])
        self.assertEqual(r["model"]["name"], "llama_tied.gguf")
        self.assertEqual(r["model"]["sha256"], hashlib.sha256(LLAMA.read_bytes()).hexdigest())
        packed = struct.pack(f"<{len(r['prompt_token_ids'])}i", *r["prompt_token_ids"])
        self.assertEqual(r["prompt_hash"], hashlib.sha256(packed).hexdigest())
        self.assertEqual((r["token_ids"], r["logits_hash"]),
                         (answer["token_ids"], answer["logits_hash"]))
        self.assertEqual((r["sampling"]["temperature"], r["sampling"]["seed"]), (0.7, 2**64 - 1))

    def test_session_goes_on_with_equal_bits(self):
        session = self.folder / "s.kv"
        first = self.run_json("-p", TEXT, "-n", 12, "--session", session)
        self.assertEqual(first["usage"]["cached_tokens"], 0)
        longer = TEXT + first["text"] + " and then"
        fresh = self.run_json("-p", longer, "-n", 20)
        for draft in ([], ["--draft", "off"]):
            copy = self.folder / "copy.kv"
            copy.write_bytes(session.read_bytes())
            resumed = self.run_json("-p", longer, "-n", 20, "--session", copy, *draft)
            self.assertGreater(resumed["usage"]["cached_tokens"], 50)
            self.assertEqual(resumed["token_ids"], fresh["token_ids"])
            self.assertEqual(resumed["logits_hash"], fresh["logits_hash"])

    def test_session_of_another_model_or_damaged_is_refused(self):
        session = self.folder / "s.kv"
        self.run_json("-p", TEXT, "-n", 2, "--session", session)
        self.fails(1, "run", "-m", QWEN, "-p", TEXT, "--session", session, says="model")
        data = bytearray(session.read_bytes())
        data[len(data) // 2] ^= 1
        session.write_bytes(data)
        self.fails(1, "run", "-m", LLAMA, "-p", TEXT, "--session", session)
        self.assertEqual(session.read_bytes(), bytes(data))

    def test_show_rounds_without_a_terminal_is_a_line_a_round(self):
        answer = self.run_json("-p", TEXT, "-n", 24, "--draft-len", 8)
        done = self.ok("run", "-m", LLAMA, "-p", TEXT, "-n", 24, "--draft-len", 8,
                       "--show-rounds")
        self.assertEqual(done.out, answer["text"])
        lines = [x for x in done.err.splitlines() if x.startswith("round ")]
        self.assertEqual(len(lines), answer["stats"]["rounds"])
        told = [re.match(r"round (\d+): drafted (\d+), accepted (\d+), emitted (\d+)", x).groups()
                for x in lines]
        self.assertEqual([int(t[0]) for t in told], list(range(1, len(told) + 1)))
        self.assertEqual(sum(int(t[1]) for t in told), answer["stats"]["drafted"])
        self.assertEqual(sum(int(t[2]) for t in told), answer["stats"]["accepted"])
        self.assertIn("full KV says", done.err)

    def test_audit_of_its_own_answer(self):
        done = self.ok("run", "-m", LLAMA, "-p", TEXT, "-n", 24, "--audit")
        self.assertIn("audit    OK: 24 tokens after a prompt of", done.err)


class BadInput(CliTest):
    def run_fails(self, status, *flags, says=(), model=LLAMA, **kwargs):
        return self.fails(status, "run", "-m", model, *flags, says=says, **kwargs)

    def test_numbers_out_of_range_are_usage_errors_that_name_the_flag(self):
        for flag, values in {
                "--temp": ["-1", "NaN", "inf", "1e308", "101", "x", "", "1,5"],
                "--top-p": ["-1", "0", "1.1", "nan"], "--min-p": ["-0.1", "2"],
                "--top-k": ["-1", "0.01", "9" * 30], "--seed": ["-1", "1.5", "x", str(2**64)],
                "-n": ["-1", "1e3", "0x10", str(2**63)], "--ctx": ["0", "-5"],
                "--threads": ["0", "-2", "100000"], "--draft-len": ["0", "257", "fast"],
                "--propose": ["", "ngrams", "ngram,", "model,model"]}.items():
            for value in values:
                with self.subTest(flag=flag, value=value):
                    name = "--max-tokens" if flag == "-n" else flag
                    self.run_fails(2, "-p", "x", flag, value, says=[name, "run --help"])

    def test_wrong_usage(self):
        for flags, says in {
                ("--draft", "magic"): "--draft", ("--draft", "snapkv:7"): "--draft",
                ("--tmep", "1"): "--tmep", ("extra",): "extra",
                ("--raw", "--system", "x"): "--system"}.items():
            with self.subTest(flags=flags):
                self.run_fails(2, "-p", "x", *flags, says=says)
        self.run_fails(2, "-p", "", says="prompt is empty")
        self.fails(2, "run", "-p", "x", says="-m")
        self.fails(2, "no-such-command", says="no-such-command")
        self.fails(2, says="no command")

    def test_draft_models_that_cannot_be(self):
        self.run_fails(1, "-p", "x", "--propose", "model", says="--draft-model")
        self.run_fails(1, "-p", "x", "--draft-model", GOLDEN / "llama3_untied.gguf",
                       says="another tokenizer")
        self.run_fails(1, "-p", "x", "--draft-model", "no-such-model", says="no-such-model")

    def test_models_that_are_none(self):
        page = self.folder / "page.gguf"
        for name, data, says in (
                ("page.gguf", b"<!DOCTYPE html><html><body>Log in</body></html>", "HTML"),
                ("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "LFS"),
                ("empty.gguf", b"", "empty"), ("zip.gguf", b"PK\x03\x04" + bytes(100), "zip"),
                ("cut.gguf", LLAMA.read_bytes()[:-1], "byte")):
            page = self.folder / name
            page.write_bytes(data)
            with self.subTest(name=name):
                self.run_fails(1, "-p", "x", model=page, says=[name, says])
        self.run_fails(1, "-p", "x", model=self.folder / "missing.gguf", says="missing.gguf")
        self.run_fails(1, "-p", "x", model="no-such-model", says=["no-such-model", "pull"])
        self.run_fails(1, "-p", "x", model=self.folder)

    def test_prompts(self):
        empty = self.folder / "empty.txt"
        empty.write_bytes(b"")
        self.run_fails(1, "-f", empty, says=["empty", "empty.txt"])
        self.run_fails(1, says=["empty", "standard input"])
        self.run_fails(1, "-f", self.folder / "none.txt", says=["none.txt", "No such file"])
        self.run_fails(1, "-f", self.folder, says="folder")
        self.run_fails(1, stdin=b"caf\xe9", says="UTF-8")
        self.run_fails(1, stdin=b"caf\xe9", model=self.chat_model(), says="UTF-8")
        self.run_fails(1, "-p", "x", "--system", "y", says="chat template")

    def test_too_long_a_prompt_names_both_numbers(self):
        tokens = self.run_json("-p", TEXT, "-n", 1)["usage"]["prompt_tokens"]
        done = self.run_fails(1, "-p", TEXT, "--ctx", tokens - 1,
                              says=[f"{tokens} tokens", f"{tokens - 1}", "--ctx"])
        self.assertEqual(done.out, "")
        full = self.run_json("-p", TEXT, "--ctx", tokens + 3, "-n", 100)
        self.assertEqual(full["finish_reason"], "length")
        self.assertEqual(full["usage"]["completion_tokens"], 3)
        self.run_fails(1, "-p", "x", "--ctx", 4096, says=["4096", "2048"])

    def test_outputs_that_cannot_be_written(self):
        (self.folder / "folder").mkdir()
        with self.no_new_files():
            for flag in ("--receipt", "--trace", "--session"):
                self.run_fails(1, "-p", "x", flag, self.folder / "none/r.json",
                               says=[flag, "no folder"])
                self.run_fails(1, "-p", "x", flag, self.folder / "folder",
                               says=[flag, "is a folder"])
            self.run_fails(2, "-p", "x", "--receipt", "", says="--receipt")

    def test_full_disk_and_closed_pipe_on_stdout(self):
        for flags in ([], ["--json"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([self.binary, "run", "-m", LLAMA, "-p", TEXT, *flags],
                                      stdout=full, stderr=subprocess.PIPE, check=False,
                                      env=self.environment(), timeout=120)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(b"vericache: cannot write the answer", done.stderr)


if __name__ == "__main__":
    main()
