"""Public bug reports by number, through `vericache serve` with the real engine.

Those of sockets and of scripted answers are in http_cases_test.py and api_cases_test.py;
docs/serving_cases.md lists all.
"""

import contextlib
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from cli_fixture import GOLDEN
from edited_models import HIDDEN, Model, scripted
from http_cases_test import raw_request, read_all
from real_server import TEMPLATE, TOOLS, RealServer, in_parallel
from server_fixture import chat_body, joined, wait_for, whole_message

CALLS = ["Let", " me", " see.", " <tool", "_call>", '\n{"name": "get', '_weather", "argu',
         'ments": {"city": "Paris"', "}}", "\n</tool", "_call", ">", "\n<tool_call>\n",
         '{"name": "get_time", "arguments": {"city": "Rome"}}', "\n</tool_call>"]
TEMPLATES = GOLDEN.parent / "tokenizer/templates"


def user(text="hi"):
    return {"role": "user", "content": text}


class RealCase(unittest.TestCase):
    binary = None

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def serve(self, model=None, *flags):
        model = model or Model().set_text("tokenizer.chat_template", TEMPLATE)
        return RealServer(self.binary, model.write(self.folder / "model.gguf"), *flags)

    def script(self, pieces, *flags, template=TEMPLATE):
        return self.serve(scripted(pieces, template), *flags)

    def both(self, server, **more):
        """A greedy chat, which must be the same streamed and whole."""
        more = {"temperature": 0, **more}
        status, reply = server.chat("hi", **more)
        self.assertEqual(status, 200, reply)
        whole = whole_message(reply)
        self.assertEqual(joined(server.stream_chat("hi", **more)), whole)
        return whole

    def refused(self, answer, says, status=400):
        self.assertEqual(answer[0], status, answer[1])
        self.assertIn(says, answer[1]["error"]["message"])
        return answer[1]["error"]

    def ids(self, server, **body):
        status, reply = server.post("/tokenize", body)
        self.assertEqual(status, 200, reply)
        return reply["tokens"]


class TextTest(RealCase):
    def test_case_16_and_17_long_and_unbroken_texts(self):
        with self.serve() as server:
            for text in ("a" * 1000000, " " * 300000, "\n" * 300000, "plain words " * 80000,
                         "a" * 30000, "A" * 43000, "\n\n" * 5000, "\u4e2d" * 26000,
                         "a1 " * 20000):
                ids = self.ids(server, content=text)
                _, back = server.post("/detokenize", {"tokens": ids})
                self.assertTrue(back["content"] == text, text[:20])
                error = self.refused(server.complete(text), str(len(ids)))
                self.assertEqual(error["code"], "context_length_exceeded")
            self.assertEqual(server.complete("still here")[0], 200)

    def test_case_19_odd_bytes(self):
        with self.serve() as server:
            for path in ("/v1/completions", "/tokenize"):
                for text in (b"\xe2\x80", b"\xff", b"\xc0\x80", b"\xed\xa0\xbd", b"\\ud83d",
                             b"\\ud83dx", b"\\ude00"):
                    body = b'{"prompt": "a%s"}' % text
                    self.assertEqual(server.post(path, body)[0], 400, text)
            for text in ("\u0000", "a\u0000b", "\u00a0" * 50, "\u2028", "\U0001fffe", "\ufeffx",
                         "\u200d", "e\u0301"):
                ids = self.ids(server, content=text)
                self.assertEqual(server.post("/detokenize", {"tokens": ids})[1]["content"], text)
                self.assertEqual(server.complete(text, max_tokens=2)[0], 200)
                self.assertEqual(server.chat(text, max_tokens=2)[0], 200)

    def test_case_20_one_begin_token(self):
        begin = 0  # <|endoftext|>
        plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
        for adds in (False, True):
            for template, wanted in ((plain, 0), ("{{ bos_token }}" + plain, 1)):
                model = Model().set_text("tokenizer.chat_template", template)
                model.set_flag("tokenizer.ggml.add_bos_token", adds)
                with self.serve(model) as server:
                    chat = self.ids(server, messages=[user("x <|endoftext|> y")])
                    self.assertEqual(chat.count(begin), wanted)  # what the template wrote
                    self.assertEqual(chat[:1].count(begin), wanted)
                    raw = self.ids(server, prompt="<|endoftext|> y")
                    self.assertEqual(raw.count(begin), int(adds))  # typed text stays text
                    _, reply = server.complete("<|endoftext|> y", max_tokens=1)
                    self.assertEqual(reply["usage"]["prompt_tokens"], len(raw))

    def test_case_22_what_is_encoded_comes_back(self):
        for name in ("llama_head_dim", "qwen2_untied", "llama3_untied"):
            with RealServer(self.binary, GOLDEN / f"{name}.gguf") as server:
                for text in ("3 33 333 3333 0.30 1,000,000", "\n\n\n  x", "it's I'LL", "<s> hi",
                             "<|x|> y", "<pad>text", "<|im_start|>user", " a", "a ", "\t\ta"):
                    ids = self.ids(server, content=text)
                    _, back = server.post("/detokenize", {"tokens": ids})
                    self.assertEqual(back["content"].removeprefix("<|endoftext|>"), text)
                    self.assertEqual(ids, self.ids(server, prompt=text))


class TemplateTest(RealCase):
    def test_case_31_the_templates_own_words(self):
        strict = (TEMPLATES / "alternating.jinja").read_text()
        system, answer = {"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}
        with self.serve(Model().set_text("tokenizer.chat_template", strict)) as server:
            for messages, words in (([system, user()], "System role not supported"),
                                    ([user(), user()], "must alternate"),
                                    ([answer], "must alternate"),
                                    ([user(), {"role": "tool", "content": "r"}, answer],
                                     "must alternate"), ([], "not empty")):
                for stream in (False, True):
                    self.refused(server.post("/v1/chat/completions",
                                             {"messages": messages, "stream": stream}), words)
            self.assertEqual(server.chat(max_tokens=1)[0], 200)
        with self.serve(Model().set_text("tokenizer.chat_template", strict),
                        "--fold-system") as server:
            self.assertEqual(self.ids(server, messages=[system, user("u")]),
                             self.ids(server, messages=[user("s\n\nu")]))

    def test_case_32_templates_that_are_broken_or_hostile(self):
        good = ["{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}x{% endfor %}",
                "{% generation %}{{ messages[0].content }}{% endgeneration %}",
                "{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(messages[0].content) }}",
                "{% set ns = namespace(n=0) %}{% set ns.n = 2 %}{{ ns.n }}{{ messages[:1] }}",
                "{{ {'a': [1]} | tojson(indent=2) }}{% for k, v in {'a': 1}.items() %}{{ k }}"
                "{% endfor %}{{ strftime_now('%H:%M') }}"]
        bad = ["{% for m in messages %}", "{{ nothing.at.all }}", "{% unknown %}",
               "{% for i in range(10 ** 9) %}{% endfor %}", "{{ 'x' * 100000000 }}",
               "{{ messages.__class__.__mro__ }}", ""]
        for template in good + bad:
            with self.subTest(template=template):
                with self.serve(Model().set_text("tokenizer.chat_template", template)) as server:
                    status, reply = server.chat(max_tokens=1)
                    self.assertEqual(status, 200 if template in good else 400, reply)
                    self.assertEqual(server.complete("raw", max_tokens=1)[0], 200)

    def test_case_34_the_prompt_opens_the_thinking(self):
        opened = TEMPLATE.replace("assistant\n' }}{% endif %}",
                                  "assistant\n<think>\n' }}{% endif %}")
        with self.script(["why", " so", "</thi", "nk>\n\n", "be", "cause"],
                         template=opened) as server:
            got = self.both(server)
            self.assertEqual((got["reasoning_content"], got["content"]), ("why so", "because"))
            got = self.both(server, max_tokens=2)  # never closed
            self.assertEqual((got["reasoning_content"], got["content"], got["finish_reason"]),
                             ("why so", "", "length"))
            _, reply = server.chat(temperature=0)
            self.assertEqual(
                reply["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0, True)
        with self.script(["a", "</think>", "b"]) as server:
            self.assertEqual(self.both(server)["content"], "a</think>b")

    def test_case_35_tools_and_their_choice(self):
        with self.script(CALLS) as server:
            got = self.both(server, tools=TOOLS)
            self.assertEqual(got["tool_calls"],
                             [{"name": "get_weather", "arguments": '{"city": "Paris"}'},
                              {"name": "get_time", "arguments": '{"city": "Rome"}'}])
            self.assertEqual((got["content"], got["finish_reason"]), ("Let me see.", "tool_calls"))
            got = self.both(server, tools=TOOLS, parallel_tool_calls=False)
            self.assertEqual(len(got["tool_calls"]), 1)
            for more in ({}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}):
                self.assertEqual(self.both(server, **more)["content"], "".join(CALLS))
            got = self.both(server, tools=TOOLS, max_tokens=8)  # a call that the limit cut
            self.assertEqual((got["tool_calls"], got["finish_reason"]),
                             ([{"name": "get_weather", "arguments": '{"city": "Paris"'}],
                              "length"))
            for choice in ("required", {"type": "function", "function": {"name": "get_time"}}):
                for stream in (False, True):
                    self.refused(server.chat(tools=TOOLS, tool_choice=choice, stream=stream),
                                 "tool_choice")
            # The calls and their results go back.
            history = [user(), {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c", "type": "function",
                 "function": {"name": "get_time", "arguments": '{"b": 1, "a": 2}'}}]},
                       {"role": "tool", "tool_call_id": "c",
                        "content": [{"type": "text", "text": "no"},
                                    {"type": "text", "text": "on"}]}]
            text = server.post("/detokenize",
                               {"tokens": self.ids(server, messages=history)})[1]["content"]
            self.assertIn('{"name": "get_time", "arguments": {"b": 1, "a": 2}}', text)
            self.assertIn("tool\nnoon", text)


class AnswerTest(RealCase):
    def test_case_04_and_05_limits_stops_and_usage(self):
        pieces = ["a", "b", "STOP", "c", "d", "e", "f", "g"]
        with self.script(pieces) as server:
            for length in (1, 4, 8):
                ours = {"draft": "int4", "draft_len": length}
                for limit in range(1, 13):
                    _, reply = server.chat(temperature=0, max_tokens=limit, logprobs=True,
                                           vericache=ours)
                    told = len(reply["choices"][0]["logprobs"]["content"])
                    self.assertEqual((told, reply["usage"]["completion_tokens"]),
                                     (min(limit, 9), min(limit, 9)))
                for limit, want in ((5, ("ab", "stop")), (2, ("ab", "length"))):
                    got = self.both(server, max_tokens=limit, stop="STOP", vericache=ours)
                    self.assertEqual((got["content"], got["finish_reason"]), want)

    def test_case_07_seeds(self):
        with self.serve() as server:
            ask = lambda **more: server.chat("hello", max_tokens=24, **more)[1]
            text = lambda reply: reply["choices"][0]["message"]["content"]
            self.assertEqual(len({text(ask(seed=42)) for _ in range(5)}), 1)
            self.assertGreater(len({text(ask(seed=seed))
                                    for seed in (0, 1, 4294967295, 2**63, 2**64 - 1)}), 1)
            alone = text(ask(seed=42))
            replies = in_parallel(lambda i: ask(seed=42) if i % 2 else ask(), range(8))
            self.assertEqual({text(r) for r in replies[1::2]}, {alone})
            for reply in replies[::2]:  # a random seed is told and makes the answer again
                seed = reply["usage"]["vericache"]["seed"]
                self.assertEqual(text(ask(seed=seed)), text(reply))

    def test_case_37_stop_strings_across_tokens(self):
        with self.script(list("ABCDEFGHIJK")) as server:
            for stop, want in (("DEFGHIJ", "ABC"), (["CDX", "HI"], "ABCDEFG"),
                               (["DEF", "DE"], "ABC"), (["EF", "DEFG"], "ABCD"), ("KL", None),
                               (["X"], None), (None, None), ([], None)):
                for length in (1, 8):
                    got = self.both(server, stop=stop, vericache={"draft_len": length})
                    self.assertEqual(got["content"], want or "ABCDEFGHIJK", stop)
                    self.assertEqual(got["finish_reason"], "stop")
            for bad in ("", ["A", ""], [None], 3):
                self.refused(server.chat(stop=bad), "stop")
        with self.script(["x", "?\n", "y"]) as server:
            self.assertEqual(self.both(server, stop="\n")["content"], "x?")

    def test_case_38_logprobs_cold_and_cached(self):
        with self.serve() as server:
            prompt = "the stone in this row is black, the other stone in this row is white " * 3
            ask = {"echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
            cold, warm = (server.complete(prompt, **ask)[1]["choices"][0] for _ in range(2))
            self.assertEqual(cold, warm)
            self.assertEqual((cold["text"], cold["finish_reason"]), (prompt, "length"))
            self.assertIsNone(cold["logprobs"]["token_logprobs"][0])
            self.assertTrue(all(p < 0 for p in cold["logprobs"]["token_logprobs"][1:]))
            server.complete(prompt, max_tokens=4)  # now a prefix is there
            self.assertEqual(server.complete(prompt, **ask)[1]["choices"][0], cold)
            for top in (None, 0, 20):
                got = self.both(server, logprobs=True, top_logprobs=top, max_tokens=12)
                self.assertEqual(len(got["logprobs"]), 12)
                for entry in got["logprobs"]:
                    self.assertEqual(len(entry["top_logprobs"]), top or 0)
                    if top:
                        values = [t["logprob"] for t in entry["top_logprobs"]]
                        self.assertEqual(values, sorted(values, reverse=True))
                        self.assertEqual(entry["logprob"], values[0])  # greedy
                    if entry["token"].startswith("bytes:"):
                        self.assertEqual(entry["token"], "bytes:" + "".join(
                            f"\\x{b:02x}" for b in entry["bytes"]))

    def test_case_40_context(self):
        with self.serve(None, "--ctx", "1024") as server:
            for count in (1024, 1025, 50000):
                for stream in (False, True):
                    error = self.refused(server.complete([5] * count, stream=stream), str(count))
                    self.assertEqual(error["code"], "context_length_exceeded")
                    self.assertIn("1024", error["message"])
            for count, limit in ((1023, 5), (900, 512)):
                body = {"max_tokens": limit, "ignore_eos": True, "temperature": 0}
                _, reply = server.complete([5] * count, **body)
                usage = reply["usage"]
                self.assertEqual(reply["choices"][0]["finish_reason"], "length")
                self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]),
                                 (count, 1024 - count))
                events = server.stream("/v1/completions", {"prompt": [5] * count, **body})
                self.assertEqual("".join(e["choices"][0]["text"] for _, e in events[:-1]),
                                 reply["choices"][0]["text"])


class SamplingTest(RealCase):
    def test_case_46_non_finite_numbers(self):
        model = Model().set_text("tokenizer.chat_template", TEMPLATE)
        bad = model.tokens().index("~")
        model.put("token_embd.weight", bad * HIDDEN + 3, float("nan"))
        # Tied to the output: its own logit is not finite in any row, so give the output its rows.
        kind, dims, rows = Model().tensors["token_embd.weight"]
        model.tensors["output.weight"] = (kind, dims, rows)
        with self.serve(model) as server:
            ask = lambda text, **more: server.complete(text, temperature=0, max_tokens=8,
                                                       logit_bias={str(bad): -100}, **more)
            good = ask("plain words")
            self.assertEqual(good[0], 200)
            for _ in range(2):  # nothing of it is kept
                replies = in_parallel(ask, ["a bad ~ here", "plain words"] * 4)
                for status, reply in replies[::2]:
                    self.assertEqual((status, reply["error"]["code"]), (500, "non_finite_logits"))
                for reply in replies[1::2]:
                    self.assertEqual(reply[1]["choices"], good[1]["choices"])
            self.assertEqual(ask("~", stream=True)[0], 500)
            self.assertEqual(
                server.metric('vericache_errors_total{code="non_finite_logits"}'), 9)
        with self.serve(Model().put("output_norm.weight", 0, float("inf"))) as server:
            for _ in range(2):
                self.assertEqual(server.complete("x")[0], 500)
            self.assertEqual(server.health()[0], 200)

    def test_case_47_penalties_beside_drafts(self):
        with self.serve() as server:
            for penalty in ({}, {"frequency_penalty": -2}, {"frequency_penalty": 2},
                            {"repetition_penalty": 1.3}, {"presence_penalty": 1},
                            {"min_p": 0.2, "temperature": 1, "seed": 1}):
                texts = set()
                for draft in ({"draft": "off"}, {"draft": "int4", "draft_len": 6}):
                    _, reply = server.complete("Repeat the word hello", max_tokens=40,
                                               **{"temperature": 0, "vericache": draft, **penalty})
                    texts.add(reply["choices"][0]["text"])
                self.assertEqual(len(texts), 1, penalty)
            self.refused(server.chat(repetition_penalty=0), "repetition_penalty")

    def test_case_49_logit_bias(self):
        with self.serve() as server:
            vocab = 288
            for key in (vocab, vocab + 1, -1, "abc"):
                self.refused(server.chat(logit_bias={str(key): 1}), "logit_bias")
            everything = {str(i): -100 for i in range(vocab)}
            for stream in (False, True):
                self.refused(server.chat(logit_bias=everything, stream=stream), "bans all 288")
            one = {k: v for k, v in everything.items() if k != "70"}
            _, reply = server.complete("x", logit_bias=one, max_tokens=5, temperature=0)
            self.assertEqual(reply["choices"][0]["text"],
                             server.post("/detokenize", {"tokens": [70] * 5})[1]["content"])
        # 16 rows of the output have no token: large, so that they would be drawn.
        model = Model().set_text("tokenizer.chat_template", TEMPLATE)
        model.add_rows([[20.0 * (-1) ** i for i in range(HIDDEN)],
                        [-20.0 * (-1) ** i for i in range(HIDDEN)]] * 8)
        with self.serve(model) as server:
            for seed in range(8):
                _, reply = server.complete("x", temperature=2, seed=seed, logprobs=20,
                                           max_tokens=20, vericache={"receipt": True})
                ids = reply["usage"]["vericache"]["receipt"]["token_ids"]
                self.assertLess(max(ids), vocab)
                for top in reply["choices"][0]["logprobs"]["top_logprobs"]:
                    self.assertNotIn("", top)

    def test_case_50_numbers(self):
        with self.serve() as server:
            for name, good, bad in (("temperature", [0, 100], [-1, 999999, 1e308, "NaN"]),
                                    ("top_p", [1, 1e-6], [-1, 0, 1.5]),
                                    ("top_k", [0, -1, 10**9], [0.01, -2]),
                                    ("min_p", [0, 1], [-0.1, 2]),
                                    ("repetition_penalty", [0.5], [0, -1, 1e308]),
                                    ("max_completion_tokens", [1, 2], [-1, 1.5, "x"]),
                                    ("n", [1, 2], [0, 129])):
                for value in good + [None]:
                    status, reply = server.chat(**{"max_tokens": 2, name: value})
                    self.assertEqual(status, 200, (name, value, reply))
                for value in bad:
                    self.refused(server.chat(**{name: value}), name)
            _, reply = server.chat(max_completion_tokens=3, ignore_eos=True)
            self.assertEqual(reply["usage"]["completion_tokens"], 3)


class LoadTest(RealCase):
    LONG = {"max_tokens": 1900, "ignore_eos": True, "temperature": 0}

    def submitted(self, server):
        return server.metric('vericache_engine_choices_total{event="submitted"}')

    def send(self, server, sock, body):
        """Returns when the engine has it: it may have answered as well, the model is tiny."""
        before = self.submitted(server)
        sock.sendall(raw_request(body))
        wait_for(lambda: self.submitted(server) > before)

    def test_case_43_clients_that_leave(self):
        with self.serve(None, "--parallel", "1", "--chunk", "16") as server:
            quiet = server.chat(temperature=0, max_tokens=20)[1]["choices"]
            for how in ("close", "half"):
                for body in (chat_body("x", stream=True, **self.LONG), chat_body("x", **self.LONG),
                             chat_body("x", n=4, **self.LONG), chat_body("word " * 250,
                                                                         **self.LONG)):
                    first, queued = server.connect(), server.connect()
                    self.send(server, first, body)
                    queued.sendall(raw_request(chat_body("y", **self.LONG)))
                    for sock in (queued, first):
                        if how == "half":
                            sock.shutdown(socket.SHUT_WR)
                        else:
                            sock.close()
                    wait_for(server.idle)
                    for sock in (queued, first):
                        sock.close()
            self.assertEqual(server.chat(temperature=0, max_tokens=20)[1]["choices"], quiet)
            # Those that waited never had their turn.
            self.assertGreater(server.metric('vericache_engine_choices_total{event="cancelled"}'),
                               0)
            for tier in ("ram", "spilled"):
                self.assertEqual(server.metric(f'vericache_kv_bytes{{tier="{tier}"}}'), 0)

    def test_case_53_only_the_impossible_request_fails(self):
        with self.serve(None, "--kv-memory", "640KiB", "--prefix-memory", "0") as server:
            ask = lambda size: server.complete([5] * size, max_tokens=60, temperature=0,
                                               ignore_eos=True)
            sizes = [1900, 100, 100, 100]
            status, reply = ask(1900)
            if status == 200:
                self.fail("the budget of this test is too large")
            self.assertEqual(reply["error"]["code"], "kv_memory_exceeded")
            self.assertRegex(reply["error"]["message"], r"\d+")
            replies = in_parallel(ask, sizes * 2)
            self.assertEqual([r[0] for r in replies], [400, 200, 200, 200] * 2)
            self.assertEqual(len({r[1]["choices"][0]["text"] for r in replies if r[0] == 200}), 1)

    def test_case_55_stop(self):
        flags = ("--chunk", "16", "--grace", "0.5")
        busy = {"idle": None, "streaming": chat_body("x", stream=True, **self.LONG),
                "whole": chat_body("x", n=4, **self.LONG),
                "prefill": chat_body("word " * 390, max_tokens=400,
                                     ignore_eos=True)}
        store = self.folder / "store"
        texts = set()
        for name, body in busy.items():
            with self.subTest(name=name):
                with self.serve(None, *flags, "--prefix-store", store) as server:
                    texts.add(server.chat("word " * 300, temperature=0,
                                          max_tokens=10)[1]["choices"][0]["message"]["content"])
                    sock = server.connect()
                    if body:
                        self.send(server, sock, body)
                    self.assertEqual(server.stop(), 0)
                    sock.close()
        self.assertEqual(len(texts), 1)
        with self.serve(None, "--grace", "1000") as server, server.connect() as sock:
            # More than can be answered before the second signal.
            self.send(server, sock, chat_body("x", stream=True, n=64, **self.LONG))
            server.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(OSError):  # or it has ended by the first signal
                wait_for(lambda: server.chat("x")[0] == 503)
            server.process.send_signal(signal.SIGTERM)
            self.assertIn(server.process.wait(60), (0, 128 + signal.SIGTERM))

    def test_case_56_health_beside_a_prefill_and_a_full_queue(self):
        with self.serve(None, "--parallel", "1", "--chunk", "1", "--prefix-memory", "0") as server:
            socks = [server.connect() for _ in range(64)]
            for i, sock in enumerate(socks):
                sock.sendall(raw_request(chat_body("word " * 390 + str(i), max_tokens=1)))
            wait_for(lambda: sum(server.health()[1][k] for k in ("running", "waiting")) >= 20)
            for _ in range(10):
                for path in ("/health", "/health/live", "/health/ready", "/metrics"):
                    self.assertEqual(server.request("GET", path)[0], 200)
            self.assertFalse(server.idle())  # all that while they ran
            for sock in socks:
                sock.close()
            wait_for(server.idle)

    def test_case_70_a_port_that_is_taken(self):
        with self.serve() as server:
            done = subprocess.run([self.binary, "serve", "-m", self.folder / "model.gguf", "--port",
                                   str(server.port)], capture_output=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"port {server.port} is taken", done.stderr.decode())
            self.assertNotIn("loading", done.stderr.decode())

    def test_names_and_models(self):
        with self.serve(None, "--alias", "our/model", "--strict-model") as server:
            for name, status in (("our/model", 200), ("other", 404)):
                self.assertEqual(server.chat(model=name, max_tokens=1)[0], status)
            for path, status in (("/v1/models", 200), ("/v1/models/our/model", 200),
                                 ("/v1/models/our%2Fmodel", 200), ("/v1/models/other", 404)):
                got, _, text = server.request("GET", path)
                self.assertEqual(got, status, path)
                if status == 404:
                    self.assertEqual(json.loads(text)["error"]["code"], "model_not_found")
        with self.serve(None, "--alias", "a") as server:
            _, reply = server.chat(model="gpt-4", max_tokens=1)
            self.assertEqual(reply["model"], "gpt-4")
            self.assertTrue(re.fullmatch(r"chatcmpl-\w+", reply["id"]))

    def test_metrics_count_a_prompt_once(self):
        with self.serve() as server:
            usages = [server.chat(n=n, max_tokens=6)[1]["usage"] for n in (1, 3)]
            for kind, name in (("prompt", "prompt_tokens"), ("emitted", "completion_tokens")):
                self.assertEqual(server.metric(f'vericache_tokens_total{{kind="{kind}"}}'),
                                 sum(usage[name] for usage in usages))

    def test_one_connection_for_many_requests(self):
        with self.serve() as server, server.connect() as sock:
            body = chat_body("x", temperature=0, max_tokens=5)
            sock.sendall(raw_request(body) * 2 +  # pipelined
                         raw_request(body, extra="Connection: close\r\n"))
            replies = read_all(sock).split(b"HTTP/1.1 200 OK\r\n")[1:]
            texts = [json.loads(reply.split(b"\r\n\r\n", 1)[1])["choices"][0]["message"]["content"]
                     for reply in replies]
            self.assertEqual((len(texts), len(set(texts))), (3, 1))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} VERICACHE [TEST...]")
    RealCase.binary = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
