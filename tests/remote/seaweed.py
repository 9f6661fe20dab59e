#!/usr/bin/env python3
"""Runs a command beside a SeaweedFS S3 server that verifies signatures.

    seaweed.py WEED COMMAND...

VERICACHE_TEST_S3 and VERICACHE_TEST_S3_BUCKET tell the command where it is; the key is "testkey",
the secret "testsecret". The server is ended by SIGKILL: it ignores SIGTERM, and would keep its
port.
"""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


STARTS = 5
START_S = 240


def free_ports(count):
    """Below the range that clients' own ports come from: else a connection of another test may
    take one between now and the start of the server."""
    found, sockets = [], []
    while len(found) < count:
        s = socket.socket()
        port = random.randrange(20000, 32000)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            s.close()
            continue
        found.append(port)
        sockets.append(s)
    for s in sockets:
        s.close()
    return found


def answers(port):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def start(weed, folder):
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
             "filer.port.grpc", "s3.port", "s3.port.grpc")
    ports = dict(zip(names, free_ports(len(names))))
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [
        {"name": "test", "credentials": [{"accessKey": "testkey", "secretKey": "testsecret"}],
         "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}))
    (folder / "data").mkdir()
    command = [weed, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
               "-s3", f"-s3.config={config}", "-volume.max=20", "-master.volumeSizeLimitMB=100"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    with open(folder / "weed.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder,
                                  start_new_session=True)
    return server, ports["s3.port"]


def stop(server):
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def start_until_ready(weed, folder):
    """A server that answers and has its bucket. One that ends (a port was taken) is started again.

    Answering is not enough: on a busy machine its parts find each other much later.
    """
    for attempt in range(STARTS):
        own = folder / str(attempt)
        own.mkdir()
        server, port = start(weed, own)
        end = time.monotonic() + START_S
        while server.poll() is None and time.monotonic() < end:
            if answers(port) and has_bucket(weed, server):
                return server, port, own
            time.sleep(0.2)
        sys.stdout.write(f"start {attempt + 1} of the S3 server failed:\n{last_words(own)}\n")
        stop(server)
    raise SystemExit("the S3 server does not start")


def has_bucket(weed, server):
    try:
        done = subprocess.run(
            [weed, "shell", f"-master=127.0.0.1:{master_port(server)}"],
            input=b"s3.bucket.create -name prefixes\ns3.bucket.list\n", stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return False
    # Its exit status is 0 whatever happened; the list has lines such as "  prefixes\tsize:0 ...".
    return any(line.split()[:1] == [b"prefixes"] for line in done.stdout.splitlines())


def last_words(folder):
    text = (folder / "weed.log").read_text(errors="replace")
    return "\n".join(text.splitlines()[-20:])


def main():
    weed, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        server, port, folder = start_until_ready(weed, pathlib.Path(name))
        try:
            env = os.environ | {"VERICACHE_TEST_S3": f"http://127.0.0.1:{port}",
                                "VERICACHE_TEST_S3_BUCKET": "prefixes"}
            status = subprocess.run(command, env=env, check=False).returncode
            if status != 0:
                sys.stdout.write(last_words(folder) + "\n")
            return status
        finally:
            stop(server)


def master_port(server):
    for arg in server.args:
        if arg.startswith("-master.port="):
            return arg.split("=")[1] + "." + next(
                a.split("=")[1] for a in server.args if a.startswith("-master.port.grpc="))
    return ""


if __name__ == "__main__":
    sys.exit(main())
