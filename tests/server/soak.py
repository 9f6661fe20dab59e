"""Random clients, good and bad, at `vericache serve` for a while; then nothing may be left of them.

    tests/server/soak.py VERICACHE --minutes 10 --seed 1 [--model MODEL]

Every answer is compared with the one that the command gives alone, every echo with its own marker.
At the end: no wrong reply, K/V freed, file handles and threads as before, memory flat: the line
fitted to the resident size after the warm-up (a third of the time) rises by at most --growth MiB.
"""

import argparse
import collections
import contextlib
import http.client
import json
import pathlib
import random
import socket
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "src/cli"))
# pylint: disable=wrong-import-position
import mixed_requests
import real_server
from real_engine_test import Answer
from real_server import RealServer, post
from server_fixture import wait_for

BAD_BODIES = [b"", b"{", b"nonsense", b'{"prompt": "\xe2\x80"}', b"[]", b"{" * 5000,
              b'{"prompt": 3}', b'{"prompt": "x", "temperature": -1}', b'{"prompt": "x", "n": 0}',
              b'{"prompt": "x", "stop": [""]}', b'{"prompt": "x", "logit_bias": {"-1": 0}}',
              b'{"prompt": "' + b"w " * 40000 + b'"}']


class Process:
    """What the kernel says of a process."""

    def __init__(self, pid):
        self.folder = pathlib.Path(f"/proc/{pid}")

    def _status(self, name):
        for line in (self.folder / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        return 0

    def rss_mib(self):
        return self._status("VmRSS") / 1024

    def threads(self):
        """Without those that the kernel adds and ends for io_uring as it likes."""
        count = 0
        for task in (self.folder / "task").iterdir():
            with contextlib.suppress(OSError):
                count += not (task / "comm").read_text().startswith("iou-")
        return count

    def open_files(self):
        names = []
        for link in (self.folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(str(link.readlink()))
        return sorted(names)

    def spill_files(self):
        """Those of prefixes that are kept stay open: their number is told, not judged."""
        return sum(name.endswith("(deleted)") for name in self.open_files())

    def handles(self):
        return len(self.open_files()) - self.spill_files()


class Client(threading.Thread):
    """Does one random thing after another until told to stop."""

    def __init__(self, soak, number):
        super().__init__(daemon=True)
        self.soak, self.server = soak, soak.server
        self.pick = random.Random(f"{soak.seed} {number}")
        self.done = collections.Counter()
        self.wrong = []
        self.actions = {self.ask: 6, self.echo: 3, self.leave: 4, self.read_slowly: 1,
                        self.send_half: 2, self.send_nonsense: 2, self.tokens: 1}

    def run(self):
        names, weights = list(self.actions), list(self.actions.values())
        while not self.soak.over.is_set():
            action = self.pick.choices(names, weights)[0]
            try:
                action()
            except Exception as error:  # pylint: disable=broad-except
                self.fail(f"{action.__name__}: {error!r}")
            self.done[action.__name__] += 1

    def fail(self, text):
        self.wrong.append(text)

    def expect(self, got, want, what):
        if got != want:
            self.fail(f"{what}: {got!r} instead of {want!r}")

    def marker(self):
        return f"marker {self.pick.getrandbits(64):016x}"

    def request(self):
        return self.pick.choice(self.soak.requests)

    def compare(self, asked, answer):
        want = self.soak.alone.answer(asked)
        self.expect(answer.texts[0], want["text"], f"request {asked.number}")
        self.expect(answer.receipts()[0]["logits_hash"], want["logits_hash"],
                    f"request {asked.number}")

    def ask(self):
        asked = self.request()
        status, reply = post(self.server, asked.path, asked.body())
        if status != 200:
            return self.fail(f"request {asked.number}: {status} {reply}")
        return self.compare(asked, Answer(asked, reply))

    def echo(self):
        text = self.marker() + " word" * self.pick.randrange(60)
        body = {"prompt": text, "echo": True, "max_tokens": 0, "logprobs": self.pick.randrange(3)}
        status, reply = post(self.server, "/v1/completions", body)
        self.expect((status, reply.get("choices", [{}])[0].get("text")), (200, text), "echo")

    def tokens(self):
        text = self.marker()
        _, reply = post(self.server, "/tokenize", {"content": text})
        _, back = post(self.server, "/detokenize", {"tokens": reply["tokens"]})
        self.expect(back["content"].strip(), text, "tokens")

    def send(self, sock, asked, **more):
        data = json.dumps(asked.body() | more).encode()
        head = f"POST {asked.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)

    def close(self, sock):
        if self.pick.random() < 0.3:  # a reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self.pick.random() < 0.3:
            sock.shutdown(socket.SHUT_WR)
        sock.close()

    def leave(self):
        asked = self.request()
        sock = self.server.connect()
        self.send(sock, asked, max_tokens=400, n=self.pick.choice([1, 1, 3]))
        sock.settimeout(self.pick.random() * 0.5)
        with contextlib.suppress(OSError):
            sock.recv(1 << self.pick.randrange(14))
        self.close(sock)

    def read_slowly(self):
        asked = self.request()
        sock = self.server.connect()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.send(sock, asked, stream=True)
        sock.settimeout(600)
        for _ in range(self.pick.randrange(30)):
            if not sock.recv(100):
                break
            time.sleep(0.02)
        self.close(sock)

    def send_half(self):
        asked = self.request()
        data = json.dumps(asked.body()).encode()
        head = f"POST {asked.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        whole = head.encode() + data
        sock = self.server.connect()
        sock.sendall(whole[:self.pick.randrange(len(whole))])
        time.sleep(self.pick.random() * 0.2)
        self.close(sock)

    def send_nonsense(self):
        with contextlib.closing(http.client.HTTPConnection(
                "127.0.0.1", self.server.port, timeout=600)) as connection:
            path = self.pick.choice(["/v1/completions", "/v1/chat/completions"])
            connection.request("POST", path, body=self.pick.choice(BAD_BODIES))
            response = connection.getresponse()
            text = response.read().decode()
            self.expect(response.status, 400, "nonsense")
            if not json.loads(text)["error"]["message"]:
                self.fail("an error without a message")


def rise(samples):
    """Of the line fitted to (second, MiB), over all of its seconds."""
    if len(samples) < 2:
        return 0.0
    mean_t = sum(t for t, _ in samples) / len(samples)
    mean_m = sum(m for _, m in samples) / len(samples)
    spread = sum((t - mean_t) ** 2 for t, _ in samples)
    slope = sum((t - mean_t) * (m - mean_m) for t, m in samples) / spread
    return slope * (samples[-1][0] - samples[0][0])


class Soak:
    def __init__(self, options, folder):
        self.seed, self.options = options.seed, options
        model = options.model or real_server.write_model(folder / "tiny.gguf")
        oracle = options.oracle or options.vericache
        self.alone = real_server.Alone(oracle, model, folder)
        # Choices beyond the first have no answer of a command to be compared with.
        self.requests = [a for a in mixed_requests.mixed(options.requests, self.seed)
                         if not a.aborts and not a.tools and a.choices == 1]
        for asked in self.requests:
            asked.max_tokens = min(asked.max_tokens, options.max_tokens)
            self.alone.answer(asked)
        self.server = RealServer(options.vericache, model, "--parallel", "12", "--ctx", "2048",
                                 "--prefix-memory", options.prefix_memory, *options.serve)
        self.over = threading.Event()

    def run(self):
        process = Process(self.server.process.pid)
        # A chat among them starts the process that renders templates, with a socket of its own.
        for asked in self.requests[:4] + [next(a for a in self.requests if a.chat)]:
            post(self.server, asked.path, asked.body())
        wait_for(lambda: self.server.metric("vericache_http_connections") <= 1)
        base = process.handles(), process.threads()
        clients = [Client(self, i) for i in range(self.options.clients)]
        start, samples = time.monotonic(), []
        for client in clients:
            client.start()
        while time.monotonic() - start < self.options.minutes * 60:
            time.sleep(0.5)
            samples.append((time.monotonic() - start, process.rss_mib()))
            if self.server.process.poll() is not None:
                raise AssertionError("the server has ended: " + self.server.log_text()[-2000:])
        self.over.set()
        for client in clients:
            client.join()
        return self.judge(process, base, clients, samples)

    def judge(self, process, base, clients, samples):
        wrong = [text for client in clients for text in client.wrong]

        def settled():
            return self.server.idle() and self.server.metric("vericache_http_connections") <= 1
        wait_for(settled)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: process.handles() <= base[0] and process.threads() <= base[1], 20)
        after = process.handles(), process.threads()
        if after[0] > base[0] or after[1] > base[1]:
            wrong.append(f"{after} file handles and threads, {base} before: {process.open_files()}")
        for tier in ("ram", "spilled"):
            left = self.server.metric(f'vericache_kv_bytes{{tier="{tier}"}}')
            if left != 0:
                wrong.append(f"{left} bytes of K/V left in {tier}")
        for gone in ("vericache_engine_choices_total{event=\"failed\"}",):
            if self.server.metric(gone):
                wrong.append(f"{gone} is {self.server.metric(gone)}")
        warm = [s for s in samples if s[0] > samples[-1][0] / 3]
        growth = rise(warm)
        if self.options.growth > 0 and growth > self.options.growth:
            wrong.append(f"memory rose by {growth:.1f} MiB")
        actions = collections.Counter()
        for client in clients:
            actions += client.done
        summary = {
            "minutes": round(samples[-1][0] / 60, 2), "seed": self.seed, "actions": dict(actions),
            "emitted": self.server.metric('vericache_tokens_total{kind="emitted"}'),
            "cancelled": self.server.metric('vericache_engine_choices_total{event="cancelled"}'),
            "rss_mib": [round(warm[0][1], 1), round(max(m for _, m in warm), 1),
                        round(warm[-1][1], 1)],
            "rss_tenths": [round(samples[len(samples) * i // 10][1]) for i in range(10)],
            "growth_mib": round(growth, 2), "handles_threads": [base, after],
            "spill_files": process.spill_files(), "wrong": len(wrong)}
        status = self.server.stop()
        if status != 0:
            wrong.append(f"exit status {status}: {self.server.log_text()[-3000:]}")
        return summary, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vericache")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", help="default: a tiny random one")
    parser.add_argument("--oracle", help="vericache that answers alone; default: the same")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--prefix-memory", default="16MiB")
    parser.add_argument("--growth", type=float, default=32, help="MiB; 0: not judged")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[],
                        help="further flags for vericache serve")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(options, pathlib.Path(folder))
        with soak.server:
            summary, wrong = soak.run()
    print(json.dumps(summary))
    for text in wrong[:20]:
        print("WRONG:", text[:600])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
