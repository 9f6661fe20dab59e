"""The servers that are measured: one process each, started for a variant and stopped after it."""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

OURS, PLAIN = "vericache", "vericache, draft off"
STORE = "vericache, prefix store"
LLAMA, LLAMA_FLASH_OFF = "llama server", "llama server, flash attention off"
LLAMA_DISK = "llama server, disk cache"
LLAMA_LOOKUP = "llama server, prompt lookup, no cache"
# Of llama server's cache: every document's K/V several times over. Its default of 2 GiB gains
# nothing, and with the logits (below) would take 12 GB.
CACHE_BYTES = 1 << 30
START_S, STOP_S = 120, 30

# llama server at its best: the whole prompt's K/V of each earlier request in RAM; no request is
# broken off for a new one (its default); logits of the last position only (its default is all:
# n_ctx x vocabulary in fp32). n_batch is llama.cpp's own unit: each cached state holds a copy of
# n_batch x vocabulary logits besides (311 MB for Qwen2.5), so more costs memory and gains nothing.
CACHE = {"cache": "true", "cache_type": "ram", "cache_size": CACHE_BYTES, "logits_all": "false"}
LLAMA_FLAGS = {
    LLAMA: CACHE | {"flash_attn": "true"},
    LLAMA_FLASH_OFF: CACHE | {"flash_attn": "false"},
    LLAMA_DISK: CACHE | {"flash_attn": "true", "cache_type": "disk"},
    # Its prompt lookup needs the logits of all positions, and a cached state would hold a copy of
    # them (3 GB at 5,000 tokens): what fits in memory is the prefix of the last prompt alone.
    LLAMA_LOOKUP: {"draft_model": "prompt-lookup-decoding", "flash_attn": "true"},
}
OUR_FLAGS = {OURS: [], PLAIN: ["--draft", "off", "--propose", "off"], STORE: []}
ON_DISK = (STORE, LLAMA_DISK)  # what a second process finds again
VARIANTS = list(OUR_FLAGS) + list(LLAMA_FLAGS)


def greedy(messages, num_tokens, ours, **more):
    """A request of a greedy answer, streamed. llama server's own penalty is 1.1, which changes
    greedy answers; ours is asked for its receipt, whose token ids prove answers equal."""
    body = {"model": "bench", "messages": messages, "max_tokens": num_tokens, "stream": True}
    body |= {"temperature": 0, "seed": 0} | more
    if ours:
        return body | {"stream_options": {"include_usage": True}, "vericache": {"receipt": True}}
    return body | {"repeat_penalty": 1.0}


class Failed(Exception):
    """A server that does not start, answer or stop as it should."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path, body=None, patience_s=5):
    """(status, text) of a GET, or of a POST where there is a body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data,
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def family(pid):
    """A process and all that it has started."""
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


def peak_rss_bytes(pid):
    """Largest resident set so far, of the process and its children."""
    total = 0
    for member in family(pid):
        try:
            text = pathlib.Path(f"/proc/{member}/status").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) * 1024
    return total


class Server:
    """A running server. Its words go to a log, of which a failure shows the end."""

    def __init__(self, name, command, temporary, folder, port, ready_path, port_file=None):
        """temporary: removed with the server. folder: the working directory, where llama server
        puts its disk cache as well."""
        self.name, self.port, self.temporary = name, port, temporary
        self.log = pathlib.Path(temporary.name, "log")
        start = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, cwd=folder)
        try:
            self.wait_ready(ready_path, port_file)
        except BaseException:
            self.kill()
            raise
        self.start_s = time.monotonic() - start

    def wait_ready(self, path, port_file):
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self.fail(f"ended with {self.process.returncode} before it was ready")
            if port_file and port_file.is_file():
                self.port = int(port_file.read_text())
            try:
                if self.port and get(self.port, path)[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.05)
        self.fail(f"not ready within {START_S} s")

    def fail(self, what):
        tail = self.log.read_text("utf-8", "replace")[-600:]
        raise Failed(f"{self.name}: {what}; its last words: {tail}")

    @property
    def pid(self):
        return self.process.pid

    def stop(self):
        """SIGTERM; gives the seconds that it took, None where it had to be killed."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self.temporary.cleanup()
        return time.monotonic() - start

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.temporary.cleanup()


class Maker:
    """Starts the server of a variant."""

    def __init__(self, vericache, peer_python, model, threads, ctx):
        self.vericache, self.peer_python = pathlib.Path(vericache).resolve(), peer_python
        if peer_python and os.sep in peer_python:
            self.peer_python = os.path.abspath(peer_python)  # not resolved: it marks its venv
        self.model, self.threads, self.ctx = pathlib.Path(model).resolve(), threads, ctx

    def command(self, name, folder, store):
        """(command, port, path that answers 200 when ready, file that the port comes in)"""
        if name in OUR_FLAGS:
            port_file = pathlib.Path(folder, "port")
            command = [self.vericache, "serve", "-m", self.model, "--threads", self.threads,
                       "--ctx", self.ctx, "--port", 0, "--port-file", port_file, *OUR_FLAGS[name]]
            command += ["--prefix-store", pathlib.Path(store, "prefixes")] if store else []
            return command, None, "/health", port_file
        flags = {"model": self.model, "host": "127.0.0.1", "port": free_port()}
        flags |= {"n_ctx": self.ctx, "n_threads": self.threads, "n_threads_batch": self.threads}
        flags |= {"n_batch": 512, "interrupt_requests": "false", "verbose": "false"}
        flags |= LLAMA_FLAGS[name]
        command = [self.peer_python, "-m", "llama_cpp.server"]
        for flag, value in flags.items():
            command += [f"--{flag}", value]
        return command, flags["port"], "/v1/models", None

    def start(self, name, store=None):
        """store: a folder for the K/V that a variant keeps on disk."""
        folder = tempfile.TemporaryDirectory()
        command, port, path, port_file = self.command(name, folder.name, store)
        return Server(name, command, folder, store or folder.name, port, path, port_file)


def flags_of(name):
    """The settings of a variant in words, for records."""
    if name in OUR_FLAGS:
        return " ".join(OUR_FLAGS[name])
    return " ".join(f"--{flag} {value}" for flag, value in LLAMA_FLAGS[name].items())


def stop_with_us():
    """SIGTERM ends the benchmark as Ctrl-C does: its server is stopped and not left behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def peer_version(python):
    """What the peer's Python has, "" where it has no server."""
    code = "import llama_cpp.server.app, llama_cpp; print(llama_cpp.__version__)"
    done = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True,
                          env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    return done.stdout.strip() if done.returncode == 0 else ""
