"""`vericache serve` on a tiny model, and what the command gives alone for the same request."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import subprocess
import tempfile

import server_fixture
from cli_fixture import GOLDEN, with_template

# As of Qwen: tools in the system turn, calls in <tool_call>.
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}"
    "{{ '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + "
    "'</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# Keys in the order of the alphabet: `batch` renders them so, the server as they come.
TOOLS = [{"function": {"description": "d", "name": name,
                       "parameters": {"properties": {"city": {"type": "string"}},
                                      "type": "object"}}, "type": "function"}
         for name in ("get_weather", "get_time")]


def write_model(path):
    """A head size of 32, so that every codec packs; its answers are noise."""
    path.write_bytes(with_template((GOLDEN / "llama_head_dim.gguf").read_bytes(), TEMPLATE))
    return path


class RealServer(server_fixture.Server):
    """vericache serve; the methods of the stub's fixture hold."""

    def __init__(self, binary, model, *flags):  # pylint: disable=super-init-not-called
        self.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self.folder.name)
        self.port_file = folder / "port"
        self.log = open(folder / "log", "w+")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("VERICACHE_")}
        self.process = subprocess.Popen(
            [binary, "serve", "-m", model, "--port", "0", "--port-file", self.port_file, *flags],
            stderr=self.log, env=kept)
        self.port = None
        self.wait_ready()

    def idle(self):
        """No choice runs or waits."""
        _, reply = self.health()
        return (reply["running"], reply["waiting"]) == (0, 0)


class Alone:
    """Answers of a process of its own for each request."""

    def __init__(self, binary, model, folder):
        self.binary, self.model, self.folder = binary, model, pathlib.Path(folder)
        self.known = {}

    def _command(self, *args, stdin=""):
        done = subprocess.run([self.binary, *map(str, args)], input=stdin.encode(),
                              capture_output=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{args}: {done.stderr.decode()}")
        return done.stdout.decode()

    def answer(self, asked, max_tokens=None):
        """The object of `run --json` for a request as made by mixed_requests.py; drafts off."""
        limit = asked.max_tokens if max_tokens is None else max_tokens
        key = (asked.number, limit)
        if key not in self.known:
            self.known[key] = (self._batch(asked, limit) if asked.needs_batch else
                               self._run(asked, limit))
        return self.known[key]

    def _run(self, asked, limit):
        args = ["run", "-m", self.model, "--json", "--draft", "off", "-n", limit, "-p", asked.text]
        if not asked.chat:
            args.append("--raw")
        for name, flag in (("temperature", "--temp"), ("top_k", "--top-k"), ("top_p", "--top-p"),
                           ("min_p", "--min-p"), ("seed", "--seed")):
            if name in asked.sampling:
                args += [flag, asked.sampling[name]]
        return json.loads(self._command(*args))

    # What `run` has no flags for; a batch of one.
    def _batch(self, asked, limit):
        line = {**asked.sampling, "max_tokens": limit, "draft": "off"} | asked.question()
        out = self.folder / f"alone_{asked.number}_{limit}"
        self._command("batch", "-m", self.model, "-f", "-", "-o", out, stdin=json.dumps(line))
        answer = json.loads(out.read_text())
        if answer["error"]:
            raise AssertionError(answer["error"])
        return answer

    def audit(self, receipt):
        """Raises unless the receipt's tokens and logits come out again."""
        self._command("audit", "-m", self.model, "-", stdin=json.dumps(receipt))


def post(server, path, body):
    """Gives status and text of a reply, or the streamed events."""
    with contextlib.closing(http.client.HTTPConnection(
            "127.0.0.1", server.port, timeout=600)) as connection:
        connection.request("POST", path, body=json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode()
        if response.status == 200 and body.get("stream"):
            return response.status, server_fixture.parse_events(text)
        return response.status, json.loads(text)


def in_parallel(work, items, threads=64):
    """The results of work(item), in order."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))
