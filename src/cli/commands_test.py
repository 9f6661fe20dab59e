#!/usr/bin/env python3
"""End-to-end tests of every command but `run`.    commands_test.py VERICACHE"""

import codecs
import json
import os
import pty
import re
import select
import signal
import sys
import unicodedata
import unittest

from cli_fixture import LLAMA, QWEN, ROOT, TEXT, CliTest, main

sys.path.insert(0, str(ROOT / "tests/hub"))
import fake_hub  # noqa: E402


class Help(CliTest):
    def test_every_command_has_help_with_examples(self):
        overview = self.ok("--help").out
        for command in ("run", "chat", "audit", "compressors", "inspect", "perplexity", "pull",
                        "bench"):
            with self.subTest(command=command):
                self.assertIn(f"\n  {command} ", overview)
                text = self.ok(command, "--help").out
                self.assertIn("Examples:\n", text)
                self.assertIn(f"vericache {command}", text)
                self.assertNotIn("--isa", text)
                self.assertNotIn("--chunk", text)
        self.assertIn("VERICACHE_DRAFT_LEN", overview)
        text = self.ok("run", "--help").out
        for part in ("--max-tokens", "--session", "--show-rounds"):
            self.assertIn(part, text)

    def test_version(self):
        self.assertRegex(self.ok("--version").out, r"^vericache \d+\.\d+\.\d+\n$")
        self.assertEqual(self.ok("version").out, self.ok("--version").out)


class Audit(CliTest):
    def receipt(self, *flags, model=LLAMA):
        path = self.folder / "receipt.json"
        self.run_json("-p", TEXT, "-n", 20, "--receipt", path, *flags, model=model)
        return path

    def test_accepts_an_honest_receipt_both_ways(self):
        for flags in ([], ["--temp", 1, "--seed", 5, "--top-k", 40, "--top-p", 0.9]):
            path = self.receipt(*flags)
            for how, says in (([], "in one pass"), (["--slow"], "token by token")):
                done = self.ok("audit", path, *how)
                self.assertIn("audit    OK: 20 tokens", done.out)
                self.assertIn(says, done.out)
        done = self.ok("audit", "-", stdin=path.read_bytes())
        self.assertIn("audit    OK", done.out)
        self.assertIn("proves nothing", self.ok("audit", "--help").out)

    def tampered(self, path, change):
        receipt = json.loads(path.read_text())
        change(receipt)
        other = self.folder / "tampered.json"
        other.write_text(json.dumps(receipt))
        return other

    def test_a_changed_token_is_found_with_its_place(self):
        path = self.receipt()

        def change(r):
            r["token_ids"][6] = (r["token_ids"][6] + 1) % 288
        other = self.tampered(path, change)
        for how in ([], ["--slow"]):
            done = self.fails(1, "audit", other, *how, says=["audit FAILED", "token 7 of 20"])
            self.assertEqual(done.out, "")

    def test_a_changed_hash_seed_or_digest_is_found(self):
        path = self.receipt("--temp", 1, "--seed", 5)
        ids = json.loads(path.read_text())["token_ids"]
        for change, says in (
                (lambda r: r.update(logits_hash="0" * 64), "logits hash"),
                (lambda r: r["sampling"].update(seed=6), "token "),
                (lambda r: r["model"].update(sha256="0" * 64), "SHA-256"),
                (lambda r: r.update(contract="another"), "another"),
                (lambda r: r.update(prompt_hash="0" * 64), "prompt_hash"),
                (lambda r: r.update(token_ids=ids[:-1]), "logits hash")):
            self.fails(1, "audit", self.tampered(path, change), says=says)

    def test_finds_the_model_by_flag_path_or_name(self):
        model = self.folder / "m.gguf"
        model.write_bytes(LLAMA.read_bytes())
        path = self.receipt(model=model)
        self.ok("audit", path)
        model.rename(self.models / "m.gguf")
        self.ok("audit", path)
        (self.models / "m.gguf").rename(self.folder / "moved.gguf")
        self.fails(1, "audit", path, says=["m.gguf", "-m"])
        self.ok("audit", path, "-m", self.folder / "moved.gguf")
        self.fails(1, "audit", path, "-m", QWEN, says="SHA-256")

    def test_hostile_receipts(self):
        path = self.receipt()
        self.fails(2, "audit", says="RECEIPT")
        self.fails(1, "audit", self.folder / "none.json", says="none.json")
        for text in (b"", b"{", b"[]", b"[" * 100000, b"{\"a\":" * 5000, b"\xff\xfe", b"null",
                     b"{\"contract\": 1e999}"):
            self.fails(1, "audit", "-", stdin=text, says="receipt")
        for change, field in (
                (lambda r: r.pop("contract"), "contract"), (lambda r: r.update(model=3), "model"),
                (lambda r: r["model"].update(sha256="xyz"), "sha256"),
                (lambda r: r.update(token_ids=[]), "token_ids"),
                (lambda r: r.update(token_ids=[-1]), "token_ids"),
                (lambda r: r.update(token_ids=[1.5]), "token_ids"),
                (lambda r: r.update(token_ids=[2**64 - 1]), "token_ids"),
                (lambda r: r.update(prompt_token_ids=[2**31]), "prompt_token_ids"),
                (lambda r: r.update(prompt_token_ids={"a": 1}), "prompt_token_ids"),
                (lambda r: r["sampling"].update(temperature="hot"), "temperature"),
                (lambda r: r["sampling"].update(temperature=1e300), "temperature"),
                (lambda r: r["sampling"].update(seed=-1), "seed"),
                (lambda r: r["sampling"].update(logit_bias=[[1]]), "logit_bias"),
                (lambda r: r.update(logits_hash=None), "logits_hash")):
            with self.subTest(field=field):
                self.fails(1, "audit", self.tampered(path, change), says=["receipt", field])
        out_of_range = self.tampered(path, lambda r: r["sampling"].update(temperature=-1))
        self.fails(1, "audit", out_of_range, says="temperature")


class Chat(CliTest):
    def test_piped_conversation_and_its_session(self):
        model, session = self.chat_model(), self.folder / "s.kv"
        flags = ["chat", "-m", model, "-n", 6]
        whole = self.ok(*flags, stdin="Hello\nAnd you?\n")
        first = self.ok(*flags, "--session", session, stdin="Hello\n")
        self.assertTrue(whole.out.startswith(first.out), (whole.out, first.out))
        saved = json.loads((self.folder / "s.kv.chat.json").read_text())
        self.assertEqual([m["role"] for m in saved["messages"]], ["user", "assistant"])
        self.assertEqual(saved["messages"][0]["content"], "Hello")
        self.assertEqual(saved["messages"][1]["content"] + "\n", first.out)
        second = self.ok(*flags, "--session", session, stdin="And you?\n/stats\n")
        self.assertEqual(first.out + second.out, whole.out)
        self.assertRegex(second.err, r"session  .*: 2 messages, KV of \d+ tokens")
        self.assertRegex(second.err, r"prompt   \d+ tokens, [1-9]\d* cached")
        saved = json.loads((self.folder / "s.kv.chat.json").read_text())
        self.assertEqual(len(saved["messages"]), 4)

    def test_commands(self):
        model, session = self.chat_model(), self.folder / "s.kv"
        done = self.ok("chat", "-m", model, "-n", 4, "--session", session, "--system", "Be brief.",
                       stdin="/stats\n/help\nHi\n/reset\n//x\n/save\n/exit\nnever sent\n")
        for part in ("no answer yet", "/reset", "forgotten", f"saved to {session}"):
            self.assertIn(part, done.err)
        saved = json.loads((self.folder / "s.kv.chat.json").read_text())
        self.assertEqual([m["content"] for m in saved["messages"]][:2], ["Be brief.", "/x"])
        self.assertEqual(len(saved["messages"]), 3)
        self.fails(1, "chat", "-m", model, "--session", session, "--system", "Other.",
                   says="--system")

    def test_raw_model_and_errors(self):
        done = self.ok("chat", "-m", LLAMA, "-n", 4, stdin="Hello\n\nYou\n")
        self.assertIn("no chat template", done.err)
        self.fails(1, "chat", "-m", LLAMA, stdin=b"caf\xe9\n", says="UTF-8")
        self.fails(1, "chat", "-m", LLAMA, "--ctx", 8, stdin=TEXT + "\n", says="8")
        (self.folder / "bad.kv.chat.json").write_text('{"format": "vericache-chat-1"}')
        self.fails(1, "chat", "-m", LLAMA, "--session", self.folder / "bad.kv",
                   says=["bad.kv.chat.json", "damaged"])


class OnTerminal(CliTest):
    """What a person sees, through a pseudo-terminal."""

    def start(self, *args):
        pid, fd = pty.fork()
        if pid == 0:
            try:
                os.chdir(self.folder)
                os.execve(self.binary, [str(self.binary), *map(str, args)],
                          self.environment(TERM="xterm"))
            finally:
                os._exit(127)  # never go on as a second test runner
        self.addCleanup(os.close, fd)
        self.addCleanup(self.reap, pid)
        self.pid, self.unread = pid, ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return fd

    def reap(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass

    def status(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def read_some(self, fd, seconds=60):
        """What comes next; "" at the end."""
        text = ""
        while not text:  # a piece may be the first byte of a character
            self.assertTrue(select.select([fd], [], [], seconds)[0], self.unread)
            try:
                piece = os.read(fd, 65536)
            except OSError:  # the other side is closed
                piece = b""
            if not piece:
                break
            text = self.decoder.decode(piece)
        return text

    def read_until(self, fd, text):
        """Everything up to `text`; what came behind it is left for the next call."""
        while text not in self.unread:
            piece = self.read_some(fd)
            self.assertTrue(piece, f"no {text!r} in {self.unread!r}")
            self.unread += piece
        end = self.unread.index(text) + len(text)
        seen, self.unread = self.unread[:end], self.unread[end:]
        return seen

    def read_to_end(self, fd):
        while piece := self.read_some(fd):
            self.unread += piece
        return self.unread

    def test_live_view_shows_drafts_dim_and_ends_with_the_answer(self):
        # Long enough that drafts go over the edge of the screen.
        flags = ["-p", TEXT, "-n", 150, "--draft", "sink:0.1", "--draft-len", 40,
                 "--raw"]  # --raw keeps a notice away that is wider than the screen
        answer = self.run_json(*flags)
        self.assertLess(answer["stats"]["accepted"], answer["stats"]["drafted"])
        fd = self.start("run", "-m", LLAMA, "--show-rounds", *flags)
        screen = Screen(self.read_to_end(fd))
        self.assertEqual(self.status(), 0)
        self.assertGreater(screen.num_dim, answer["stats"]["rounds"])
        shown = "".join(screen.text())
        safe = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", answer["text"])
        self.assertGreater(len(safe), 100)
        self.assertIn("".join(safe.split()), "".join(shown.split()))
        self.assertNotIn("\x1b", shown)

    def test_ctrl_c_stops_an_answer_and_not_the_chat(self):
        fd = self.start("chat", "-m", self.chat_model(), "-n", 1900, "--draft", "off")
        self.read_until(fd, "> ")
        os.write(fd, b"Hello\n")
        self.read_until(fd, "Hello\r\n")
        # Until the answer has begun: text behind the prefill bar, which ends in "clear line".
        while re.fullmatch(r"\r*(prefill.*)?", self.unread.split("\x1b[K")[-1], re.DOTALL):
            self.unread += self.read_some(fd)
        os.write(fd, b"\x03")
        self.read_until(fd, "> ")
        os.write(fd, b"/stats\n")
        self.assertRegex(self.read_until(fd, "logits "), "answer   .*(cancelled|length|stop)")
        self.read_until(fd, "> ")
        os.write(fd, b"\x03")
        self.read_until(fd, "Ctrl-D or /exit leaves")
        os.write(fd, b"\x04")
        self.read_to_end(fd)
        self.assertEqual(self.status(), 0)


class Screen:
    """As much of a terminal as the live view uses."""

    def __init__(self, stream, columns=80):
        self.cells, self.row, self.column, self.columns = {}, 0, 0, columns
        self.num_dim = 0
        pos = 0
        while pos < len(stream):
            if stream[pos] == "\x1b":
                end = pos + 2
                while not stream[end].isalpha():
                    end += 1
                self.escape(stream[end], stream[pos + 2:end])
                pos = end + 1
            else:
                self.put(stream[pos])
                pos += 1

    def escape(self, command, argument):
        number = int(argument or 0)
        if command == "A":
            self.row -= number
        elif command == "G":
            self.column = number - 1
        elif command == "J":
            self.cells = {at: c for at, c in self.cells.items()
                          if at < (self.row, self.column)}
        elif command == "K":
            self.cells = {(r, c): x for (r, c), x in self.cells.items()
                          if r != self.row or c < self.column}
        elif command == "m":
            self.num_dim += number == 2
        else:
            raise AssertionError(f"unknown escape {command}")

    def put(self, char):
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row += 1
        else:
            self.cells[self.row, self.column] = char
            self.column += 2 if unicodedata.east_asian_width(char) in "WF" else 1
            if self.column > self.columns:
                raise AssertionError("the terminal would have wrapped")

    def text(self):
        return [self.cells[at] for at in sorted(self.cells)]


class Inspect(CliTest):
    def test_json_has_shape_tensors_and_fits(self):
        info = json.loads(self.ok("inspect", LLAMA, "--json", "--memory", "1MiB", "--tensors").out)
        self.assertEqual((info["architecture"], info["num_layers"], info["num_kv_heads"],
                          info["head_dim"], info["model_context"]), ("llama", 2, 1, 16, 2048))
        self.assertEqual(info["kv_bytes_per_token"], 2 * 2 * 1 * 16 * 2)
        self.assertEqual(info["metadata"]["general.name"], "llama_tied")
        self.assertEqual(len(info["tensors"]), 20)
        self.assertEqual(sum(t["num_tensors"] for t in info["tensor_types"].values()), 20)
        self.assertEqual(info["memory_bytes"], 1 << 20)
        row = info["fits"][-1]
        self.assertEqual(row["context"], 2048)
        full, *drafts = row["kv"]
        self.assertEqual((full["draft"], full["kv_bytes"], full["num_requests"]),
                         ("off", 2048 * 128, 4))
        quarter = next(fit for fit in drafts if fit["draft"] == "verify:0.25+int4")
        self.assertLessEqual(quarter["kept_fraction"], 0.25)
        self.assertGreaterEqual(quarter["num_requests"], 16)

    def test_table(self):
        text = self.ok("inspect", LLAMA, "--memory", "1MiB", "--ctx", 1024).out
        for part in ("128 B a token", "20 F32", "verify:0.25+int4", "8 (128.0 KiB)",
                     "tokenizer.ggml.model = gpt2", "1.0 MiB"):
            self.assertIn(part, text)
        self.fails(2, "inspect", LLAMA, "--memory", "lots", says=["--memory", "8GiB"])
        self.fails(2, "inspect", says="-m")
        self.fails(1, "inspect", ROOT / "README.md", says="README.md")


class Measures(CliTest):
    def test_perplexity(self):
        text = self.folder / "text.txt"
        text.write_text(TEXT * 3)
        args = ["perplexity", "-m", LLAMA, "-f", text, "--window", 64]
        report = json.loads(self.ok(*args, "--json").out)
        self.assertEqual(report["num_windows"], report["num_tokens"] // 64)
        self.assertEqual(report["num_scored"], report["num_windows"] * 63)
        self.assertGreater(report["perplexity"], 1)
        self.assertIn(f"perplexity {report['perplexity']:.4f}", self.ok(*args).out)
        self.fails(1, "perplexity", "-m", LLAMA, "-f", "-", stdin="short", says="window")
        self.fails(2, "perplexity", "-m", LLAMA, says="-f")

    BENCH = ("bench", "-m", LLAMA, "--prefill", 64, "--decode", 4, "--repeat", 2)

    def test_bench_json(self):
        done = self.ok(*self.BENCH, "--depths", "100,8192", "--widths", "3,1", "--prefill-depths",
                       "--draft-specs", "sink:0.5,sinks=2+int8,snapkv:0.25", "--json")
        report = json.loads(done.out)
        self.assertIn("note: depth 8192", done.err)
        for key in ("load_s", "rss_bytes", "file_bytes", "read_gbps", "prefill_tps"):
            self.assertGreater(report[key], 0, key)
        specs = [k.split("_", 4)[4] for k in report if k.startswith("draft_step_ms_100_")]
        self.assertEqual(len(specs), 2)
        self.assertTrue(specs[0].startswith("sink:0.5"), specs)
        of_depth = ["decode_tps_{}", "decode_read_share_{}", "prefill_tps_{}", "verify_ms_{}_1",
                    "verify_ms_{}_3", "verify_ms_per_position_{}_3"]
        of_depth += [f"draft_{what}_{{}}_{spec}" for spec in specs
                     for what in ("step_ms", "step_ratio", "kept_fraction")]
        for key in of_depth:
            self.assertGreater(report[key.format(100)], 0, key)
            self.assertIsNone(report[key.format(8192)], key)
        self.assertGreater(report["decode_tps_0"], 0)
        self.assertTrue(0 <= report["cpu_wait_share"] < 1, report["cpu_wait_share"])
        self.assertGreater(report["verify_ms_0_1"], 0)
        self.assertFalse([k for k in report if k.startswith("draft_") and "_0_" in k])
        self.assertLess(report["verify_ms_per_position_100_3"], report["verify_ms_100_3"])
        for spec, low, high in zip(specs, (0.3, 0.2), (0.55, 0.35)):
            kept = report[f"draft_kept_fraction_100_{spec}"]
            self.assertTrue(low < kept < high, (spec, kept))

    def test_bench_table(self):
        out = self.ok(*self.BENCH, "--depths", "0,100", "--widths", 2).out
        for words in ("plain read", "share of the plain read", "verification ms", "int4", "load"):
            self.assertIn(words, out)
        out = self.ok(*self.BENCH, "--depths", 0, "--widths", "none", "--draft-specs", "none").out
        self.assertNotIn("verification", out)
        self.assertNotIn("int4", out)

    def test_bench_replays_traces(self):
        for name, accepted in (("one", (8, 3)), ("two", (0,))):
            lines = [json.dumps({"drafted": 8, "accepted": n, "mode": "x"}) for n in accepted]
            (self.folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        replay = [*self.BENCH, "--widths", "none", "--draft-specs", "none", "--depths", 100]
        files = f"{self.folder}/one.jsonl,{self.folder}/two.jsonl"
        report = json.loads(self.ok(*replay, "--replay", files, "--json").out)
        for name in ("plain_tps_100", "tps_100_one", "speedup_100_one", "draft_s_100_two",
                     "verify_s_100_two"):
            low, high = report["spread"][f"replay_{name}"]
            self.assertTrue(0 < low <= report[f"replay_{name}"] <= high, name)
        out = self.ok(*replay, "--replay", files, "--replay-draft", "int8").out
        self.assertRegex(out, r"(?s)replayed tok/s.*100  one .*100  two ")
        bad = self.folder / "bad.jsonl"
        bad.write_text('{"drafted": 4, "accepted": 5}')
        self.fails(2, *replay, "--replay", bad, says=["--replay", "line 1"])
        self.fails(2, *replay, "--replay", files + "," + files, says="rename")
        self.fails(2, *replay, "--replay", self.folder / "none.jsonl", says="none.jsonl")
        self.fails(1, *replay, "--replay", files, "--replay-draft", "off", says="draft spec")

    def test_bench_refuses(self):
        for flag, value in (("--depths", "0,x"), ("--depths", ""), ("--depths", "-1"),
                            ("--widths", "0"), ("--widths", "258"), ("--repeat", "0"),
                            ("--widths", ",".join(map(str, range(1, 18)))),
                            ("--draft-specs", "off"), ("--draft-specs", "int9"),
                            ("--draft-specs", "")):
            self.fails(2, "bench", "-m", LLAMA, flag, value, says=flag)
        self.fails(1, "bench", "-m", LLAMA, "--prefill", 100000, says="context")


class Pull(CliTest):
    def test_pulls_from_a_hub_and_runs(self):
        hub = fake_hub.FakeHub(token="secret")
        self.addCleanup(hub.close)
        hub.add("owner/repo", "tiny.gguf", LLAMA.read_bytes())
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "secret"}
        done = self.ok("pull", "owner/repo", "--progress", env=env)
        self.assertEqual(done.out, f"{self.models}/tiny.gguf\n")
        self.assertIn("pull 100%", done.err)
        self.assertEqual((self.models / "tiny.gguf").read_bytes(), LLAMA.read_bytes())
        self.run_json("-p", "Hi", "-n", 1, model="tiny")
        self.fails(1, "pull", "owner/other", env=env, says="owner/other")
        self.fails(1, "pull", "owner/repo", env={"HF_ENDPOINT": hub.url})
        self.fails(2, "pull", says="smollm2-135m")
        self.fails(1, "pull", "../x", env=env, says="../x")


if __name__ == "__main__":
    main()
