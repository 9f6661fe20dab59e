#!/usr/bin/env python3
"""The load generator against the real server with a scripted engine: load_test.py STUB_SERVER"""

import pathlib
import socket
import sys
import threading
import unittest

import load
import sse

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests/server"))
import server_fixture  # noqa: E402
from server_fixture import Server, rule  # noqa: E402

PATH = "/v1/chat/completions"


def request(port, text, **more):
    body = {"model": "stub", "messages": [{"role": "user", "content": text}], "stream": True}
    body |= {"stream_options": {"include_usage": True}, "vericache": {"receipt": True}} | more
    return load.encoded(port, PATH, body)


class Closed(unittest.TestCase):
    def test_texts_tokens_and_order_of_times(self):
        rules = [rule(["a", "b", "c"], match="one", delay_ms=2),
                 rule(["d", "e"], match="two", delay_ms=2)]
        with Server(rules) as server:
            asked = [request(server.port, text) for text in ("one", "two") * 4]
            answers, cost = load.closed_loop(server.port, asked, 3)
            self.assertEqual([a.text for a in answers], ["abc", "de"] * 4)
            for answer, texts in zip(answers, [3, 2] * 4):
                self.assertEqual(answer.error, "")
                self.assertEqual(len(answer.gaps), texts - 1)
                self.assertEqual(answer.usage["completion_tokens"], texts + 1)  # the end token
                self.assertEqual(len(answer.usage["vericache"]["receipt"]["token_ids"]), texts + 1)
                # A pass takes 2 ms at the least: the first token one, each further one more.
                self.assertGreaterEqual(answer.ttft, 0.002)
                self.assertGreaterEqual(answer.end_to_end, 0.002 * texts)
                self.assertAlmostEqual(answer.ttft + sum(answer.gaps), answer.end_to_end)
            self.assertGreater(cost.wall_s, max(a.end_to_end for a in answers))
            self.assertGreater(cost.cpu_s, 0)

    def test_a_client_has_one_request_at_a_time(self):
        with Server([rule(["a"] * 5, delay_ms=1)]) as server:
            asked = [request(server.port, "x") for _ in range(9)]
            answers, _ = load.closed_loop(server.port, asked, 3)
        moments = [(a.start, 1) for a in answers] + [(a.last, -1) for a in answers]
        open_now = most = 0
        for _, change in sorted(moments):
            open_now += change
            most = max(most, open_now)
        self.assertEqual(most, 3)

    def test_an_error_is_told(self):
        with Server([rule(["a"])]) as server:
            answers, _ = load.closed_loop(server.port, [request(server.port, "x", n=-1)], 1)
        self.assertTrue(answers[0].error.startswith("400: "), answers[0].error)
        self.assertIsNone(answers[0].ttft)

    def test_nobody_there(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        answers, _ = load.closed_loop(port, [request(port, "x")], 1)
        self.assertTrue(answers[0].error)

    def test_no_end_within_its_patience(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            port = silent.getsockname()[1]
            answers, _ = load.closed_loop(port, [request(port, "x")], 1, patience_s=0.05)
        self.assertIn("no end", answers[0].error)

    def test_closed_without_a_reply(self):
        with socket.socket() as rude:
            rude.bind(("127.0.0.1", 0))
            rude.listen()
            port = rude.getsockname()[1]

            def close_it():
                connection, _ = rude.accept()
                connection.recv(1)
                connection.close()

            thread = threading.Thread(target=close_it)
            thread.start()
            answers, _ = load.closed_loop(port, [request(port, "x")], 1)
            thread.join()
        self.assertTrue(answers[0].error)


class Open(unittest.TestCase):
    def test_arrivals_do_not_wait_for_answers(self):
        """While nothing moves all requests come in; then they are answered."""
        with Server([rule(["a"])]) as server:
            server.freeze_file.touch()
            asked = [request(server.port, "x") for _ in range(6)]
            thread = threading.Thread(target=self.thaw, args=(server, 6))
            thread.start()
            answers, _ = load.open_loop(server.port, asked, rate=200)
            thread.join()
        self.assertEqual([a.text for a in answers], ["a"] * 6)
        self.assertLess(max(a.start for a in answers), min(a.first for a in answers))
        self.assertEqual(sorted(a.start for a in answers), [a.start for a in answers])

    def thaw(self, server, count):
        def arrived():
            text = server.request("GET", "/metrics")[2]
            states = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                      if line.startswith("vericache_requests{")]
            return sum(states) >= count
        try:
            server_fixture.wait_for(arrived)
        finally:
            server.freeze_file.unlink()


class Times(unittest.TestCase):
    def test_first_token_of_a_scripted_wait(self):
        """A reply whose pieces are sent by hand: what is measured lies between what was slept."""
        moments, sent = [], threading.Event()
        with socket.socket() as scripted:
            scripted.bind(("127.0.0.1", 0))
            scripted.listen()
            port = scripted.getsockname()[1]

            def serve():
                connection, _ = scripted.accept()
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                for piece in (b'data: {"choices": [{"text": "a"}]}\n\n',
                              b'data: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\n'
                              b"data: [DONE]\n\n"):
                    sent.wait(0.02)
                    moments.append(load.clock())
                    connection.sendall(piece)
                connection.close()

            thread = threading.Thread(target=serve)
            thread.start()
            answers, _ = load.closed_loop(port, [request(port, "x")], 1)
            thread.join()
        times = [time for time, _ in answers[0].texts]
        self.assertLess(answers[0].start, moments[0])
        for time, moment in zip(times, moments):
            self.assertGreaterEqual(time, moment)  # not before it was sent
        self.assertEqual(answers[0].ttft, times[0] - answers[0].start)
        self.assertEqual(sse.percentile(answers[0].gaps, 0.5), times[1] - times[0])


if __name__ == "__main__":
    server_fixture.main()
