#!/usr/bin/env python3
"""The links themselves: that they are as slow as they say, count, keep order and leave nothing."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

import links

# Run inside a namespace: `serve` sends N bytes to whoever connects; `fetch` reads to the end.
PEER = """
import json, socket, sys, time
if sys.argv[1] == "serve":
    with socket.create_server(("0.0.0.0", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            near, _ = server.accept()
            with near:
                try:
                    near.sendall(b"x" * int(sys.argv[2]))
                except OSError:
                    pass
else:
    begin = time.monotonic()
    with socket.create_connection((sys.argv[2], int(sys.argv[3]))) as s:
        count, first = 0, None
        while data := s.recv(1 << 20):
            first = first or time.monotonic()
            count += len(data)
    print(json.dumps([count, time.monotonic() - begin, (first or 0) - begin]))
"""


def serve(space, count):
    process = space.popen([sys.executable, "-c", PEER, "serve", count], stdout=subprocess.PIPE,
                          text=True)
    return int(process.stdout.readline())


def fetch(space, address):
    done = space.run([sys.executable, "-c", PEER, "fetch", *address], check=True)
    return json.loads(done.stdout)


def of_ours():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [w.split()[0] for w in listed.stdout.splitlines() if w.startswith(links.PREFIX)]


class Links(unittest.TestCase):
    def test_no_faster_than_the_rate_in_either_direction_and_counted(self):
        for rate in ("100mbit", "300mbit", "1gbit", "10gbit"):
            count = min(links.bits_per_s(rate) // 8 // 3, 64_000_000)
            with self.subTest(rate=rate), links.Network() as network:
                node = network.add_node(rate)
                address = node.reach(serve(network.store, count))
                received, elapsed, _ = fetch(node, address)
                self.assertEqual(received, count)
                # The bucket may be full at first; headers make it slower, never faster.
                burst = max(80_000, links.bits_per_s(rate) // 8000)
                least = (count - burst) * 8 / links.bits_per_s(rate)
                self.assertGreater(elapsed, 0.98 * least)
                down, up = node.link_bytes()
                self.assertGreater(down, count)
                self.assertLess(down, 1.08 * count + 10_000)
                self.assertLess(up, 0.2 * count)
                back = serve(node, count)
                _, elapsed, _ = fetch(network.store, (node.address, back))
                self.assertGreater(elapsed, 0.98 * least)
                self.assertGreater(node.link_bytes()[1], count)
                print(f"{rate}: {count * 8 / elapsed / 1e6:.0f} Mbit/s back, of a link's "
                      f"{links.bits_per_s(rate) / 1e6:.0f}", flush=True)

    def test_delay_both_ways_and_for_many_at_once(self):
        with links.Network() as network:
            node = network.add_node("1gbit", delay_ms=20)
            address = node.reach(serve(network.store, 3_000_000))
            self.assertEqual(address[0], "127.0.0.1")
            found = [None] * 8

            def one(i):
                found[i] = fetch(node, address)
            threads = [threading.Thread(target=one, args=(i,)) for i in range(len(found))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for received, _, first in found:
                self.assertEqual(received, 3_000_000)
                self.assertGreater(first, 0.06)  # a handshake, and the way here

    def test_a_network_knows_nothing_of_the_machine_around_it(self):
        with socket.create_server(("127.0.0.1", 0)) as outside, links.Network() as network:
            node = network.add_node("100mbit")
            done = node.run([sys.executable, "-c", PEER, "fetch", "127.0.0.1",
                             outside.getsockname()[1]])
            self.assertIn("ConnectionRefusedError", done.stderr)

    def test_nothing_stays_behind_whatever_happens(self):
        own = f"{links.PREFIX}-{os.getpid()}-"
        with self.assertRaises(links.Failed), links.Network() as network:
            first = network.add_node("100mbit")
            sleeper = first.popen(["sleep", "1000"])
            links._call("ip", "netns", "exec", "nobody", "true")
        self.assertEqual([n for n in of_ours() if n.startswith(own)], [])
        self.assertIsNotNone(sleeper.poll())
        with self.assertRaises(ValueError), links.Network() as network:
            network.add_node("100 potatoes")
        self.assertEqual([n for n in of_ours() if n.startswith(own)], [])

    def test_what_a_killed_process_left_goes_with_the_next_network(self):
        code = ("import links, time\nwith links.Network() as n:\n"
                "    print(n.add_node('100mbit').popen(['sleep', '1000']).pid, flush=True)\n"
                "    time.sleep(1000)\n")
        process = subprocess.Popen([sys.executable, "-B", "-c", code], stdout=subprocess.PIPE,
                                   text=True, cwd=pathlib.Path(__file__).parent)
        with process.stdout:
            sleeper = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        left = f"{links.PREFIX}-{process.pid}-"
        self.assertEqual(len([n for n in of_ours() if n.startswith(left)]), 2)
        with links.Network():
            self.assertEqual([n for n in of_ours() if n.startswith(left)], [])
        for _ in range(500):  # it dies with its parent, and init has yet to collect it
            stat = pathlib.Path(f"/proc/{sleeper}/stat")
            if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
            time.sleep(0.02)
        self.fail("the process that it started goes on")

    def test_rates(self):
        self.assertEqual(links.bits_per_s("300mbit"), 300_000_000)
        self.assertEqual(links.bits_per_s("10gbit"), 10**10)
        for wrong in ("", "100", "mbit", "1.5gbit", "100mbit; rm"):
            with self.assertRaises(ValueError):
                links.bits_per_s(wrong)


if __name__ == "__main__":
    links.skip_loudly_unless_possible("the test of shaped links")
    unittest.main()
