"""Real clients against the server: the `openai` package and LangChain. Run by run_clients.sh."""

import unittest

import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

import server_fixture
from server_fixture import Server, rule, wait_for

TOOLS = [{"type": "function",
          "function": {"name": "get_weather", "description": "d",
                       "parameters": {"type": "object", "properties": {"city": {}}}}}]
RULES = [
    rule(['<tool_call>\n{"name": "get_wea', 'ther", "arguments": {"city": "Pa', 'ris"}}\n',
          '</tool_call>'], match="weather"),
    rule(["x", " y"], match="endless", repeat=100000, delay_ms=5),
    rule(["broken"], match="broken", nan_at=0),
    rule(["Hello", " there", "!"], run=2),
]


def client_of(server, **more):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="any",
                         max_retries=0, **more)


def ask(text):
    return [{"role": "user", "content": text}]


class OpenAiTest(unittest.TestCase):
    def test_chat_streaming_usage_seed_n(self):
        with Server(RULES) as server:
            client = client_of(server)
            reply = client.chat.completions.create(model="m", messages=ask("hi"), seed=7, n=2)
            self.assertEqual([c.message.content for c in reply.choices], ["Hello there!"] * 2)
            self.assertEqual(reply.usage.completion_tokens, 8)
            self.assertEqual(reply.usage.vericache["seed"], 7)
            self.assertTrue(reply._request_id.startswith("chatcmpl-"))
            text, usage = "", None
            for chunk in client.chat.completions.create(
                    model="m", messages=ask("hi"), stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"vericache": {"drafts": True}}):
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                usage = chunk.usage or usage
            self.assertEqual((text, usage.completion_tokens), ("Hello there!", 4))
            with client.chat.completions.stream(model="m", messages=ask("hi")) as stream:
                final = stream.get_final_completion()
            self.assertEqual(final.choices[0].message.content, "Hello there!")

    def test_tools_whole_and_streamed(self):
        with Server(RULES) as server:
            client = client_of(server)
            reply = client.chat.completions.create(model="m", messages=ask("weather?"),
                                                   tools=TOOLS)
            call = reply.choices[0].message.tool_calls[0]
            self.assertEqual((call.function.name, call.function.arguments),
                             ("get_weather", '{"city": "Paris"}'))
            self.assertEqual(reply.choices[0].finish_reason, "tool_calls")
            with client.chat.completions.stream(model="m", messages=ask("weather?"),
                                                tools=TOOLS) as stream:
                final = stream.get_final_completion()
            streamed = final.choices[0].message.tool_calls[0]
            self.assertEqual(streamed.function.arguments, call.function.arguments)
            # The call and its result go back as the client keeps them.
            history = ask("weather?") + [
                reply.choices[0].message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
            client.chat.completions.create(model="m", messages=history, tools=TOOLS)

    def test_logprobs_and_completions(self):
        with Server(RULES) as server:
            client = client_of(server)
            reply = client.chat.completions.create(model="m", messages=ask("hi"), logprobs=True,
                                                   top_logprobs=3)
            entry = reply.choices[0].logprobs.content[1]
            self.assertEqual((entry.token, len(entry.top_logprobs)), (" there", 3))
            self.assertEqual(bytes(entry.bytes).decode(), " there")
            reply = client.completions.create(model="m", prompt="hi you", echo=True, logprobs=1,
                                              max_tokens=2)
            self.assertEqual(reply.choices[0].text, "hi youHello there")
            self.assertIsNone(reply.choices[0].logprobs.token_logprobs[0])
            pieces = [c.choices[0].text for c in client.completions.create(
                model="m", prompt="hi", max_tokens=10, stream=True)]
            self.assertEqual("".join(pieces), "Hello there!")

    def test_errors_are_the_clients_exceptions(self):
        with Server(RULES, {"api_keys": ["k"]}, context=50) as server:
            with self.assertRaises(openai.AuthenticationError):
                client_of(server).models.list()
            client = client_of(server).with_options(api_key="k")
            self.assertEqual(client.models.list().data[0].id, "stub")
            self.assertEqual(client.models.retrieve("stub").id, "stub")
            with self.assertRaises(openai.NotFoundError):
                client.models.retrieve("other")
            with self.assertRaises(openai.BadRequestError) as caught:
                client.chat.completions.create(model="m", messages=ask("w " * 100))
            self.assertEqual(caught.exception.code, "context_length_exceeded")
            with self.assertRaises(openai.BadRequestError) as caught:
                client.chat.completions.create(model="m", messages=ask("x"), temperature=-1)
            self.assertEqual(caught.exception.param, "temperature")
            with self.assertRaises(openai.InternalServerError):
                client.chat.completions.create(model="m", messages=ask("broken"))

    def test_cancel_by_closing_the_stream(self):
        with Server(RULES) as server:
            stream = client_of(server).chat.completions.create(
                model="m", messages=ask("endless"), stream=True)
            next(iter(stream))
            stream.close()
            wait_for(lambda: server.health()[1]["running"] == 0)
            with self.assertRaises(openai.APITimeoutError):
                client_of(server, timeout=1).chat.completions.create(
                    model="m", messages=ask("endless"))
            wait_for(lambda: server.health()[1]["running"] == 0)


class LangChainTest(unittest.TestCase):
    def test_invoke_stream_and_tools(self):
        @tool
        def get_weather(city: str) -> str:
            """Weather of a city."""
            return city
        with Server(RULES) as server:
            model = ChatOpenAI(model="m", base_url=f"http://127.0.0.1:{server.port}/v1",
                               api_key="any", max_retries=0)
            self.assertEqual(model.invoke("hi").content, "Hello there!")
            self.assertEqual("".join(c.content for c in model.stream("hi")), "Hello there!")
            reply = model.bind_tools([get_weather]).invoke("weather?")
            self.assertEqual((reply.tool_calls[0]["name"], reply.tool_calls[0]["args"]),
                             ("get_weather", {"city": "Paris"}))
            self.assertEqual(reply.usage_metadata["output_tokens"], 5)


if __name__ == "__main__":
    server_fixture.main()
