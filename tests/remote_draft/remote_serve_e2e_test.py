#!/usr/bin/env python3
"""`vericache serve --verifier` and `vericache verifier` in processes of their own: answers over
HTTP are those of `vericache run`. With the `openai` package where it is installed.

remote_serve_e2e_test.py VERICACHE"""

import concurrent.futures
import json
import re
import time
import unittest

import remote_draft_e2e_test as remote
from cli_fixture import LLAMA, TEXT, main
from real_server import RealServer

try:
    import openai
except ImportError:
    openai = None

TOKENS = 40


class RemoteServing(remote.RemoteCase):
    def serve(self, *urls, **flags):
        more = [str(x) for name, value in flags.items()
                for x in (f"--{name.replace('_', '-')}", value)]
        server = RealServer(str(self.binary), str(LLAMA), "--draft", remote.DRAFT,
                            "--prefix-store", str(self.store), "--prefix-store-mode", "ro",
                            "--verifier", ",".join(urls), *more)
        self.addCleanup(server.__exit__)
        return server

    def alone(self, prompt, *sampling):
        done = self.ok("run", "-m", LLAMA, "--json", "--raw", "--draft", "off", "-n", TOKENS,
                       "-p", prompt, *sampling)
        return json.loads(done.out)

    def complete(self, server, prompt, **more):
        status, reply = server.post("/v1/completions", {
            "prompt": prompt, "max_tokens": TOKENS, "temperature": 0,
            "vericache": {"receipt": True}, **more})
        self.assertEqual(status, 200, reply)
        return reply

    def expect_same(self, reply, here):
        self.assertEqual(reply["choices"][0]["text"], here["text"])
        receipt = reply["usage"]["vericache"]["receipt"]
        self.assertEqual((receipt["token_ids"], receipt["logits_hash"]),
                         (here["token_ids"], here["logits_hash"]))

    def way(self, reply):
        """What the answer tells of its way; it must tell of each of its tokens."""
        way = reply["usage"]["vericache"]["remote"]
        self.assertEqual(way["remote_tokens"] + way["local_tokens"],
                         reply["usage"]["completion_tokens"])
        self.assertTrue(way["reason"] or way["fallback"], way)
        return way

    def metric(self, server, name):
        _, _, text = server.request("GET", "/metrics")
        found = re.search(rf"^{re.escape(name)} ([0-9.e+]+)$", text, re.M)
        self.assertIsNotNone(found, name)
        return float(found.group(1))

    @staticmethod
    def prompts(count):
        return [f"{TEXT} Question {i}:" for i in range(count)]

    def ask_all(self, server, prompts, **more):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.complete(server, prompt, **more), prompts))

    def test_many_at_once_over_two_verifiers(self):
        self.push()
        urls = [f"http://127.0.0.1:{self.verifier()[1]}" for _ in range(2)]
        server = self.serve(*urls)
        prompts = self.prompts(8)
        looked_up = batches = 0
        ways = [({}, ()), ({"temperature": 0.8, "seed": 5}, ("--temp", "0.8", "--seed", "5"))]
        # Whether look-up pays is measured: a batch may do without.
        for sampling, args in ways * 5:
            if batches >= len(ways) and looked_up > 0:
                break
            batches += 1
            replies = self.ask_all(server, prompts, **sampling)
            for prompt, reply in zip(prompts, replies):
                self.expect_same(reply, self.alone(prompt, *args))
                way = self.way(reply)
                self.assertEqual(way["fallback"], "")
                looked_up += way["looked_up"]
        self.assertEqual(self.metric(server, 'vericache_remote_choices_total{event="begun"}'),
                         8 * batches)
        self.assertEqual(
            self.metric(server, 'vericache_remote_choices_total{event="fallback"}'), 0)
        self.assertEqual(self.metric(server, 'vericache_remote_verifiers{state="up"}'), 2)
        rounds = self.metric(server, "vericache_remote_rounds_total")
        self.assertGreater(rounds, 0)
        self.assertGreater(looked_up, 0)
        self.assertEqual(
            self.metric(server, 'vericache_remote_tokens_total{kind="looked_up"}'), looked_up)
        self.assertEqual(self.metric(server, "vericache_remote_question_seconds_count"), rounds)
        self.assertGreater(self.metric(server, 'vericache_remote_bytes_total{kind="drafts"}'), 0)
        self.assertEqual(server.stop(), 0)

    def test_a_verifier_is_killed_and_another_comes(self):
        self.push()
        process, port = self.verifier()
        relay = self.relay(port, kill_after=6)
        relay.kill = process.kill
        # By itself the node would stay with the prefix that it has computed meanwhile.
        server = self.serve(relay.url, prefix_plan="remote")
        prompts = self.prompts(4)
        told = []
        for prompt, reply in zip(prompts, self.ask_all(server, prompts)):
            self.expect_same(reply, self.alone(prompt))
            told.append(self.way(reply)["fallback"] != "")
        fallbacks = self.metric(server, 'vericache_remote_choices_total{event="fallback"}')
        self.assertGreater(fallbacks, 0)
        self.assertEqual(fallbacks, sum(told))
        # Another process at the same address is found by later requests.
        process.wait()
        self.verifier(port=port)
        relay.kill = lambda: None
        relay.kill_after = None
        emitted = 'vericache_remote_tokens_total{kind="emitted"}'
        before, end = self.metric(server, emitted), time.monotonic() + remote.PATIENCE_S
        while self.metric(server, emitted) == before:
            self.assertLess(time.monotonic(), end)
            self.expect_same(self.complete(server, prompts[0]), self.alone(prompts[0]))
        self.assertEqual(server.stop(), 0)

    def test_nobody_there_and_a_budget(self):
        self.push()
        server = self.serve("http://127.0.0.1:9", kv_memory="8MiB")
        prompt = self.prompts(1)[0]
        reply = self.complete(server, prompt)
        self.expect_same(reply, self.alone(prompt))
        way = self.way(reply)
        self.assertEqual((way["remote_tokens"], way["fallback"] != ""), (0, True), way)
        self.assertEqual(server.stop(), 0)

    def test_a_client_that_leaves(self):
        self.push()
        process, port = self.verifier()
        server = self.serve(f"http://127.0.0.1:{port}")
        connection = server.connect()
        body = json.dumps({"prompt": TEXT, "max_tokens": 4000, "stream": True}).encode()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
                           + str(len(body)).encode() + b"\r\n\r\n" + body)
        connection.recv(10)
        connection.close()
        end = time.monotonic() + remote.PATIENCE_S
        while not server.idle():
            self.assertLess(time.monotonic(), end)
        self.assertEqual(server.stop(), 0)
        process.terminate()
        self.assertEqual(process.wait(remote.PATIENCE_S), 0)

    def test_wrong_usage(self):
        self.fails(2, "serve", "-m", LLAMA, "--verifier", ",", says="URL")
        done = self.vericache("serve", "-m", LLAMA, "--verifier", "ftp://x")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("http://HOST:PORT", done.err)

    @unittest.skipIf(openai is None, "the openai package is not installed")
    def test_the_openai_client(self):
        self.push()
        _, port = self.verifier()
        server = self.serve(f"http://127.0.0.1:{port}")
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="any",
                               max_retries=0)
        prompt = self.prompts(1)[0]
        here = self.alone(prompt, "--temp", "0.7", "--seed", "11")
        text = ""
        for chunk in client.completions.create(model="m", prompt=prompt, max_tokens=TOKENS,
                                               temperature=0.7, seed=11, stream=True):
            text += "".join(choice.text for choice in chunk.choices)
        self.assertEqual(text, here["text"])
        # Logits stay at the verifier: what wants them is computed here, the same answer.
        whole = client.completions.create(model="m", prompt=prompt, max_tokens=TOKENS,
                                          temperature=0.7, seed=11, logprobs=2)
        self.assertEqual(whole.choices[0].text, here["text"])
        self.assertEqual(self.metric(server, 'vericache_remote_choices_total{event="begun"}'), 1)


if __name__ == "__main__":
    main()
