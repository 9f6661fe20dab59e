"""What stands on the store's side of a links.Network: a Redis, and vericache beside it.

Tests and bench/prefix share it. Each takes the place that the network gives it and is gone with it.
"""

import pathlib
import signal
import subprocess
import time

PATIENCE_S = 300  # for a start on a busy machine
REDIS_PORT = 6379
KEY = "a-key-for-the-link"


class Failed(Exception):
    """A server that does not start, or ends; the message has its last words."""


def tail_of(path, count=600):
    return path.read_text("utf-8", "replace")[-count:] if path.is_file() else ""


class Redis:
    """A redis-server on all addresses of a namespace, which keeps what save() wrote."""

    def __init__(self, space, folder, cores=None):
        self.space, self.folder, self.cores = space, pathlib.Path(folder), cores
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self):
        with open(self.folder / "redis.log", "wb") as log:
            self.process = self.space.popen(
                ["redis-server", "--port", REDIS_PORT, "--bind", "0.0.0.0", "--protected-mode",
                 "no", "--save", "", "--appendonly", "no", "--rdbcompression", "no", "--dir",
                 self.folder], self.cores, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE_S
        while self.call("PING") != "PONG":  # LOADING while it reads its file
            if self.process.poll() is not None or time.monotonic() > end:
                raise Failed(f"redis-server: {tail_of(self.folder / 'redis.log')}")
            time.sleep(0.05)

    def call(self, *words):
        done = self.space.run(["redis-cli", "-p", REDIS_PORT, *words])
        return done.stdout.strip()

    def save(self):
        if self.call("SAVE") != "OK":
            raise Failed(f"redis-server did not save: {tail_of(self.folder / 'redis.log')}")

    def stop(self):
        """By force: what was not saved is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def redis_url(address, more=""):
    """Patient, unless `more` says otherwise: what is found must not hang on a busy machine."""
    host, port = address
    return f"redis://{host}:{port}/0?wait_ms=600000&timeout_ms=600000{more}"


class Process:
    """`vericache verifier` or `vericache serve` in a namespace, ready to be asked on its port."""

    def __init__(self, space, folder, command, port, host="0.0.0.0", cores=None, env=None):
        """command: the words from the binary on, without host, port and keys. host 127.0.0.1: for
        the namespace alone, without a key."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{command[1]}-{port}"
        self.log, self.port = folder / f"{name}.log", port
        port_file, self.key_file = folder / f"{name}.port", folder / "key"
        self.key_file.write_text(KEY + "\n")
        port_file.unlink(missing_ok=True)
        command = [*command, "--host", host, "--port", port, "--port-file", port_file]
        command += ["--api-key-file", self.key_file] if host != "127.0.0.1" else []
        with open(self.log, "wb") as log:
            self.process = space.popen(command, cores, stdout=subprocess.DEVNULL, stderr=log,
                                       env=env)
        end = time.monotonic() + PATIENCE_S
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise Failed(f"{name}: {tail_of(self.log)}")
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
