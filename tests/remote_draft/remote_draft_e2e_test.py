#!/usr/bin/env python3
"""`vericache verifier` and `vericache run --verifier` in processes of their own.

remote_draft_e2e_test.py VERICACHE"""

import contextlib
import http.client
import json
import re
import socket
import socketserver
import subprocess
import threading
import time

from cli_fixture import LLAMA, QWEN, TEXT, CliTest, main

DRAFT = "h2o:0.3"
PATIENCE_S = 60


class Relay:
    """Stands between the two and does to the bytes what a test says."""

    def __init__(self, port, kill_after=None, bytes_per_s=None):
        relay = self
        self.replies = 0
        self.kill_after, self.kill = kill_after, None

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                with contextlib.suppress(OSError):  # either side may have gone
                    self.relay()

            def relay(self):
                with socket.create_connection(("127.0.0.1", port)) as far:
                    threading.Thread(target=relay.pump, args=(self.request, far), daemon=True
                                     ).start()
                    while data := far.recv(1 << 16):
                        relay.replies += data.startswith(b"HTTP/1.1 200")
                        after = relay.kill_after
                        if after is not None and relay.replies > after:
                            relay.kill()
                            self.request.sendall(data[:20])  # the reply is cut off
                            return
                        for begin in range(0, len(data), 512) if bytes_per_s else [0]:
                            part = data[begin:begin + 512] if bytes_per_s else data
                            self.request.sendall(part)
                            if bytes_per_s:
                                time.sleep(len(part) / bytes_per_s)

        socketserver.ThreadingTCPServer.daemon_threads = True
        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def pump(near, far):
        try:
            while data := near.recv(1 << 16):
                far.sendall(data)
        except OSError:
            pass

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class RemoteCase(CliTest):
    """Verifiers, relays in front of them, and a prefix that is stored."""

    def setUp(self):
        super().setUp()
        self.store = self.folder / "prefixes"
        self.prefix = self.folder / "prefix.txt"
        self.prefix.write_text(TEXT)

    def push(self):
        self.ok("prefix", "push", "-m", LLAMA, "--raw", "-f", self.prefix, "--draft", DRAFT,
                "--prefix-store", self.store)

    def verifier(self, *args, model=LLAMA, port=0):
        """A verifier that is ready: its process and its port."""
        port_file = self.folder / f"port{time.monotonic_ns()}"
        log = open(self.folder / "verifier.log", "ab")
        process = subprocess.Popen(
            [str(self.binary), "verifier", "-m", str(model), "--prefix-store", str(self.store),
             "--port", str(port), "--port-file", str(port_file), *map(str, args)],
            env=self.environment(), cwd=self.folder, stderr=log)
        self.addCleanup(log.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        end = time.monotonic() + PATIENCE_S
        while not port_file.exists():
            self.assertIsNone(process.poll(), (self.folder / "verifier.log").read_text())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        return process, int(port_file.read_text())

    def relay(self, port, **how):
        relay = Relay(port, **how)
        self.addCleanup(relay.close)
        return relay


class RemoteDrafting(RemoteCase):
    def ask(self, *args, url=None, tokens=48, prompt="And now?"):
        """The answer's JSON, and what is told of remote drafting."""
        args = ["run", "-m", LLAMA, "--json", "--raw", "--ignore-eos", "-n", tokens, "-f",
                self.prefix, "-p", prompt, "--draft", DRAFT, *args]
        if url:
            args += ["--prefix-store", self.store, "--prefix-store-mode", "ro", "--verifier", url]
        done = self.ok(*args)
        line = re.search(r"^remote .*$", done.err, re.M)
        return self.parse(done.out), line.group(0) if line else ""

    @staticmethod
    def parse(text):
        answer = json.loads(text)
        return {k: answer[k] for k in ("text", "token_ids", "logits_hash", "finish_reason")}

    def numbers(self, line):
        found = re.search(r"(\d+) tokens verified, (\d+) computed here.*; (\d+) rounds, (\d+) of "
                          r"(\d+) drafted", line)
        self.assertIsNotNone(found, line)
        return dict(zip(("far", "here", "rounds", "accepted", "drafted"),
                        map(int, found.groups())))

    def test_the_same_answer_greedy_and_sampled(self):
        self.push()
        process, port = self.verifier()
        for sampling in ((), ("--temp", "0.8", "--seed", "7")):
            here, none = self.ask(*sampling)
            far, line = self.ask(*sampling, url=f"http://127.0.0.1:{port}")
            self.assertEqual(none, "")
            self.assertEqual(far, here)
            told = self.numbers(line)
            self.assertEqual((told["far"], told["here"]), (48, 0), line)
            self.assertGreater(told["drafted"], 0)
            self.assertNotIn("no stored draft KV", line)
        process.terminate()
        self.assertEqual(process.wait(PATIENCE_S), 0)
        self.assertIn("verified 2 sessions", (self.folder / "verifier.log").read_text())

    def test_without_a_draft_kv(self):
        _, port = self.verifier()
        far, line = self.ask(url=f"http://127.0.0.1:{port}")
        self.assertEqual(far, self.ask()[0])
        self.assertIn("no stored draft KV", line)

    def test_a_verifier_that_is_killed_in_the_middle(self):
        self.push()
        here, _ = self.ask()
        process, port = self.verifier()
        relay = self.relay(port, kill_after=3)
        relay.kill = process.kill
        far, line = self.ask("--draft-len", 4, url=relay.url)
        told = self.numbers(line)
        self.assertEqual(far, here)
        self.assertGreater(told["far"], 0)
        self.assertGreater(told["here"], 0)
        self.assertIn("fallback", line)
        self.assertNotEqual(process.wait(PATIENCE_S), 0)

    def test_the_next_verifier_goes_on(self):
        self.push()
        here, _ = self.ask("--temp", "0.8", "--seed", "3")
        process, port = self.verifier()
        _, other = self.verifier()
        relay = self.relay(port, kill_after=3)
        relay.kill = process.kill
        far, line = self.ask("--temp", "0.8", "--seed", "3", "--draft-len", 4,
                             url=f"{relay.url},http://127.0.0.1:{other}")
        told = self.numbers(line)
        self.assertEqual(far, here)
        self.assertEqual((told["far"], told["here"]), (48, 0), line)
        self.assertIn(f":{other}", line)

    def test_a_slow_drip_is_given_up(self):
        self.push()
        _, port = self.verifier()
        relay = self.relay(port, bytes_per_s=20)
        far, line = self.ask("--verifier-timeout", "0.5", url=relay.url)
        self.assertEqual(far, self.ask()[0])
        self.assertIn("fallback", line)

    def test_nobody_there(self):
        self.push()
        far, line = self.ask(url="http://127.0.0.1:9")
        self.assertEqual(far, self.ask()[0])
        self.assertIn("fallback", line)

    def test_another_model_is_refused(self):
        _, port = self.verifier(model=QWEN)
        far, line = self.ask(url=f"http://127.0.0.1:{port}")
        self.assertEqual(far, self.ask()[0])
        self.assertIn("HTTP 409", line)
        self.assertIn("another model file", line)

    def test_keys(self):
        keys, wrong = self.folder / "keys", self.folder / "wrong"
        keys.write_text("sesame-one\nsesame-two\n")
        wrong.write_text("sesame-three\n")
        _, port = self.verifier("--api-key-file", keys)
        url = f"http://127.0.0.1:{port}"
        for given, code in ((("--verifier-key-file", keys), ""),
                            (("--verifier-key-file", wrong), "HTTP 401"), ((), "HTTP 401")):
            _, line = self.ask(*given, url=url, tokens=8)
            self.assertEqual("fallback" in line, code != "", line)
            self.assertIn(code, line)
            self.assertNotIn("sesame", line)
        self.assertNotIn("sesame", (self.folder / "verifier.log").read_text())

    def post(self, port, path, body, method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.request(method, path, body=body)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def test_hostile_requests(self):
        process, port = self.verifier()
        for body in (b"", b"VCRD", b"\xff" * 1000, b"VCRD\x04\0\0\0\x01" + b"\xff" * 64):
            for path in ("open", "verify", "close"):
                self.assertEqual(self.post(port, f"/v1/remote/{path}", body)[0], 400)
        status, text = self.post(port, "/v1/remote/open", b"VCRD\x07\0\0\0" + b"x" * 64)
        self.assertEqual((status, "version 7" in text), (409, True), text)
        self.assertEqual(self.post(port, "/v1/remote/else", b"")[0], 404)
        self.assertEqual(self.post(port, "/v1/remote/open", None, method="GET")[0], 405)
        self.assertEqual(self.post(port, "/health", None, method="GET"), (200, "ok\n"))
        self.assertIsNone(process.poll())

    def test_a_small_memory_metrics_and_timeline(self):
        self.push()
        timeline = self.folder / "timeline.json"
        process, port = self.verifier("--kv-memory", "112KiB", "--kv-dir", self.folder,
                                      "--timeline", timeline)
        far, line = self.ask(url=f"http://127.0.0.1:{port}")
        self.assertEqual(far, self.ask()[0])
        self.assertEqual(self.numbers(line)["here"], 0)
        status, text = self.post(port, "/metrics", None, method="GET")
        self.assertEqual(status, 200)
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        self.assertEqual(values['vericache_verifier_sessions_total{event="opened"}'], "1")
        self.assertEqual(values['vericache_tokens_total{kind="emitted"}'], "47")
        self.assertGreater(float(values["vericache_kv_fetched_bytes_total"]), 0)
        process.terminate()
        self.assertEqual(process.wait(PATIENCE_S), 0)
        self.assertIn("for KV at most", (self.folder / "verifier.log").read_text())
        names = {event["name"] for event in json.loads(timeline.read_text())}
        self.assertTrue({"prefill", "verify", "fetch"} <= names, names)

    def test_wrong_usage(self):
        self.fails(2, "verifier", "-m", LLAMA, "--host", "0.0.0.0", says="--api-key-file")
        for url in ("ftp://x", "http://", "http://u:p@x:1", "x"):
            done = self.vericache("run", "-m", LLAMA, "-p", "x", "--verifier", url)
            self.assertNotEqual(done.returncode, 0, url)
            self.assertIn("http://HOST:PORT", done.err)
            self.assertNotIn("u:p", done.err)
        self.fails(2, "run", "-m", LLAMA, "-p", "x", "--verifier", "http://x:1", "--session",
                   "s.kv", says="--session")


if __name__ == "__main__":
    main()
