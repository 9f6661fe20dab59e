"""64 requests of all kinds at once through `vericache serve`: each answer, bit for bit, is the one
that the command gives alone. Usage: real_engine_test.py VERICACHE [TEST...]"""

import contextlib
import http.client
import json
import os
import pathlib
import sys
import tempfile
import unittest

import mixed_requests
import real_server
from real_server import RealServer, in_parallel, post
from server_fixture import parse_events, wait_for

COUNT = int(os.environ.get("REAL_ENGINE_REQUESTS", "64"))
BUDGET = "1MiB"  # less than 64 requests want: blocks are spilled and read back


def text_of(part, chat):
    if not chat:
        return part["text"]
    return part["message"]["content"] or ""


def logprobs_of(part, chat):
    logprobs = part.get("logprobs") or {}
    return logprobs.get("content") or [] if chat else [logprobs] if logprobs else []


class Answer:
    """A reply, streamed or whole, in one shape."""

    def __init__(self, asked, reply):
        self.texts = [""] * asked.choices
        self.logprobs = [[] for _ in range(asked.choices)]
        self.reasons = [None] * asked.choices
        self.calls = 0
        if not asked.stream:
            for part in reply["choices"]:
                self._take(asked, part, text_of(part, asked.chat))
                self.calls += len(part.get("message", {}).get("tool_calls", []))
            self.usage = reply["usage"]
            return
        assert reply[-1][1] == "[DONE]", reply[-1]
        for _, event in reply[:-1]:
            for part in event["choices"]:
                text = part["delta"].get("content") or "" if asked.chat else part["text"]
                self._take(asked, part, text)
            self.usage = event.get("usage") or getattr(self, "usage", None)

    def _take(self, asked, part, text):
        index = part["index"]
        self.texts[index] += text
        self.logprobs[index] += logprobs_of(part, asked.chat)
        self.reasons[index] = part["finish_reason"] or self.reasons[index]

    def receipts(self):
        ours = self.usage["vericache"]
        return [ours["receipt"]] if "receipt" in ours else ours["receipts"]

    def flat_logprobs(self, chat):
        """The legacy shape comes in pieces when streamed."""
        if chat:
            return self.logprobs
        return [[(token, value, top, offset) for piece in choice
                 for token, value, top, offset in zip(
                     piece["tokens"], piece["token_logprobs"], piece["top_logprobs"],
                     piece["text_offset"])] for choice in self.logprobs]


def leave_early(server, asked):
    """Closes the socket after some text; gives that text."""
    with contextlib.closing(http.client.HTTPConnection(
            "127.0.0.1", server.port, timeout=600)) as connection:
        connection.request("POST", asked.path, body=json.dumps(asked.body()))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        data = b""
        while data.count(b"\n\n") < 2 + asked.number % 5:
            piece = response.readline()
            if not piece:
                break
            data += piece
    events = parse_events(data.decode())
    return "".join((part["delta"].get("content") or "") if asked.chat else part["text"]
                   for _, event in events if event != "[DONE]" for part in event["choices"]
                   if part["index"] == 0)


class RealEngineTest(unittest.TestCase):
    binary = None

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.model = real_server.write_model(cls.folder / "tiny.gguf")
        cls.alone = real_server.Alone(cls.binary, cls.model, cls.folder)
        cls.requests = mixed_requests.mixed(COUNT, seed=1)
        in_parallel(cls.alone.answer, cls.requests, threads=2)
        mixed_requests.add_stops(cls.requests, cls.alone, seed=2)
        # Logprobs are on no other command: a server that has one request at a time and no drafts.
        with RealServer(cls.binary, cls.model, "--parallel", "1", "--prefix-memory", "0") as server:
            cls.logprobs = {}
            for asked in cls.requests:
                if asked.logprobs is None or asked.aborts:
                    continue
                body = asked.body()
                body["vericache"]["draft"] = "off"
                status, reply = post(server, asked.path, body)
                assert status == 200, reply
                cls.logprobs[asked.number] = Answer(asked, reply).flat_logprobs(asked.chat)

    def serve(self, *flags, parallel=64):
        return RealServer(self.binary, self.model, "--parallel", str(parallel), *flags)

    def ask_all(self, server):
        def ask(asked):
            return leave_early(server, asked) if asked.aborts else post(server, asked.path,
                                                                        asked.body())
        self.fetched_bytes = 0
        replies = in_parallel(ask, self.requests)
        wait_for(server.idle)
        for asked, reply in zip(self.requests, replies):
            with self.subTest(request=asked):
                self.check(asked, reply)
        self.assertEqual(server.metric('vericache_kv_bytes{tier="ram"}'), 0)
        self.assertEqual(server.metric('vericache_kv_bytes{tier="spilled"}'), 0)

    def check(self, asked, reply):
        if asked.aborts:
            self.assertTrue(self.alone.answer(asked)["text"].startswith(reply))
            return
        status, reply = reply
        self.assertEqual(status, 200, reply)
        answer = Answer(asked, reply)
        self.check_first_choice(asked, answer)
        self.fetched_bytes += answer.usage["vericache"]["fetched_bytes"]
        for choice, receipt in enumerate(answer.receipts()):
            self.assertEqual(receipt["sampling"]["choice"], choice)
            if choice > 0:  # the command has no flag for it: made again from the receipt
                self.alone.audit(receipt)
                self.assertEqual(len(receipt["token_ids"]) <= asked.max_tokens, True)
        self.assertEqual(answer.usage["completion_tokens"],
                         sum(len(r["token_ids"]) for r in answer.receipts()))
        if asked.logprobs is not None:
            got = answer.flat_logprobs(asked.chat)
            self.assertEqual(got, self.logprobs[asked.number])
            self.assertEqual([len(choice) for choice in got],
                             [len(r["token_ids"]) for r in answer.receipts()])

    def check_first_choice(self, asked, answer):
        want, receipt = self.alone.answer(asked), answer.receipts()[0]
        ids, text = receipt["token_ids"], want["text"]
        stops = [(text.find(stop) + len(stop), stop) for stop in asked.stop if stop in text]
        if not stops:
            self.assertEqual((answer.texts[0], answer.reasons[0]), (text, want["finish_reason"]))
            self.assertEqual((ids, receipt["logits_hash"]),
                             (want["token_ids"], want["logits_hash"]))
        else:
            end, stop = min(stops)
            self.assertEqual((answer.texts[0], answer.reasons[0]),
                             (text[:end - len(stop)], "stop"))
            # It ends with the very token that completes the stop string.
            cut = self.alone.answer(asked, len(ids))
            self.assertEqual((ids, receipt["logits_hash"]), (cut["token_ids"], cut["logits_hash"]))
            self.assertIn(stop, cut["text"])
            if len(ids) > 1:
                self.assertNotIn(stop, self.alone.answer(asked, len(ids) - 1)["text"])
        self.assertEqual(answer.usage["prompt_tokens"], want["usage"]["prompt_tokens"])

    def test_the_requests_are_of_all_kinds(self):
        for kind in (lambda a: a.stop, lambda a: a.aborts, lambda a: a.choices > 1,
                     lambda a: a.tools, lambda a: a.logprobs is not None, lambda a: a.stream,
                     lambda a: not a.stream, lambda a: a.needs_batch, lambda a: not a.sampling):
            self.assertGreaterEqual(sum(map(bool, map(kind, self.requests))), min(4, COUNT // 16))

    def test_all_in_ram(self):
        with self.serve() as server:
            self.ask_all(server)
            self.assertGreater(server.metric('vericache_engine_choices_total{event="cancelled"}'),
                               0)
            self.assertGreater(server.metric('vericache_tokens_total{kind="drafted"}'), 0)
            self.ask_all(server)  # now the prefixes are there
            self.assertGreater(server.metric("vericache_prefix_found_tokens_total"), 0)

    def test_under_a_budget_that_spills(self):
        with self.serve("--kv-memory", BUDGET, parallel=16) as server:
            self.ask_all(server)
            self.assertGreater(server.metric("vericache_kv_fetched_bytes_total"), 0)
            self.assertGreater(self.fetched_bytes, 0)

    def test_with_a_prefix_store_and_a_restart(self):
        store = self.folder / "store"
        for found in (False, True):
            with self.serve("--prefix-store", store, "--prefix-memory", "0") as server:
                self.ask_all(server)
                self.assertEqual(server.stop(), 0)
                if found:
                    self.assertTrue(any(store.rglob("*")))

    def test_with_a_small_model_that_proposes(self):
        with self.serve("--draft-model", self.model, "--propose", "ngram,model",
                        parallel=5) as server:
            self.ask_all(server)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} VERICACHE [TEST...]")
    RealEngineTest.binary = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
