"""The API over scripted answers: every case of shared bug reports that belongs here, by number."""

import json
import unittest

import server_fixture
from server_fixture import Server, chat_body, joined, rule, whole_message

TOOLS = [{"type": "function",
          "function": {"name": name, "description": "d",
                       "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}}
         for name in ("get_weather", "get_time")]
CALL = ['<tool', '_call>\n{"name": "get', '_weather", "argu', 'ments": {"city": "a}b\\"',
        '</tool_call>"}', '}\n</tool', '_call>']
SECOND = ["\n", '<tool_call>{"arguments": {"zone": 1}, "name": "get_time"}</tool_call>']


class ApiTest(unittest.TestCase):
    def both(self, server, text="hello", **more):
        """The message of a chat, which must be the same streamed and whole."""
        status, reply = server.chat(text, **more)
        self.assertEqual(status, 200, reply)
        whole = whole_message(reply)
        self.assertEqual(joined(server.stream_chat(text, **more)), whole)
        return whole

    def refused(self, answer, param, status=400):
        self.assertEqual(answer[0], status, answer[1])
        error = answer[1]["error"]
        self.assertEqual(error["param"], param, error)
        self.assertTrue(error["message"])
        return error

    def test_case_05_usage_is_what_was_delivered(self):
        with Server([rule(["a", " b", " c", " d", " e", " f", " g", " h"], run=4)]) as server:
            for limit in range(1, 13):
                _, reply = server.chat(max_tokens=limit, logprobs=True)
                told = len(reply["choices"][0]["logprobs"]["content"])
                self.assertEqual(reply["usage"]["completion_tokens"], told)
                self.assertEqual(told, min(limit, 9))
                self.assertEqual(reply["choices"][0]["finish_reason"],
                                 "length" if limit < 9 else "stop")

    def test_case_04_a_stop_before_the_limit_in_one_round(self):
        with Server([rule(["a", "b", "STOP", "c", "d", "e"], run=8)]) as server:
            message = self.both(server, max_tokens=5, stop="STOP")
            self.assertEqual((message["content"], message["finish_reason"]), ("ab", "stop"))
            message = self.both(server, max_tokens=2, stop="STOP")
            self.assertEqual((message["content"], message["finish_reason"]), ("ab", "length"))

    def test_case_07_seeds(self):
        with Server([rule(["a"])]) as server:
            for seed in (0, 42, 4294967295, 2**63, 2**64 - 1):
                _, reply = server.chat(seed=seed)
                self.assertEqual(reply["usage"]["vericache"]["seed"], seed)
            for seed in (-1, 2**64, "x", 1.5):
                self.refused(server.chat(seed=seed), "seed")
            told = {server.chat()[1]["usage"]["vericache"]["seed"] for _ in range(4)}
            self.assertEqual(len(told), 4)  # absent: random, and reported

    def test_case_19_bodies_that_are_no_utf8(self):
        with Server([rule(["a"])]) as server:
            for body in (b'{"messages": [{"role": "user", "content": "\xe2\x80"}]}',
                         b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
                         b"", b"[]", b"nonsense", b'"x"', b"\xff\xfe", b"{" * 100000):
                self.assertEqual(server.post("/v1/chat/completions", body)[0], 400, body[:60])
            for number in ("1e999", "-1e999", "9" * 400):
                body = '{"prompt": "x", "temperature": %s}' % number
                self.assertEqual(server.post("/v1/completions", body)[0], 400, body)
            for text in ("\u0000", "\u00a0" * 50, "\u2028", "\U0001fffe"):
                self.assertEqual(server.chat(text)[0], 200)

    def test_case_31_the_templates_own_words(self):
        system = {"messages": [{"role": "system", "content": "be brief"},
                               {"role": "user", "content": "hello"}]}
        with Server([rule(["a"])], refuse_system=True) as server:
            status, reply = server.post("/v1/chat/completions", system)
            self.assertEqual(status, 400)
            self.assertEqual(reply["error"]["message"], "System role not supported")
            self.refused(server.post("/v1/chat/completions", {"messages": []}), "messages")
        with Server([rule(["folded"], match="user: be brief\n\nhello"), rule(["other"])],
                    {"fold_system": True}, refuse_system=True) as server:
            _, reply = server.post("/v1/chat/completions", system)
            self.assertEqual(reply["choices"][0]["message"]["content"], "folded")

    def test_case_34_reasoning(self):
        rules = [rule(["\nwhy", " so\n", "</thi", "nk>\n\nbe", "cause <think> x</think>"],
                      match="is closed"),
                 rule(["one", " two"], match="unclosed"),
                 rule(["<th", "ink>\nr", "</think>", "c"], match="opens itself"),
                 rule(["r</think>c</think>d"], match="twice")]
        for generation_prompt in ("assistant:\n<think>\n", "assistant:\n"):
            inside = "<think>" in generation_prompt
            with Server(rules, generation_prompt=generation_prompt) as server:
                got = self.both(server, "opens itself")
                self.assertEqual((got["reasoning_content"], got["content"]), ("r", "c"))
                got = self.both(server, "unclosed")
                self.assertEqual((got["reasoning_content"], got["content"]),
                                 ("one two", "") if inside else ("", "one two"))
                if inside:
                    got = self.both(server, "is closed")
                    self.assertEqual((got["reasoning_content"], got["content"]),
                                     ("why so", "because <think> x</think>"))
                    got = self.both(server, "twice")
                    self.assertEqual((got["reasoning_content"], got["content"]),
                                     ("r", "c</think>d"))
                else:
                    kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
                    got = self.both(server, "opens itself", **kwargs)
                    self.assertEqual((got["reasoning_content"], got["content"]),
                                     ("", "<think>\nr</think>c"))

    def test_case_35_tool_choice(self):
        named = {"type": "function", "function": {"name": "nobody"}}
        known = {"type": "function", "function": {"name": "get_time"}}
        with Server([rule(CALL)]) as server:
            for stream in (False, True):
                for tools in ({}, {"tools": []}, {"tools": None}, {"tools": TOOLS}):
                    for choice in ("required", named, known, "sometimes", 3):
                        self.refused(server.chat(tool_choice=choice, stream=stream, **tools),
                                     "tool_choice")
            for more in ({"tools": [], "tool_choice": "auto"},
                         {"tools": TOOLS, "tool_choice": "none"}, {"tools": None}):
                got = self.both(server, **more)
                self.assertEqual((got["tool_calls"], got["finish_reason"]), ([], "stop"))
                self.assertEqual(got["content"], "".join(CALL))
            for tools in ([{}], [{"type": "function"}], ["x"], {"a": 1}, TOOLS + TOOLS):
                self.assertEqual(server.chat(tools=tools)[0], 400, tools)

    def test_tools_one_and_parallel_calls(self):
        rules = [rule(["Let me see. \n"] + CALL + SECOND, match="both"),
                 rule(CALL + SECOND, match="one")]
        with Server(rules) as server:
            got = self.both(server, "both", tools=TOOLS)
            first = {"name": "get_weather", "arguments": '{"city": "a}b\\"</tool_call>"}'}
            self.assertEqual(got["tool_calls"],
                             [first, {"name": "get_time", "arguments": '{"zone":1}'}])
            self.assertEqual((got["content"], got["finish_reason"]),
                             ("Let me see.", "tool_calls"))
            got = self.both(server, "one", tools=TOOLS, parallel_tool_calls=False)
            self.assertEqual(len(got["tool_calls"]), 1)

    def test_tools_a_call_that_is_no_json_stays_text(self):
        call = '<tool_call>{"arguments": {"a": 1e999}, "name": "get_time"}</tool_call>'
        with Server([rule([call, " x"])]) as server:
            got = self.both(server, tools=TOOLS)
            self.assertEqual((got["tool_calls"], got["content"]), ([], call + " x"))

    def test_tools_that_the_request_does_not_have_stay_text(self):
        with Server([rule(['<tool_call>{"name": "rm", "arguments": {}}</tool_call>'])]) as server:
            got = self.both(server, tools=TOOLS)
            self.assertEqual(got["tool_calls"], [])
            self.assertIn('"rm"', got["content"])

    def test_tools_of_a_template_without_tools(self):
        with Server([rule(["x"])], template_without_tools=True) as server:
            self.refused(server.chat(tools=TOOLS), "tools")

    def test_tool_messages_reach_the_template(self):
        messages = [{"role": "user", "content": [{"type": "text", "text": "what "},
                                                 {"type": "text", "text": "time"}]},
                    {"role": "assistant", "content": None,
                     "tool_calls": [{"id": "c", "type": "function",
                                     "function": {"name": "f", "arguments": '{"z": 1, "a": 2}'}}]},
                    {"role": "tool", "tool_call_id": "c", "content": "noon"}]
        with Server([rule(["seen"], match='"arguments":{"z":1,"a":2}')]) as server:
            status, reply = server.post("/v1/chat/completions", {"messages": messages})
            self.assertEqual((status, reply["choices"][0]["message"]["content"]), (200, "seen"))
            for bad in ([{"role": "king", "content": "x"}], [{"content": "x"}], ["x"], [{}],
                        [{"role": "user"}], [{"role": "user", "content": 3}],
                        [{"role": "user", "content": [{"type": "image_url"}]}]):
                self.assertEqual(server.post("/v1/chat/completions", {"messages": bad})[0], 400)

    def test_roles_and_contents_as_clients_send_them(self):
        parts = [{"type": "text", "text": "no"}, {"type": "text", "text": "on"}]
        with Server([rule(["seen"])]) as server:
            render = lambda messages: server.post("/tokenize", {"messages": messages})[1]["tokens"]
            plain = [{"role": "system", "content": "s"}, {"role": "user", "content": "noon"},
                     {"role": "assistant", "content": ""}, {"role": "tool", "content": "noon"}]
            listed = [{"role": "developer", "content": "s"}, {"role": "user", "content": parts},
                      {"role": "assistant", "content": None},
                      {"role": "tool", "tool_call_id": "c", "content": parts}]
            self.assertEqual(render(listed), render(plain))
            named = [{"role": "user", "content": "x", "name": "n"}]
            self.assertEqual(server.post("/v1/chat/completions", {"messages": named})[0], 200)
            for part in ({"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"},
                         {"text": "x"}, "x", {"type": "input_audio"}):
                self.refused(server.post("/v1/chat/completions", {
                    "messages": [{"role": "user", "content": [part]}]}), "messages[0].content")
            self.refused(server.post("/v1/chat/completions",
                                     {"messages": [{"role": "user", "content": "x"},
                                                   {"role": "tool", "content": None}]}),
                         "messages[1].content")

    def test_fields_of_old_and_new_clients(self):
        with Server([rule(list("abcdefgh"))]) as server:
            for name in ("functions", "function_call"):
                self.refused(server.chat(**{name: [{"name": "f"}]}), name)
                self.assertEqual(server.chat(**{name: None})[0], 200)
            for more, count in (({"max_completion_tokens": 2}, 2),
                                ({"max_tokens": 5, "max_completion_tokens": 2}, 2),
                                ({"max_tokens": 3, "max_completion_tokens": None}, 3)):
                self.assertEqual(server.chat(**more)[1]["usage"]["completion_tokens"], count)
            for options, usage in ((None, False), ({}, False), ({"include_usage": None}, False),
                                   ({"include_usage": False}, False),
                                   ({"include_usage": True}, True)):
                events = [e for _, e in server.stream_chat(stream_options=options)]
                self.assertEqual(bool(events[-2].get("usage")), usage, options)
            for options in ("x", {"include_usage": 1}):
                self.assertEqual(server.chat(stream=True, stream_options=options)[0], 400)
            every = {name: None for name in (
                "model temperature top_p n stream stop max_tokens presence_penalty seed tools "
                "frequency_penalty logit_bias user tool_choice response_format logprobs "
                "top_logprobs parallel_tool_calls stream_options vericache metadata "
                "service_tier reasoning_effort modalities prediction store").split()}
            self.assertEqual(server.chat(**every)[0], 200)

    def test_case_37_stop_strings(self):
        letters = rule(list("ABCDEFGHIJK"), match="letters")
        rules = [letters, rule(["x", "?\n", "y"], match="line"), rule(["AB", "CD"], match="held"),
                 rule(["1", "2", "3", "4", "5"], match="prefix")]
        with Server(rules) as server:
            self.assertEqual(self.both(server, "letters", stop=["DEFGHIJ"])["content"], "ABC")
            self.assertEqual(self.both(server, "line", stop="\n")["content"], "x?")
            got = self.both(server, "held", stop=["CDE"])
            self.assertEqual((got["content"], got["finish_reason"]), ("ABCD", "stop"))
            self.assertEqual(self.both(server, "prefix", stop=["3", "34"])["content"], "12")
            self.assertEqual(self.both(server, "held", stop=None)["content"], "ABCD")
            self.assertEqual(self.both(server, "held", stop=[])["content"], "ABCD")
            for stop in ("", ["a", ""], [None], 5, {"a": 1}, ["x"] * 17):
                self.refused(server.chat(stop=stop), "stop")

    def test_case_38_chat_logprobs(self):
        with Server([rule(["a", [226, 130], [172], " b"])]) as server:
            for top in (None, 0, 20):
                got = self.both(server, logprobs=True, top_logprobs=top)
                self.assertEqual(len(got["logprobs"]), 5)
                for entry in got["logprobs"]:
                    self.assertEqual(len(entry["top_logprobs"]), top or 0)
                    self.assertEqual(set(entry), {"token", "logprob", "bytes", "top_logprobs"})
                half = got["logprobs"][1]
                self.assertEqual((half["token"], half["bytes"]), ("bytes:\\xe2\\x82", [226, 130]))
                self.assertEqual(got["content"], "a\u20ac b")
            self.refused(server.chat(top_logprobs=3), "top_logprobs")
            self.refused(server.chat(logprobs=True, top_logprobs=21), "top_logprobs")
            self.refused(server.chat(logprobs=2), "logprobs")

    def test_case_38_echo_and_scoring(self):
        with Server([rule(["x", " y"])]) as server:
            replies = [server.complete("one two three", echo=True, logprobs=1, max_tokens=0)[1]
                       for _ in range(2)]
            choice = replies[0]["choices"][0]
            self.assertEqual(choice, replies[1]["choices"][0])
            self.assertEqual(choice["text"], "one two three")
            logprobs = choice["logprobs"]
            self.assertEqual(logprobs["tokens"], ["one", " two", " three"])
            self.assertEqual(logprobs["text_offset"], [0, 3, 7])
            self.assertIsNone(logprobs["token_logprobs"][0])
            self.assertIsNone(logprobs["top_logprobs"][0])
            self.assertEqual(list(logprobs["top_logprobs"][1]), [" two"])
            self.assertEqual(replies[0]["usage"]["completion_tokens"], 0)
            _, whole = server.complete("one two", echo=True, logprobs=2)
            events = server.stream("/v1/completions",
                                   {"prompt": "one two", "echo": True, "logprobs": 2})
            self.assertEqual(events[0][1]["choices"][0]["text"], whole["choices"][0]["text"])
            self.assertEqual(events[0][1]["choices"][0]["logprobs"],
                             whole["choices"][0]["logprobs"])

    def test_case_38_offsets_count_characters(self):
        with Server([rule(["a\u00e9", [226, 130], [172], "b", "c"])]) as server:
            for more in ({}, {"echo": True}):
                _, reply = server.complete("\u00fcx", logprobs=0, **more)
                choice = reply["choices"][0]
                offsets = choice["logprobs"]["text_offset"]
                for token, at in zip(choice["logprobs"]["tokens"], offsets):
                    if token != "<eos>" and not token.startswith("bytes:"):
                        self.assertTrue(choice["text"][at:].startswith(token), (token, at))
                self.assertGreaterEqual(len(offsets), 6)

    def test_case_40_context_overflow(self):
        with Server([rule(["a"], repeat=2000)], context=64) as server:
            for stream in (False, True):
                for num_words in (64, 65, 5000):
                    prompt = "w " * (num_words - 1) + "w"
                    status, reply = server.complete(prompt, stream=stream)
                    self.assertEqual(status, 400, reply)
                    self.assertEqual(reply["error"]["code"], "context_length_exceeded")
                    self.assertIn(str(num_words), reply["error"]["message"])
                    self.assertIn("64", reply["error"]["message"])
            status, reply = server.complete("w " * 59 + "w", max_tokens=512)
            self.assertEqual((status, reply["choices"][0]["finish_reason"]), (200, "length"))
            self.assertEqual(reply["usage"]["prompt_tokens"] +
                             reply["usage"]["completion_tokens"], 64)

    def test_case_41_what_is_not_supported_is_refused(self):
        deep = "[" * 3000 + "]" * 3000
        with Server([rule(["a"])]) as server:
            for body in ('{"messages": [{"role": "user", "content": "x"}], "tools": %s}' % deep,
                         '{"prompt": %s}' % deep):
                for path in ("/v1/chat/completions", "/v1/completions"):
                    self.assertEqual(server.post(path, body)[0], 400)
            for kind in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, "x",
                         {}):
                self.refused(server.chat(response_format=kind), "response_format")
            self.assertEqual(server.chat(response_format={"type": "text"})[0], 200)
            self.refused(server.chat(functions=[]), "functions")
            self.assertEqual(server.health()[0], 200)

    def test_case_46_non_finite_logits(self):
        with Server([rule(["a", " b"], match="bad", nan_at=1), rule(["ok"], match="good"),
                     rule(["x"], match="first", nan_at=0)]) as server:
            status, reply = server.chat("bad")
            self.assertEqual((status, reply["error"]["code"]), (500, "non_finite_logits"))
            events = server.stream_chat("bad")
            self.assertEqual(events[-1][1]["error"]["code"], "non_finite_logits")
            self.assertNotIn((None, "[DONE]"), events)
            # Before the first text the status is still free.
            status, reply = server.post("/v1/chat/completions", chat_body("first", stream=True))
            self.assertEqual(status, 500)
            self.assertEqual(server.chat("good")[0], 200)
            self.assertEqual(server.metric('vericache_errors_total{code="non_finite_logits"}'), 3)

    def test_case_49_logit_bias(self):
        vocab = 1000000
        with Server([rule(["a"])]) as server:
            for key in (str(vocab), str(vocab + 1), "-1", "abc", "", "1.5", "99999999999999"):
                self.refused(server.chat(logit_bias={key: 1}), "logit_bias")
            for value in ("NaN", None, 101, -101, 1e308, [1]):
                self.refused(server.chat(logit_bias={"5": value}), "logit_bias")
            self.refused(server.chat(logit_bias=[1]), "logit_bias")
            many = {str(i): -100 for i in range(100000)}
            self.assertEqual(server.chat(logit_bias=many)[0], 200)
            self.assertEqual(server.chat(logit_bias={})[0], 200)

    def test_case_50_every_parameter(self):
        good = {"temperature": [0, 0.0, 1e-8, 2, 100], "top_p": [1e-6, 1], "min_p": [0, 1],
                "top_k": [-1, 0, 1, 10**9], "presence_penalty": [-2, 0, 2],
                "frequency_penalty": [-2, 2], "repetition_penalty": [0.5, 1.3], "n": [1, 3],
                "max_tokens": [0, 1, 10**15], "max_completion_tokens": [1], "stream": [False],
                "user": ["x", 3], "store": [True], "unknown": [{"deep": [1]}]}
        bad = {"temperature": [-1, 101, 1e308, "NaN", [], True], "top_p": [-1, 0, 1.1, 1e308, "x"],
               "min_p": [-1, 1.5, "x"], "top_k": [-2, 0.01, 1e308, "x"],
               "presence_penalty": [-101, 1e308, "x"], "frequency_penalty": [101, {}],
               "repetition_penalty": [0, -1, 1e308, "x"], "n": [0, -1, 129, 1.5, "x"],
               "max_tokens": [-1, 0.5, 1e308, "x"], "max_completion_tokens": [-1],
               "stream": [1, "x"], "stream_options": [{}, 3], "logprobs": ["x"],
               "parallel_tool_calls": [1], "model": [3], "ignore_eos": ["x"], "priority": [1e9],
               "cache_salt": [3], "enable_thinking": [3], "chat_template_kwargs": [[]],
               "vericache": [3]}
        with Server([rule(["a"])]) as server:
            for name, values in good.items():
                for value in values + [None]:
                    self.assertEqual(server.chat(**{name: value})[0], 200, (name, value))
            for name, values in bad.items():
                for value in values:
                    self.refused(server.chat(**{name: value}), name)
            for name, value in (("draft", 3), ("draft_len", 0), ("draft_len", 257),
                                ("draft_len", "x"), ("receipt", 1), ("drafts", "x"),
                                ("draft", "kept,file=/etc/passwd+int4")):
                self.refused(server.chat(vericache={name: value}), "vericache." + name)
            for name, value in (("best_of", 2), ("suffix", "x"), ("logprobs", 21), ("echo", 1),
                                ("prompt", None), ("prompt", []), ("prompt", ""),
                                ("prompt", [1, "a"]), ("prompt", [-1]), ("prompt", ["a", 1])):
                self.refused(server.complete(**{name: value}), name)
            self.assertEqual(server.health()[0], 200)

    def test_case_53_only_the_impossible_request_fails(self):
        with Server([rule(["a"])], pool=512, max_running=1) as server:
            status, reply = server.chat(max_tokens=600)
            self.assertEqual(status, 400)
            self.assertEqual(reply["error"]["code"], "kv_memory_exceeded")
            self.assertIn("512", reply["error"]["message"])
            for _ in range(3):
                self.assertEqual(server.chat(max_tokens=100)[0], 200)

    def test_a_full_queue_is_told_to_wait(self):
        with Server([rule(["a"])], max_waiting=1) as server:
            status, headers, text = server.request(
                "POST", "/v1/chat/completions", chat_body("x", n=2))
            self.assertEqual((status, headers["Retry-After"]), (429, "1"))
            self.assertEqual(json.loads(text)["error"]["code"], "queue_full")

    def test_choices_and_several_prompts(self):
        rules = [rule(["1"], match="one"), rule(["2"], match="two")]
        with Server(rules) as server:
            _, reply = server.complete(["one", "two"], n=2)
            self.assertEqual([(c["index"], c["text"]) for c in reply["choices"]],
                             [(0, "1"), (1, "1"), (2, "2"), (3, "2")])
            self.assertEqual((reply["usage"]["prompt_tokens"],
                              reply["usage"]["completion_tokens"]), (2, 8))
            events = server.stream_chat("one", n=3)
            for choice in range(3):
                self.assertEqual(joined(events, choice)["content"], "1")
            _, ids = server.post("/tokenize", {"content": "two"})
            self.assertEqual(server.complete([ids["tokens"]])[1]["choices"][0]["text"], "2")

    def test_stream_shape_and_usage(self):
        with Server([rule(["a", " b"])]) as server:
            events = [e for _, e in server.stream_chat(stream_options={"include_usage": True})]
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual(events[-2]["choices"], [])
            self.assertEqual(events[-2]["usage"]["completion_tokens"], 3)
            self.assertEqual(events[0]["choices"][0]["delta"],
                             {"role": "assistant", "content": ""})
            self.assertEqual({e["id"] for e in events[:-1]}, {events[0]["id"]})
            for event in events[:-2]:
                self.assertIsNone(event["usage"])
            self.assertEqual(events[-3]["choices"][0]["finish_reason"], "stop")
            plain = [e for _, e in server.stream_chat()]
            self.assertNotIn("usage", plain[0])

    def test_drafts_are_opt_in_and_receipts_in_usage(self):
        with Server([rule(["a", " b", " c"], run=2)]) as server:
            events = server.stream_chat(vericache={"drafts": True, "receipt": True})
            drafts = [e for name, e in events if name == "vericache.draft"]
            self.assertEqual([d["vericache"]["draft"] for d in drafts], ["a b", " c"])
            self.assertEqual(drafts[0]["choices"], [])
            self.assertEqual(joined(events)["content"], "a b c")
            usage = events[-2][1]["usage"]["vericache"]
            self.assertEqual(len(usage["receipt"]["token_ids"]), 4)
            self.assertFalse([1 for name, _ in server.stream_chat() if name])
            _, reply = server.chat(n=2, vericache={"receipt": True})
            self.assertEqual([r["choice"] for r in reply["usage"]["vericache"]["receipts"]],
                             [0, 1])

    def test_models_and_names(self):
        with Server([rule(["a"])]) as server:
            _, _, text = server.request("GET", "/v1/models")
            self.assertEqual(json.loads(text)["data"][0]["id"], "stub")
            self.assertEqual(server.request("GET", "/v1/models/stub")[0], 200)
            self.assertEqual(server.request("GET", "/v1/models/gpt-4")[0], 404)
            _, reply = server.chat(model="gpt-4")
            self.assertEqual(reply["model"], "gpt-4")
        with Server([rule(["a"])], {"strict_model": True}) as server:
            status, reply = server.chat(model="gpt-4")
            self.assertEqual((status, reply["error"]["code"]), (404, "model_not_found"))
            self.assertEqual(server.chat()[0], 200)

    def test_tokenize_and_back(self):
        with Server([rule(["a"])]) as server:
            status, reply = server.post("/tokenize", {"content": "one two"})
            self.assertEqual((status, reply["count"], reply["max_model_len"]), (200, 2, 4096))
            _, back = server.post("/detokenize", {"tokens": reply["tokens"]})
            self.assertEqual(back["content"], "one two")
            _, chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})
            self.assertGreater(chat["count"], 1)
            for path, body in (("/tokenize", {}), ("/tokenize", {"content": 3}),
                               ("/detokenize", {}), ("/detokenize", {"tokens": [-1]}),
                               ("/detokenize", {"tokens": [10**9]}),
                               ("/detokenize", {"tokens": ["x"]})):
                self.assertEqual(server.post(path, body)[0], 400, body)

    def test_metrics(self):
        with Server([rule(["a", " b", " c"])]) as server:
            server.chat()
            server.chat(temperature=-1)
            _, headers, text = server.request("GET", "/metrics")
            self.assertTrue(headers["Content-Type"].startswith("text/plain"))
            chats = 'vericache_http_requests_total{path="/v1/chat/completions",status='
            for line in (chats + '"200"} 1',
                         chats + '"400"} 1',
                         'vericache_choices_total{finish_reason="stop"} 1',
                         "vericache_time_to_first_token_seconds_count 1",
                         "vericache_inter_token_seconds_count 3",
                         "vericache_request_seconds_count 1",
                         'vericache_tokens_total{kind="emitted"} 4', "vericache_ready 1"):
                self.assertIn(line, text)
            dashboard = json.loads((server_fixture.ROOT / "docs/grafana.json").read_text())
            names = {line.split("{")[0].split(" ")[0] for line in text.splitlines()
                     if not line.startswith("#")}
            names |= {name[:-4] for name in names if name.endswith("_sum")}
            families = {line.split()[2] for line in text.splitlines()
                        if line.startswith("# TYPE")}
            for panel in dashboard["panels"]:
                for target in panel.get("targets", []):
                    used = target["metric"]
                    self.assertIn(used, names | families)
                    self.assertIn(used, target["expr"])


if __name__ == "__main__":
    server_fixture.main()
