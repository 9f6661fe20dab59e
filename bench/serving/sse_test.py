#!/usr/bin/env python3
"""Arithmetic of the load generator: replies made by hand, with times chosen by hand."""

import json
import unittest

import sse

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**delta):
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def finish(reason):
    choice = {"index": 0, "delta": {}, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"
END = finish("length") + DONE
LAST = b"0\r\n\r\n"


class Percentile(unittest.TestCase):
    def test_nearest_rank(self):
        values = [50, 15, 40, 20, 35]
        self.assertEqual([sse.percentile(values, p) for p in (0.05, 0.3, 0.4, 0.5, 1)],
                         [15, 20, 20, 35, 50])

    def test_of_a_hundred(self):
        values = list(range(1, 101))
        self.assertEqual(sse.percentile(values, 0.99), 99)
        self.assertEqual(sse.percentile(values, 0.07), 7)  # 0.07 * 100 is more than 7 in binary

    def test_few(self):
        self.assertEqual(sse.percentile([3], 0.99), 3)
        self.assertEqual(sse.percentile([1, 2], 0.5), 1)
        self.assertEqual(sse.percentile([], 0.5), None)


class Times(unittest.TestCase):
    def test_first_token_gaps_and_end(self):
        answer = sse.answer_of(10.0, [
            (10.1, HEAD), (10.5, chunk(event(role="assistant", content=""))),
            (12.0, chunk(event(content="a"))), (12.25, chunk(event(content="b"))),
            (13.0, chunk(event(content="c"))), (13.5, chunk(finish("length") + USAGE + DONE)),
            (13.6, LAST)])
        self.assertEqual(answer.error, "")
        self.assertEqual(answer.text, "abc")
        self.assertEqual(answer.ttft, 2.0)  # not the role's event
        self.assertEqual(answer.gaps, [0.25, 0.75])
        self.assertEqual(answer.end_to_end, 3.0)  # not what comes behind the text
        self.assertEqual(answer.finish_reason, "length")
        self.assertEqual(answer.usage, {"completion_tokens": 3})

    def test_an_answer_without_text(self):
        answer = sse.answer_of(10.0, [(10.5, HEAD + chunk(event(role="assistant", content=""))),
                                      (12.0, chunk(finish("stop") + DONE)), (12.5, LAST)])
        self.assertEqual((answer.error, answer.text, answer.gaps), ("", "", []))
        self.assertEqual((answer.ttft, answer.end_to_end), (2.0, 2.0))

    def test_a_run_of_tokens_in_one_piece_has_gaps_of_zero(self):
        run = chunk(event(content="a")) + chunk(event(content="b"))
        answer = sse.answer_of(0.0, [(1.0, HEAD + run), (2.0, chunk(event(content="c") + END)),
                                     (2.0, LAST)])
        self.assertEqual(answer.gaps, [0.0, 1.0])

    def test_an_event_counts_when_its_last_byte_is_there(self):
        """Every way of cutting the reply in two gives the same text; times are of the piece."""
        raw = HEAD + chunk(event(content="first")) + chunk(event(content="last") + END) + LAST
        first_end = raw.index(b"\n\n") + 1  # the line break that ends the data
        last_end = raw.index(b"\n\n", first_end + 2) + 1
        for cut in range(1, len(raw)):
            answer = sse.answer_of(0.0, [(1.0, raw[:cut]), (2.0, raw[cut:])])
            self.assertEqual((answer.error, answer.text), ("", "firstlast"))
            # A line counts from its line break on.
            expected = [1.0 if cut >= end else 2.0 for end in (first_end, last_end)]
            self.assertEqual([time for time, _ in answer.texts], expected, cut)

    def test_an_event_over_several_chunks(self):
        whole = event(content="ab") + END
        raw = HEAD + b"".join(chunk(whole[i:i + 7]) for i in range(0, len(whole), 7)) + LAST
        self.assertEqual(sse.answer_of(0.0, [(1.0, raw)]).text, "ab")

    def test_not_chunked_and_crlf(self):
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
        body = (event(content="a") + END).replace(b"\n", b"\r\n")
        answer = sse.answer_of(0.0, [(1.0, head), (3.0, body)])
        self.assertEqual((answer.text, answer.ttft, answer.error), ("a", 3.0, ""))


class Texts(unittest.TestCase):
    def answer(self, *events):
        return sse.answer_of(0.0, [(1.0, HEAD + b"".join(map(chunk, events)) + LAST)])

    def test_comments_and_drafts_are_no_text(self):
        draft = b"event: vericache.draft\n" + event(content="draft")
        answer = self.answer(b": prefill 1 of 2 tokens\n\n", draft, event(content="a"), END)
        self.assertEqual((answer.text, answer.error), ("a", ""))

    def test_reasoning_and_tool_calls_are_text(self):
        call = {"index": 0, "function": {"name": "grep", "arguments": "{}"}}
        answer = self.answer(event(reasoning_content="hm"), event(tool_calls=[call]),
                             b'data: {"choices": [{"text": "x"}]}\n\n', END)
        self.assertEqual([text for _, text in answer.texts], ["hm", "grep{}", "x"])

    def test_hash_of_the_text(self):
        answer = self.answer(event(content="a"), event(content="bc"), END)
        self.assertTrue(answer.text_sha256.startswith("ba7816bf8f01cfea"))  # SHA-256 of abc


class Wrong(unittest.TestCase):
    def error(self, *pieces):
        return sse.answer_of(0.0, [(1.0, piece) for piece in pieces]).error

    def test_what_is_not_whole_is_an_error(self):
        self.assertIn("[DONE]", self.error(HEAD + chunk(finish("stop")) + LAST))
        self.assertIn("no end", self.error(HEAD + chunk(event(content="a") + DONE) + LAST))
        self.assertIn("cut", self.error(HEAD + chunk(event(content="a"))))
        self.assertIn("cut", self.error(HEAD + chunk(event(content="a"))[:20]))
        self.assertIn("size", self.error(HEAD + b"xyz\r\n"))
        self.assertIn("header", self.error(b"HTTP/1.1 200 OK\r\n"))
        self.assertIn("status", self.error(b"SSH-2.0\r\n\r\n"))
        self.assertIn("of 9", self.error(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"))

    def test_what_the_server_says_is_told(self):
        body = b'{"error": {"code": "queue_full"}}'
        head = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.assertIn("queue_full", self.error(head + body))
        late = b'data: {"error": {"code": "server_stopping"}}\n\n'
        self.assertIn("server_stopping", self.error(HEAD + chunk(late) + LAST))
        self.assertIn("Expecting", self.error(HEAD + chunk(b"data: {\n\n") + LAST))


if __name__ == "__main__":
    unittest.main()
