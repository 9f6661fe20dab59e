#!/usr/bin/env python3
"""End-to-end tests of `vericache prefix` and remote stores.    prefix_test.py VERICACHE"""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time

from cli_fixture import LLAMA, QWEN, TEXT, CliTest, main

FIELDS = ("text", "token_ids", "logits_hash", "finish_reason")


def free_port():
    """Below the range that clients' own ports come from: else a connection of another test may
    take it before it is used here."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.randrange(20000, 32000)))
            return s.getsockname()[1]


class Redis:
    """A redis-server of our own."""

    def __init__(self, folder, *args):
        self.folder, self.args = folder, args
        for _ in range(5):  # another process may have been faster with a port
            self.port = free_port()
            with contextlib.suppress(RuntimeError):
                self.start()
                return
        raise RuntimeError("redis-server did not start")

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "no", "--dir", str(self.folder), *self.args],
            stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < end:
            # Asked for its process: whoever answers on the port need not be ours.
            with contextlib.suppress(subprocess.CalledProcessError):
                if f"process_id:{self.process.pid}" in self.call("INFO", "server").split():
                    return
            time.sleep(0.02)
        self.stop()
        raise RuntimeError("redis-server did not start")

    def call(self, *args):
        done = subprocess.run(["redis-cli", "-p", str(self.port), *args], check=True,
                              stdout=subprocess.PIPE)
        return done.stdout.decode().strip()

    def stop(self):
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def url(self, database="", more=""):
        """Patient: what is found must not depend on how busy this machine is."""
        return f"redis://127.0.0.1:{self.port}{database}?wait_ms=60000&timeout_ms=60000{more}"


class Hole:
    """Accepts connections and never answers."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.held = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                self.held.append(self.socket.accept()[0])
            except OSError:
                return

    def port(self):
        return self.socket.getsockname()[1]


class RemoteTest(CliTest):
    def setUp(self):
        super().setUp()
        self.server = Redis(self.folder)
        self.addCleanup(self.server.stop)

    def answer(self, *args, env=None, model=LLAMA):
        done = self.ok("run", "-m", model, "--json", "--raw", "-n", 24, "-p", TEXT, *args, env=env)
        return json.loads(done.out), done.err

    def expect_same(self, answer, plain):
        for field in FIELDS:
            self.assertEqual(answer[field], plain[field], field)


class RemoteStores(RemoteTest):
    def test_a_second_run_needs_no_prefill_and_says_the_same(self):
        folder, pieces = self.folder / "near", self.server.url("/2", "&piece_bytes=4096")
        for store in ([self.server.url()], [folder, self.server.url("/1")],
                      [f"{folder}2,{pieces}"]):
            args = [a for one in store for a in ("--prefix-store", one)]
            for draft in ("off", "verify:0.25+int4"):
                with self.subTest(store=store, draft=draft):
                    plain, _ = self.answer("--draft", draft)
                    cold, _ = self.answer("--draft", draft, *args)
                    warm, _ = self.answer("--draft", draft, *args)
                    for answer in (cold, warm):
                        self.expect_same(answer, plain)
                    self.assertGreaterEqual(warm["usage"]["cached_tokens"],
                                            warm["usage"]["prompt_tokens"] - 64 - 32)

    def test_the_near_tier_is_filled_from_the_far_one(self):
        near, url = self.folder / "near", self.server.url()
        plain, _ = self.answer("--prefix-store", url)
        self.answer("--prefix-store", near, "--prefix-store", url)
        self.server.stop()
        warm, err = self.answer("--prefix-store", near, "--prefix-store", url)
        self.expect_same(warm, plain)
        self.assertGreater(warm["usage"]["cached_tokens"], 64)
        self.assertEqual(err.count("is left alone for a while"), 1, err)

    def test_whatever_the_store_does_the_answer_is_the_same(self):
        plain, _ = self.answer()
        hole = Hole()
        dead = f"redis://127.0.0.1:{free_port()}"
        s3 = f"s3://bucket/p?endpoint=http://127.0.0.1:{free_port()}"
        env = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(self.folder)}
        for store in (dead, f"redis://127.0.0.1:{hole.port()}?timeout_ms=300", s3,
                      f"{dead},{s3},{self.folder / 'd'}"):
            with self.subTest(store=store):
                for _ in range(2):
                    answer, err = self.answer("--prefix-store", store, env=env)
                    self.expect_same(answer, plain)
                self.assertIn("is left alone for a while", err)
        hole.socket.close()

    def test_a_full_and_a_broken_store(self):
        plain, _ = self.answer()
        self.server.call("CONFIG", "SET", "maxmemory", "1mb")
        for _ in range(2):
            answer, _ = self.answer("--prefix-store", self.server.url())
            self.expect_same(answer, plain)
        self.server.call("CONFIG", "SET", "maxmemory", "0")
        self.answer("--prefix-store", self.server.url())
        keys = [k for k in self.server.call("KEYS", "*").split("\n") if k]
        self.assertGreater(len(keys), 2)
        for key in keys:  # one byte of each, far behind the head
            self.server.call("SETRANGE", key, "300", "!")
        answer, err = self.answer("--prefix-store", self.server.url())
        self.expect_same(answer, plain)
        warm, _ = self.answer("--prefix-store", self.server.url())
        self.expect_same(warm, plain)
        self.assertGreater(warm["usage"]["cached_tokens"], 64, "written anew")

    def test_passwords_are_not_printed(self):
        self.server.call("CONFIG", "SET", "requirepass", "wrong")
        said = ""
        for args in (("run", "-m", LLAMA, "-p", TEXT, "-n", 2), ("prefix", "ls"),
                     ("prefix", "stat"), ("prefix", "push", "-m", LLAMA, "--raw", "-p", TEXT)):
            for url in (f"redis://u:SENTINEL@127.0.0.1:{self.server.port}",
                        "redis://u:SENTINEL@127.0.0.1:99999", "redis://u:SENTINEL@h?what=1"):
                for env in ({}, {"VERICACHE_PREFIX_STORE": url}):
                    given = () if env else ("--prefix-store", url)
                    done = self.vericache(*args, *given, env=env)
                    said += done.out + done.err
        self.assertNotIn("SENTINEL", said)
        self.assertIn("WRONGPASS", said)


class PrefixCommands(RemoteTest):
    def setUp(self):
        super().setUp()
        self.store = f"{self.folder / 'dir'},{self.server.url()}"

    def prefix(self, *args):
        return json.loads(self.ok("prefix", *args, "--json", "--prefix-store", self.store).out)

    def push(self, text=TEXT, model=LLAMA, drafts=("verify:0.25+int4", "h2o:0.3"), **kwargs):
        args = [a for d in drafts for a in ("--draft", d)]
        for name, value in kwargs.items():
            args += [f"--{name}", value]
        return self.prefix("push", "-m", model, "--raw", "-p", text, *args)

    def test_push_then_a_run_finds_it(self):
        plain, _ = self.answer()
        pushed = self.push(label="stones")
        self.assertEqual(pushed["stored_tokens"], pushed["prompt_tokens"] // 64 * 64)
        self.assertEqual([d["draft"] for d in pushed["drafts"]], ["verify:0.25+int4", "h2o:0.3"])
        again = self.push(label="stones")
        self.assertGreater(again["cached_tokens"], 0)
        for store in self.store.split(","):
            answer, _ = self.answer("--prefix-store", store, "--prefix-store-mode", "ro")
            self.expect_same(answer, plain)
            self.assertGreaterEqual(answer["usage"]["cached_tokens"], pushed["stored_tokens"] - 32)
        (listed,) = self.prefix("ls")["prefixes"]
        self.assertEqual(listed["label"], "stones")
        self.assertEqual(listed["num_tokens"], pushed["stored_tokens"])
        self.assertEqual(listed["full_bytes"], pushed["full_bytes"])
        self.assertEqual({d["draft"]: d["num_bytes"] for d in listed["drafts"]},
                         {d["draft"]: d["num_bytes"] for d in pushed["drafts"]})
        self.assertEqual(len(listed["stores"]), 2)
        text = self.ok("prefix", "ls", "--prefix-store", self.store).out
        self.assertRegex(text, r"^[0-9a-f]{12} +\d+ tokens .*stones\n$")

    def test_push_stores_the_cold_run_s_draft_for_each_spec(self):
        # The first spec's draft comes from a whole prefill, the second's from 32 rows: the same.
        self.store = self.server.url("/1")
        self.push(drafts=("h2o:0.3", "verify:0.25+int4"))
        two = {d["draft"]: d["num_bytes"] for d in self.prefix("ls")["prefixes"][0]["drafts"]}
        self.store = self.server.url("/2")
        self.push(drafts=("verify:0.25+int4",))
        one = {d["draft"]: d["num_bytes"] for d in self.prefix("ls")["prefixes"][0]["drafts"]}
        self.assertEqual(two["verify:0.25+int4"], one["verify:0.25+int4"])
        # Bit for bit: equal keys, equal values.
        keys = set(self.server.call("-n", "2", "KEYS", "*").split("\n"))
        record = next(k for k in keys if "{7663707265666978" in k)
        for key in keys - {record}:
            self.assertEqual(self.dump("1", key), self.dump("2", key))

    def dump(self, db, key):
        done = subprocess.run(["redis-cli", "-p", str(self.server.port), "-n", db, "GET", key],
                              check=True, stdout=subprocess.PIPE)
        return done.stdout[:136] + done.stdout[144:]  # but for the generation, a random number

    def test_rm_keeps_what_others_need(self):
        self.push()
        self.push(text=TEXT + " and so on" * 40, drafts=())
        self.push(text=TEXT, model=QWEN, drafts=())
        listed = self.prefix("ls")["prefixes"]
        self.assertEqual(len(listed), 3)
        short = next(p for p in listed if p["drafts"])
        before = self.prefix("stat")["stores"]
        dry = self.prefix("rm", short["id"][:12], "--dry-run")
        self.assertEqual([p["id"] for p in dry["prefixes"]], [short["id"]])
        self.assertEqual(self.prefix("stat")["stores"], before)
        gone = self.prefix("rm", short["id"][:12])
        self.assertEqual((gone["num_blobs"], gone["num_bytes"]),
                         (dry["num_blobs"], dry["num_bytes"]))
        # Its blocks are the beginning of a longer one; its drafts and scores are its own.
        for tier in self.prefix("check")["stores"]:
            self.assertEqual((tier["damaged"], tier["incomplete_prefixes"]), (0, 0))
        self.assertEqual(self.prefix("rm", "--older-than", "1d")["prefixes"], [])
        model = next(p for p in listed if p["model_sha256"] != short["model_sha256"])
        self.assertEqual(len(self.prefix("rm", "--of-model", model["model_sha256"])["prefixes"]), 1)
        self.assertEqual(len(self.prefix("ls")["prefixes"]), 1)
        self.prefix("rm", "--all")
        for tier in self.prefix("stat")["stores"]:
            self.assertEqual((tier["num_blobs"], tier["num_prefixes"]), (0, 0))
        self.assertEqual(self.server.call("DBSIZE"), "0")

    def test_check_finds_damage_and_repairs_only_when_asked(self):
        self.push()
        blob = sorted(p for p in (self.folder / "dir/blobs").rglob("*") if p.is_file())[0]
        data = bytearray(blob.read_bytes())
        data[-1] ^= 1
        blob.write_bytes(data)
        key = next(k for k in self.server.call("KEYS", "*").split("\n") if "{7663" not in k)
        self.server.call("SETRANGE", key, "200", "!!")
        for _ in range(2):
            done = self.vericache("prefix", "check", "--json", "--prefix-store", self.store)
            self.assertEqual(done.returncode, 1)
            self.assertIn("--repair", done.err)
            for tier in json.loads(done.out)["stores"]:
                self.assertEqual((tier["damaged"], tier["repaired"]), (1, 0))
                self.assertGreaterEqual(tier["incomplete_prefixes"], 0)
        self.assertEqual(blob.read_bytes(), data, "nothing is moved")
        for tier in self.prefix("check", "--repair")["stores"]:
            self.assertGreaterEqual(tier["repaired"], 1)
        for tier in self.prefix("check")["stores"]:
            self.assertEqual((tier["damaged"], tier["incomplete_prefixes"]), (0, 0))

    def test_progress_has_bytes_and_a_rate(self):
        done = self.ok("prefix", "push", "-m", LLAMA, "--raw", "-p", TEXT, "--progress",
                       "--prefix-store", self.store)
        self.assertRegex(done.err, r"store +100% .*B of .*B")
        done = self.ok("prefix", "check", "--progress", "--prefix-store", self.store)
        self.assertRegex(done.err, r"check +\d+% .*B of .*B")

    def test_what_a_plain_run_stored_is_listed_too(self):
        self.answer("--prefix-store", self.store)
        for prefix in self.prefix("ls")["prefixes"]:
            self.assertGreaterEqual(prefix["num_tokens"], 64)
        for tier in self.prefix("stat")["stores"]:
            self.assertEqual(tier["unlisted_blobs"], 0)

    def test_wrong_usage(self):
        store = ("--prefix-store", self.folder / "dir")
        self.fails(2, "prefix", says="prefix")
        self.fails(2, "prefix", "ls", says="no prefix store given")
        self.fails(2, "prefix", "ls", "--prefix-store", "http://x", says="begins with none of")
        self.ok("prefix", "push", "-m", LLAMA, "--raw", "-p", TEXT, *store)
        self.fails(1, "prefix", "rm", *store, says="say which prefixes")
        self.fails(1, "prefix", "rm", "abcdefabcdef", *store, says="no prefix")
        self.fails(1, "prefix", "rm", "ab", *store, says="4 to 64")
        self.fails(2, "prefix", "rm", "--older-than", "soon", *store, says="is not an age")
        self.fails(2, "prefix", "push", "-m", LLAMA, "-p", "x", "--draft", "nonsense", *store,
                   says="nonsense")
        self.fails(1, "prefix", "push", "-m", LLAMA, "--raw", "-p", "short", *store,
                   says="blocks of 64")
        self.assertTrue(re.search("push", self.ok("prefix", "--help").out))

    def test_a_store_that_takes_nothing_is_an_error(self):
        self.server.call("CONFIG", "SET", "maxmemory", "1mb")
        self.fails(1, "prefix", "push", "-m", LLAMA, "--raw", "-p", TEXT, "--prefix-store",
                   self.server.url(), says="did not take all of it")
        self.fails(1, "prefix", "ls", "--prefix-store", f"redis://127.0.0.1:{free_port()}",
                   says="refused")


if __name__ == "__main__":
    main()
