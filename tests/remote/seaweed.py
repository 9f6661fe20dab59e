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
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


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


def main():
    weed, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server, port = start(weed, folder)
        try:
            end = time.monotonic() + 240
            while not answers(port) and server.poll() is None and time.monotonic() < end:
                time.sleep(0.2)
            env = os.environ | {"VERICACHE_TEST_S3": f"http://127.0.0.1:{port}",
                                "VERICACHE_TEST_S3_BUCKET": "prefixes"}
            made = subprocess.run(
                [weed, "shell", f"-master=127.0.0.1:{master_port(server)}"],
                input=b"s3.bucket.create -name prefixes\n", stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=240, check=False)
            if made.returncode != 0:
                sys.stdout.write(made.stdout.decode(errors="replace"))
            status = subprocess.run(command, env=env, check=False).returncode
            if status != 0:
                text = (folder / "weed.log").read_text(errors="replace")
                sys.stdout.write("\n".join(text.splitlines()[-20:]) + "\n")
            return status
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def master_port(server):
    for arg in server.args:
        if arg.startswith("-master.port="):
            return arg.split("=")[1] + "." + next(
                a.split("=")[1] for a in server.args if a.startswith("-master.port.grpc="))
    return ""


if __name__ == "__main__":
    sys.exit(main())
