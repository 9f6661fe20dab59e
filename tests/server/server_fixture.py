"""What the tests of the server share: the stub server with a script, and a plain HTTP client."""

import contextlib
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUB = None  # the command, set by main()
PATIENCE_S = 60  # for what should take much less: the machine may be busy


def rule(tokens, match="", **more):
    return {"match": match, "tokens": tokens, **more}


class Server:
    """A stub server that runs; `script` is explained in stub_service.cc."""

    def __init__(self, rules, settings=None, wait=True, **script):
        self.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self.folder.name)
        self.freeze_file = folder / "freeze"
        script = {"rules": rules, "server": settings or {}, "freeze_file": str(self.freeze_file),
                  **script}
        (folder / "script.json").write_text(json.dumps(script))
        self.port_file = folder / "port"
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen([STUB, folder / "script.json", self.port_file],
                                        stderr=self.log)
        self.port = None
        if wait:
            self.wait_ready()

    def log_text(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def wait_ready(self):
        wait_for(lambda: self.port_file.exists() or self.process.poll() is not None)
        if not self.port_file.exists():
            raise AssertionError("the server did not start: " + self.log_text())
        self.port = int(self.port_file.read_text())

    def wait_listening(self):
        wait_for(lambda: "listening on" in self.log_text())
        self.port = int(self.log_text().split("listening on ")[1].split()[0])

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()
        self.folder.cleanup()

    def stop(self):
        """SIGTERM; gives the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def request(self, method, path, body=None, headers=None):
        """Gives status, headers and the body's text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, body=data, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()

    def post(self, path, body, headers=None):
        status, _, text = self.request("POST", path, body, headers)
        return status, json.loads(text)

    def chat(self, text="hello", **more):
        return self.post("/v1/chat/completions", chat_body(text, **more))

    def complete(self, prompt="hello", **more):
        return self.post("/v1/completions", {"model": "stub", "prompt": prompt, **more})

    def stream(self, path, body):
        """The events of a streamed reply: (name or None, parsed data or "[DONE]")."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        if status != 200:
            raise AssertionError(f"{status}: {text}")
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        return parse_events(text)

    def stream_chat(self, text="hello", **more):
        return self.stream("/v1/chat/completions", chat_body(text, **more))

    def metric(self, name):
        _, _, text = self.request("GET", "/metrics")
        for line in text.splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        return None

    def health(self):
        status, _, text = self.request("GET", "/health")
        return status, json.loads(text)


def chat_body(text, **more):
    return {"model": "stub", "messages": [{"role": "user", "content": text}], **more}


def parse_events(text):
    events = []
    for block in text.split("\n\n"):
        name, data = None, None
        for line in block.splitlines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
        if data is not None:
            events.append((name, data if data == "[DONE]" else json.loads(data)))
    return events


def joined(events, choice=0):
    """The message that the chunks of a chat add up to, as the whole reply would show it."""
    message = {"content": "", "reasoning_content": "", "tool_calls": [], "finish_reason": None,
               "logprobs": []}
    for name, event in events:
        if name is not None or event == "[DONE]":
            continue
        for part in event.get("choices", []):
            if part["index"] != choice:
                continue
            delta = part["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            message["logprobs"] += (part.get("logprobs") or {}).get("content", [])
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"name": call["function"]["name"],
                                                  "arguments": ""})
                message["tool_calls"][call["index"]]["arguments"] += (
                    call["function"]["arguments"])
            message["finish_reason"] = part["finish_reason"] or message["finish_reason"]
    return message


def whole_message(reply, choice=0):
    """The same of a reply that was not streamed."""
    part = reply["choices"][choice]
    message = part["message"]
    return {"content": message["content"] or "",
            "reasoning_content": message.get("reasoning_content", ""),
            "tool_calls": [{"name": c["function"]["name"],
                            "arguments": c["function"]["arguments"]}
                           for c in message.get("tool_calls", [])],
            "finish_reason": part["finish_reason"],
            "logprobs": (part["logprobs"] or {}).get("content", [])}


def wait_for(condition, seconds=PATIENCE_S):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def main():
    global STUB
    STUB = sys.argv.pop(1)
    unittest.main(verbosity=2)
