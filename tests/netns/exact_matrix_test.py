#!/usr/bin/env python3
"""The same bits from every place that K/V may come from, on machines far apart.

    exact_matrix_test.py VERICACHE MODEL.gguf

Two serving nodes, each in a network of its own behind a slow link; a Redis and verifiers on the
store's side. Every answer's tokens and logits hash are compared with those of a run that knows no
store; what was used is asserted too, so that no cell is true for want of trying.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import far_side
import links

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRAFT = "kvzip:0.25+int4"
NUM_TOKENS = 40
GREEDY, SAMPLED = (), ("--temp", "0.8", "--seed", "7")
QUESTIONS = ("What is promised here?", "Repeat the second sentence word by word.")
POST = """
import json, sys, urllib.request
body = sys.stdin.read().encode()
request = urllib.request.Request(sys.argv[1], body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=600).read().decode())
"""
binary = model = None  # set by main()


def clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("VERICACHE_")}


class Place(unittest.TestCase):
    """The network, the store with a pushed prefix, and the answers that everything must equal."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.network = cls.enterClassContext(links.Network())
        cls.nodes = [cls.network.add_node("300mbit", delay_ms=2), cls.network.add_node("100mbit")]
        cls.prefix = cls.folder / "prefix.txt"
        text = (ROOT / "docs/exactness.md").read_text("utf-8")
        cls.prefix.write_text(text[:2600], encoding="utf-8")
        cls.redis = far_side.Redis(cls.network.store, cls.folder / "redis")
        cls.compared = 0
        cls.plain = {(question, sampling): cls.answer(cls.network.store, question, sampling,
                                                      "--draft", "off")[0]
                     for question, sampling in zip(QUESTIONS, (GREEDY, SAMPLED))}
        cls.near_store = far_side.redis_url(("127.0.0.1", far_side.REDIS_PORT))
        pushed = cls.vericache(cls.network.store, "prefix", "push", "-m", model, "-f", cls.prefix,
                               "--draft", DRAFT, "--prefix-store", cls.near_store, "--json")
        cls.stored_tokens = json.loads(pushed.stdout)["stored_tokens"]
        cls.redis.save()

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.__name__}: {cls.compared} answers compared", flush=True)

    @classmethod
    def vericache(cls, space, *words):
        done = space.run([binary, *words], env=clean_environment(), cwd=cls.folder)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, words))}: {done.stderr[-600:]}")
        return done

    @classmethod
    def answer(cls, space, question, sampling, *more, tokens=NUM_TOKENS):
        """(tokens and logits hash, tokens from a store, what was said)"""
        done = cls.vericache(space, "run", "-m", model, "--json", "--ignore-eos", "-n", tokens,
                             "-f", cls.prefix, "-p", question, *sampling, *more)
        found = json.loads(done.stdout)
        arrival = found["stats"]["arrival"] or {}
        return ((found["token_ids"], found["logits_hash"]), found["usage"]["cached_tokens"],
                f"{done.stderr}plan {arrival.get('plan')}\n")

    def same(self, space, *more, cached=None, says="", lacks=None):
        """A greedy answer and a sampled one. cached: whether K/V must have come from a store."""
        for (question, sampling), plain in self.plain.items():
            with self.subTest(space=space.name, question=question, sampling=sampling, more=more):
                found, from_store, said = self.answer(space, question, sampling, "--draft", DRAFT,
                                                      *more)
                self.assertEqual(found, plain)
                type(self).compared += 1
                if cached is not None:
                    self.assertEqual(from_store > 0, cached, said)
                if says:
                    self.assertRegex(said, says)
                if lacks:
                    self.assertNotIn(lacks, said)

    def ask_server(self, node, cached=True):
        for (question, sampling), plain in self.plain.items():
            text = self.prefix.read_text("utf-8") + "\n\n" + question
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": NUM_TOKENS,
                    "model": "m", "temperature": float(sampling[1]) if sampling else 0,
                    "seed": int(sampling[3]) if sampling else 0, "ignore_eos": True,
                    "vericache": {"receipt": True}}
            done = node.run([sys.executable, "-c", POST,
                             "http://127.0.0.1:8080/v1/chat/completions"],
                            check=True, text=json.dumps(body))
            usage = json.loads(done.stdout)["usage"]
            receipt = usage["vericache"]["receipt"]
            self.assertEqual((receipt["token_ids"], receipt["logits_hash"]), plain)
            type(self).compared += 1
            from_store = usage["prompt_tokens_details"]["cached_tokens"]
            self.assertTrue(cached is None or from_store > 0)

    def url(self, node):
        return far_side.redis_url(node.reach(far_side.REDIS_PORT))

    def verifier(self, port):
        process = far_side.Process(
            self.network.store, self.folder / "far", [binary, "verifier", "-m", model,
                                                      "--prefix-store", self.near_store],
            port, env=clean_environment())
        self.addCleanup(process.kill)
        return process

    def remote(self, node, *ports, plan="remote"):
        """Flags of a node that drafts for verifiers on these ports."""
        urls = ["http://{}:{}".format(*node.reach(port)) for port in ports]
        key = self.folder / "key"
        key.write_text(far_side.KEY + "\n")
        return ("--verifier", ",".join(urls), "--verifier-key-file", key, "--prefix-store",
                self.url(node), "--prefix-store-mode", "ro", "--prefix-plan", plan)


class Local(Place):
    def test_cold_then_warm_disk_then_in_another_place(self):
        node, other = self.nodes
        self.same(node, cached=False)
        disk = self.folder / "disk"
        first = self.answer(node, QUESTIONS[0], GREEDY, "--prefix-store", disk)
        self.assertEqual(first[:2], (self.plain[QUESTIONS[0], GREEDY], 0))
        self.same(node, "--prefix-store", disk, cached=True)
        self.same(other, "--prefix-store", disk, "--prefix-store-mode", "ro", cached=True)

    def test_warm_remote_is_read_over_the_link(self):
        for node in self.nodes:
            before = node.link_bytes()[0]
            self.same(node, "--prefix-store", self.url(node), "--prefix-store-mode", "ro",
                      cached=True)
            self.assertGreater(node.link_bytes()[0] - before, 4 * 1000 * self.stored_tokens)

    def test_every_way_to_have_it(self):
        node = self.nodes[0]
        store = ("--prefix-store", self.url(node), "--prefix-store-mode", "ro", "--prefix-plan")
        self.same(node, *store, "draft-first", cached=True, says="plan draft-first")
        self.same(node, *store, "recompute", cached=False)
        self.same(node, *store, "auto", says="plan (load|draft-first|recompute)")

    def test_mixed_tiers(self):
        node = self.nodes[0]
        near = self.folder / "near"
        tiers = ("--prefix-store", near, "--prefix-store", self.url(node))
        self.same(node, *tiers, cached=True)
        damaged = sorted(p for p in (near / "blobs").rglob("*") if p.is_file())
        self.assertGreater(len(damaged), 2)
        for path in damaged[::2]:
            path.write_bytes(path.read_bytes()[:-1])
        self.same(node, *tiers, cached=True)

    def test_warm_memory_and_after_a_restart_of_the_server(self):
        node = self.nodes[1]
        command = [binary, "serve", "-m", model, "--prefix-store", self.url(node)]
        for start in range(2):
            server = far_side.Process(node, self.folder / "node", command, 8080, "127.0.0.1",
                                      env=clean_environment())
            try:
                for _ in range(2):  # from the store, then from memory
                    self.ask_server(node)
            finally:
                self.assertEqual(server.stop(), 0, f"start {start}")


class Remote(Place):
    def test_two_nodes_draft_for_one_verifier(self):
        self.verifier(8091)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(self.same, node, *self.remote(node, 8091),
                                     says=r"remote +40 tokens verified, 0 computed here.*"
                                          r"draft KV of \d+ tokens", lacks="fallback")
                         for node in self.nodes]:
                done.result()

    def test_every_way_with_a_verifier(self):
        """By choice the node goes on by itself, at once or when its blocks are here."""
        self.verifier(8091)
        node = self.network.add_node("1gbit", delay_ms=5)
        for plan, says in (("remote", "0 computed here.*\nway +remote "),
                           ("remote-plain", "0 of 0 drafted.*\nway +remote-plain "),
                           ("load", "\nway +load "),
                           ("recompute", r"[1-9]\d* computed here.*\nway +recompute "),
                           ("auto", r"\nway +(remote|remote-plain|load|recompute) \(")):
            self.same(node, *self.remote(node, 8091, plan=plan), says=says, lacks="fallback")
        # So long that its blocks are here before its end, however slow they are.
        plain, _, _ = self.answer(self.network.store, QUESTIONS[0], GREEDY, "--draft", "off",
                                  tokens=800)
        found, _, said = self.answer(node, QUESTIONS[0], GREEDY, "--draft", DRAFT,
                                     "--draft-len", 1, *self.remote(node, 8091, plan="load"),
                                     tokens=800)
        self.assertEqual(found, plain)
        type(self).compared += 1
        self.assertRegex(said, r"remote +[1-9]\d* tokens verified, [1-9]\d* computed here")

    def test_a_server_hands_over_by_choice(self):
        self.verifier(8091)
        node = self.network.add_node("1gbit", delay_ms=5)
        for plan in ("load", "recompute", "auto"):
            command = [binary, "serve", "-m", model, "--draft", DRAFT,
                       *self.remote(node, 8091, plan=plan)]
            server = far_side.Process(node, self.folder / "node", command, 8080, "127.0.0.1",
                                      env=clean_environment())
            try:
                for _ in range(3):
                    self.ask_server(node, cached=None)
            finally:
                self.assertEqual(server.stop(), 0, plan)

    def test_full_blocks_do_not_cross_the_link(self):
        self.verifier(8091)
        node = self.nodes[0]
        before = node.link_bytes()[0]
        self.answer(node, QUESTIONS[0], GREEDY, "--draft", DRAFT, "--prefix-store", self.url(node),
                    "--prefix-store-mode", "ro")
        full = node.link_bytes()[0] - before
        before = node.link_bytes()[0]
        found, _, said = self.answer(node, QUESTIONS[0], GREEDY, "--draft", DRAFT,
                                     *self.remote(node, 8091))
        self.assertEqual(found, self.plain[QUESTIONS[0], GREEDY])
        draft_bytes = int(re.search(r"draft KV of \d+ tokens \((\d+) bytes\)", said).group(1))
        rows_bytes = int(re.search(r"(\d+) bytes of rows", said).group(1))
        moved = node.link_bytes()[0] - before
        self.assertLess(draft_bytes, 0.2 * full)
        self.assertLess(moved, 1.1 * (draft_bytes + rows_bytes) + 100_000)

    def test_a_verifier_is_killed_and_another_goes_on_or_the_node_alone(self):
        for others, here in ((1, "0"), (0, r"[1-9]\d*")):
            for (question, sampling), plain in self.plain.items():
                first = self.verifier(8092)
                ports = [8092] + [8093] * others
                second = self.verifier(8093) if others else None
                receipt = self.folder / "receipt.json"
                process = self.nodes[0].popen(
                    [binary, "run", "-m", model, "--ignore-eos", "-n", NUM_TOKENS, "-f",
                     self.prefix, "-p", question, *sampling, "--draft", DRAFT, "--draft-len", 1,
                     "--receipt", receipt, *self.remote(self.nodes[0], *ports)],
                    env=clean_environment(), cwd=self.folder, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE)
                self.assertTrue(process.stdout.read(1))  # the first of forty tokens
                first.kill()
                _, said = process.communicate()
                self.assertEqual(process.returncode, 0, said)
                self.assertRegex(said.decode(), rf"remote .* verified, {here} computed here")
                found = json.loads(receipt.read_text())
                self.assertEqual((found["token_ids"], found["logits_hash"]), plain)
                type(self).compared += 1
                if second:
                    second.kill()

    def test_nobody_verifies(self):
        self.same(self.nodes[1], *self.remote(self.nodes[1], 9), says="fallback")

    def test_after_a_restart_of_store_and_verifier(self):
        self.verifier(8091).kill()
        self.redis.stop()
        self.redis.start()
        self.verifier(8091)
        for node in self.nodes:
            self.same(node, *self.remote(node, 8091), says="40 tokens verified, 0 computed here")
            self.same(node, "--prefix-store", self.url(node), "--prefix-store-mode", "ro",
                      cached=True)

    def test_mixed_a_near_tier_and_a_verifier(self):
        self.verifier(8091)
        node = self.nodes[0]
        flags = list(self.remote(node, 8091))
        flags[5] = f"{self.folder / 'near-draft'},{flags[5]}"
        flags[7] = "rw"  # the draft blob goes into the near tier
        self.same(node, *flags, says="40 tokens verified, 0 computed here")
        self.same(node, *flags[4:], cached=True)


def main():
    global binary, model
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} VERICACHE MODEL.gguf [TEST...]")
    binary, model = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
    if not model.is_file():
        print(f"!!  NO {model.name}: the exactness matrix did not run", file=sys.stderr)
        sys.exit(links.SKIPPED)
    links.skip_loudly_unless_possible("the exactness matrix")
    unittest.main(module="__main__")


if __name__ == "__main__":
    main()
