#!/usr/bin/env python3
"""End-to-end tests of --prefix-store.    prefix_store_test.py VERICACHE"""

import json
import re

from cli_fixture import LLAMA, QWEN, TEXT, CliTest, main


class PrefixStore(CliTest):
    def setUp(self):
        super().setUp()
        self.store = self.folder / "prefixes"

    def run_stored(self, *args, **kwargs):
        return self.run_json("--raw", "-n", 24, "--prefix-store", self.store, *args, **kwargs)

    def blobs(self):
        return sorted(p for p in (self.store / "blobs").rglob("*") if p.is_file())

    def test_a_second_run_needs_no_prefill_and_says_the_same(self):
        for draft in ("off", "verify:0.25+int4", "h2o:0.3"):
            with self.subTest(draft=draft):
                plain = self.run_json("--raw", "-n", 24, "-p", TEXT + draft, "--draft", draft)
                cold = self.run_stored("-p", TEXT + draft, "--draft", draft)
                warm = self.run_stored("-p", TEXT + draft, "--draft", draft)
                for answer in (cold, warm):
                    for field in ("text", "token_ids", "logits_hash", "finish_reason"):
                        self.assertEqual(answer[field], plain[field])
                tokens = warm["usage"]["prompt_tokens"]
                self.assertGreaterEqual(warm["usage"]["cached_tokens"], tokens - 64 - 32)
                self.assertLess(warm["usage"]["cached_tokens"], tokens)

    def test_an_answer_from_the_store_passes_its_audit(self):
        self.run_stored("-p", TEXT)
        receipt = self.folder / "r.json"
        self.assertGreater(self.run_stored("-p", TEXT, "--receipt", receipt,
                                           "--audit")["usage"]["cached_tokens"], 0)
        self.ok("audit", receipt)
        self.ok("audit", receipt, "--slow")

    def test_what_was_done_is_told(self):
        args = ("run", "-m", LLAMA, "--raw", "-n", 4, "-p", TEXT, "--prefix-store", self.store)
        first = self.ok(*args).err
        self.assertRegex(first, r"prefixes \S+: 0 B in 0 blobs\n")
        self.assertRegex(first, r"prefixes 0 of \d+ prompt tokens found; 0 B read, .*written\n")
        second = self.ok(*args).err
        self.assertRegex(second, r"prefixes \S+: .* in [1-9]\d* blobs\n")
        self.assertRegex(second, r"prefixes [1-9]\d* of \d+ prompt tokens found; .* 0 B written\n")

    def test_turns_of_a_chat_after_a_restart(self):
        model = self.chat_model()

        def chat(lines):
            done = self.ok("chat", "-m", model, "-n", 70, "--prefix-store", self.store,
                           stdin="\n".join([*lines, "/stats"]) + "\n")
            return done.out, [int(n) for n in re.findall(r"tokens, (\d+) cached", done.err)]
        out, _ = chat([TEXT])
        again, cached = chat([TEXT, "and then?"])
        self.assertTrue(again.startswith(out.rstrip("\n")))
        self.assertGreater(cached[-1], 64)

    def test_read_only_changes_nothing(self):
        self.run_stored("-p", TEXT)
        before = [(p, p.stat().st_mtime_ns, p.stat().st_size)
                  for p in sorted(self.store.rglob("*"))]
        answer = self.run_stored("-p", TEXT + " more " * 40, "--prefix-store-mode", "ro")
        self.assertGreater(answer["usage"]["cached_tokens"], 0)
        self.assertEqual([(p, p.stat().st_mtime_ns, p.stat().st_size)
                          for p in sorted(self.store.rglob("*"))], before)

    def test_the_size_is_kept(self):
        for i in range(6):
            self.run_stored("-p", f"{i} {TEXT}", "--prefix-store-size", "100K")
        self.assertGreater(len(self.blobs()), 0)
        self.assertLessEqual(sum(p.stat().st_size for p in self.blobs()), 100 << 10)

    def test_a_prefix_larger_than_its_store_keeps_its_beginning(self):
        size = ("--prefix-store-size", "40K")
        cold = self.run_stored("-p", TEXT, *size)
        warm = self.run_stored("-p", TEXT, *size)
        self.assertGreaterEqual(warm["usage"]["cached_tokens"], 64)
        self.assertLess(warm["usage"]["cached_tokens"], warm["usage"]["prompt_tokens"] - 64)
        self.assertEqual(warm["logits_hash"], cold["logits_hash"])
        self.fails(1, "prefix", "push", "-m", QWEN, "--raw", "-p", TEXT, "--prefix-store",
                   self.store, *size, says=["did not take all of it", "no room for"])

    def test_environment_twins(self):
        env = {"VERICACHE_PREFIX_STORE": str(self.store), "VERICACHE_PREFIX_STORE_MODE": "rw",
               "VERICACHE_PREFIX_STORE_SIZE": "1GiB"}
        for expected in (False, True):
            answer = json.loads(self.ok("run", "-m", QWEN, "--json", "--raw", "-n", 4, "-p", TEXT,
                                        env=env).out)
            self.assertEqual(answer["usage"]["cached_tokens"] > 0, expected)

    def test_compare_prefills_its_document_once_for_ever(self):
        document = self.folder / "document.txt"
        document.write_text(TEXT)
        questions = self.folder / "questions.jsonl"
        questions.write_text('{"question": "why?"}\n{"question": "and how much?"}\n')
        args = ("compare", "-m", self.chat_model(), "--document", document, "--questions",
                questions, "-n", 8, "--prefix-store", self.store, "--json")
        first, second = (json.loads(self.ok(*args).out) for _ in range(2))
        self.assertGreater(len(self.blobs()), 0)
        self.assertEqual(first["document"]["tokens"], second["document"]["tokens"])

    def test_bad_flags_and_folders(self):
        run = ("run", "-m", LLAMA, "-p", "x", "--prefix-store")
        self.fails(2, *run, self.store, "--prefix-store-mode", "wo", says="neither rw nor ro")
        self.fails(2, *run, self.store, "--prefix-store-size", "much", says="is not a size")
        self.fails(2, *run, "", says="the name is empty")
        self.fails(1, *run, self.store, "--prefix-store-mode", "ro",
                   says=["cannot use the prefix store", "--prefix-store"])
        (self.folder / "file").write_text("x")
        self.fails(1, *run, self.folder / "file", says="cannot use the prefix store")


if __name__ == "__main__":
    main()
