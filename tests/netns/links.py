"""Machines far apart on one: network namespaces with links of a chosen rate and delay.

    with links.Network() as network:
        node = network.add_node("100mbit", delay_ms=5)
        server = network.store.popen(["redis-server", "--bind", network.store_address(node), ...])
        host, port = node.reach(6379)       # where the node finds the store's port
        node.run(["vericache", "run", ..., f"redis://{host}:{port}"])
        node.link_bytes()                   # (to the node, from the node), as the interface counts

The store's side is one namespace; each node is another, behind a veth pair of its own that `tc tbf`
shapes in both directions. netem is not in every kernel, so delay is made by a relay on the node's
loopback (delay_relay.py). Nothing outside the namespaces can be reached from within.

Needs CAP_NET_ADMIN and CAP_SYS_ADMIN: why_not() says what is missing. Everything is taken down at
the end of the `with`, and processes die with the one that started them; what a SIGKILL left behind
goes when the next Network is made.
"""

import ctypes
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PREFIX = "vericache"
SKIPPED = 77  # exit status of a test that cannot run here (ctest's SKIP_RETURN_CODE)
RATE = re.compile(r"(\d+)(mbit|gbit)")
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count()


class Failed(Exception):
    """A command of iproute2 failed; the message is its words."""


def bits_per_s(rate):
    """"100mbit" as a number. ERRORS: ValueError."""
    found = RATE.fullmatch(rate)
    if not found:
        raise ValueError(f"{rate} is no rate: say 100mbit or 1gbit")
    return int(found.group(1)) * {"mbit": 10**6, "gbit": 10**9}[found.group(2)]


def _call(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def why_not():
    """What keeps namespaces from being made here; "" where they can be."""
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
        if not shutil.which(tool):
            return f"{tool} is missing (apt-get install {package})"
    try:
        with Network() as network:
            network.add_node("100mbit").run(["true"], check=True)
    except (Failed, subprocess.CalledProcessError) as failed:
        return f"{failed}; it needs CAP_NET_ADMIN and CAP_SYS_ADMIN, as root has them"
    return ""


def skip_loudly_unless_possible(what):
    """Ends this process with SKIPPED and a notice that cannot be overlooked."""
    if reason := why_not():
        print(f"!!\n!!  NO NETWORK NAMESPACES: {what} did not run\n!!  {reason}\n!!",
              file=sys.stderr, flush=True)
        sys.exit(SKIPPED)


def _sweep():
    """Removes namespaces of processes that are gone."""
    for line in _call("ip", "netns", "list").splitlines():
        found = re.match(rf"({PREFIX}-(\d+)-\S+)", line)
        if found and not pathlib.Path("/proc", found.group(2)).exists():
            subprocess.run(["ip", "netns", "del", found.group(1)], check=False,
                           stderr=subprocess.DEVNULL)  # another sweep may have been faster


class Namespace:
    """A network of its own, and the processes that were started in it."""

    def __init__(self, role):
        self.name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}-{role}"
        self.processes = []
        _call("ip", "netns", "add", self.name)
        self.ip("link", "set", "lo", "up")

    def ip(self, *words):
        return _call("ip", "-n", self.name, *words)

    def inside(self, command, cores=None):
        """The command line that runs `command` here; cores: as taskset wants them, "0" or "0,1"."""
        pin = ["taskset", "-c", str(cores)] if cores is not None else []
        return ["nsenter", f"--net=/run/netns/{self.name}", *pin, *map(str, command)]

    def popen(self, command, cores=None, **kwargs):
        """Ends with the namespace, and with this process at the latest."""
        process = subprocess.Popen(self.inside(command, cores), preexec_fn=_die_with_parent,
                                   **kwargs)
        self.processes.append(process)
        return process

    def run(self, command, cores=None, check=False, text="", **kwargs):
        """Its output as text; `text` is what it reads on stdin."""
        process = self.popen(command, cores, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, **kwargs)
        out, err = process.communicate(text)
        self.processes.remove(process)
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
        self.processes.clear()
        subprocess.run(["ip", "netns", "del", self.name], check=False, stderr=subprocess.DEVNULL)


class Node(Namespace):
    """A machine on the far side of a link of its own to the store."""

    def __init__(self, store, number, rate, delay_ms):
        super().__init__(f"node{number}")
        self.rate, self.delay_ms, self.number = rate, delay_ms, number
        self.store_address, self.address = f"10.99.{number}.1", f"10.99.{number}.2"
        self.relays = {}
        near, far = f"slow{number}", f"slow{number}s"
        self.device = near
        _call("ip", "link", "add", near, "netns", self.name, "type", "veth", "peer", "name", far,
              "netns", store.name)
        for space, device, address in ((self, near, self.address),
                                       (store, far, self.store_address)):
            space.ip("addr", "add", f"{address}/30", "dev", device)
            space.ip("link", "set", device, "up")
            self.shape(space, device)

    def shape(self, space, device):
        """A bucket of a millisecond, one full-size segment at least; 100 ms of queue."""
        burst = max(80_000, bits_per_s(self.rate) // 8 // 1000)
        _call("tc", "-n", space.name, "qdisc", "add", "dev", device, "root", "tbf", "rate",
              self.rate, "burst", burst, "latency", "100ms")

    def reach(self, port):
        """(host, port) at which this node finds a port of the store's side."""
        if not self.delay_ms:
            return self.store_address, port
        if port not in self.relays:
            relay = self.popen([sys.executable, "-B", HERE / "delay_relay.py", self.store_address,
                                port, self.delay_ms], stdout=subprocess.PIPE, text=True)
            self.relays[port] = int(relay.stdout.readline())
        return "127.0.0.1", self.relays[port]

    def link_bytes(self):
        """(received, sent) since the link was made, frame headers included."""
        (device,) = json.loads(_call("ip", "-n", self.name, "-s", "-j", "link", "show", "dev",
                                     self.device))
        counts = device["stats64"]
        return counts["rx"]["bytes"], counts["tx"]["bytes"]


class Network:
    """The store's side, and nodes behind slow links. Use it in a `with`."""

    def __init__(self):
        self.store, self.nodes = None, []

    def __enter__(self):
        _sweep()
        self.store = Namespace("store")
        return self

    def add_node(self, rate, delay_ms=0):
        """rate: "100mbit"; delay_ms: one way, so that a round trip takes twice as long."""
        bits_per_s(rate)
        try:
            node = Node(self.store, len(self.nodes), rate, delay_ms)
        except BaseException:
            # What a half-made node has created goes with the sweep below.
            _remove_of(os.getpid(), keep=[self.store.name, *(n.name for n in self.nodes)])
            raise
        self.nodes.append(node)
        return node

    def __exit__(self, *unused):
        for space in [*self.nodes, self.store]:
            space.close()
        self.nodes.clear()


def _remove_of(pid, keep):
    for line in _call("ip", "netns", "list").splitlines():
        name = line.split()[0]
        if name.startswith(f"{PREFIX}-{pid}-") and name not in keep:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
