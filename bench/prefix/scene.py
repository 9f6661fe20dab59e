"""The machines of a round: nodes behind slow links, the store and what stands beside it.

Every node and the store's side get cores of their own, by taskset, and as many threads as cores: on
one machine they would otherwise lend each other what real machines cannot.
"""

import contextlib
import json
import subprocess
import sys
import tempfile

import bench_path
import far_side
import links

CLIENT = bench_path.BENCH / "prefix/client.py"
NODE_PORT, FAR_PORT, VERIFIER_PORT = 8080, 8081, 8090
PROBE = """
import socket, sys, time
if sys.argv[1] == "serve":
    with socket.create_server(("0.0.0.0", 9)) as server:
        print("ready", flush=True)
        with server.accept()[0] as s:
            s.sendall(b"x" * int(sys.argv[2]))
else:
    begin, count = time.monotonic(), 0
    with socket.create_connection((sys.argv[2], 9)) as s:
        while data := s.recv(1 << 18):
            count += len(data)
    print(count * 8 / (time.monotonic() - begin))
"""


class Failed(Exception):
    """A variant that gave no answer; the message says why."""


class Features:
    """Which of the flags that variants need this build knows."""

    def __init__(self, vericache):
        self.vericache, self.texts = vericache, {}

    def has(self, command, flag):
        if command not in self.texts:
            done = subprocess.run([self.vericache, command, "--help"], capture_output=True,
                                  text=True, check=False)
            self.texts[command] = done.stdout
        return flag in self.texts[command]


def num_cores(cores):
    """taskset's list: "0", "0,2", "4-7"."""
    total = 0
    for part in str(cores).split(","):
        low, _, high = part.partition("-")
        total += int(high or low) - int(low) + 1
    return total


class Scene:
    """A network with one Redis; servers come and go with each variant."""

    def __init__(self, args, prefix, rate, num_nodes):
        self.args, self.prefix, self.rate, self.num_nodes = args, prefix, rate, num_nodes
        self.node_cores, self.far_cores = args.node_cores, args.far_cores
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        try:
            self.network = self.stack.enter_context(links.Network())
            self.folder = self.stack.enter_context(tempfile.TemporaryDirectory())
            self.nodes = [self.network.add_node(self.rate, self.args.delay_ms)
                          for _ in range(self.num_nodes)]
            self.redis = far_side.Redis(self.network.store, self.prefix.redis_folder,
                                        self.far_cores)
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *unused):
        self.stack.close()

    def cores_of(self, node):
        return self.node_cores[self.nodes.index(node) % len(self.node_cores)]

    def probe(self, node):
        """Bits a second of the link, now."""
        count = max(1_000_000, links.bits_per_s(self.rate) // 8)
        sender = self.network.store.popen([sys.executable, "-c", PROBE, "serve", count],
                                          stdout=subprocess.PIPE, text=True)
        sender.stdout.readline()
        done = node.run([sys.executable, "-c", PROBE, "fetch", node.store_address], check=True)
        return float(done.stdout)

    def flags(self, command, cores):
        args = self.args
        return [args.vericache, command, "-m", args.model_path, "--threads", num_cores(cores),
                "--ctx", args.ctx]

    def store_flags(self, node=None):
        host_port = (node.reach(far_side.REDIS_PORT) if node
                     else ("127.0.0.1", far_side.REDIS_PORT))
        return ["--prefix-store", far_side.redis_url(host_port), "--prefix-store-mode", "ro"]

    @contextlib.contextmanager
    def far(self, command, port, *more):
        """serve or verifier beside the store."""
        words = [*self.flags(command, self.far_cores), *self.store_flags(), *more]
        process = far_side.Process(self.network.store, self.folder, words, port,
                                   cores=self.far_cores)
        try:
            yield process
        finally:
            process.stop()

    @contextlib.contextmanager
    def serving(self, node, *more):
        """serve on a node, for those on the node."""
        cores = self.cores_of(node)
        words = [*self.flags("serve", cores), *more]
        process = far_side.Process(node, f"{self.folder}/{node.name}", words, NODE_PORT,
                                   "127.0.0.1", cores)
        try:
            yield process
        finally:
            process.stop()

    def verifier_flags(self, node):
        key = f"{self.folder}/verifier.key"
        with open(key, "w", encoding="utf-8") as f:
            f.write(far_side.KEY + "\n")
        host, port = node.reach(VERIFIER_PORT)
        return ["--verifier", f"http://{host}:{port}", "--verifier-key-file", key]

    def bodies(self, questions, draft):
        for question in questions:
            text = f"{self.prefix.text}\n\n{question.text}"
            yield {"model": "bench", "messages": [{"role": "user", "content": text}],
                   "max_tokens": self.prefix.num_tokens, "stream": True, "temperature": 0,
                   "seed": 0, "stream_options": {"include_usage": True},
                   "vericache": {"receipt": True, "draft": draft}}

    def ask(self, asked, clients):
        """asked: [(node, address or None for its own server, questions, draft)], all at once.

        Gives [answers of each], the wall seconds of the slowest, and bytes moved to nodes and from
        nodes meanwhile. ERRORS: Failed.
        """
        before = [node.link_bytes() for node in self.nodes]
        running = []
        for node, address, questions, draft in asked:
            host, port = address or ("127.0.0.1", NODE_PORT)
            key = far_side.KEY if address else ""
            requests = [{"host": host, "port": port, "key": key, "body": body}
                        for body in self.bodies(questions, draft)]
            process = node.popen([sys.executable, "-B", CLIENT], self.cores_of(node),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            process.stdin.write(json.dumps({"requests": requests, "clients": clients}))
            running.append(process)
        for process in running:
            process.stdin.close()
        found = [json.loads(process.stdout.read()) for process in running]
        after = [node.link_bytes() for node in self.nodes]
        for part, (_, _, _, draft) in zip(found, asked):
            for answer in part["answers"]:
                if "error" in answer:
                    raise Failed(answer["error"])
                if (used := answer["stats"].get("draft")) != draft:
                    raise Failed(f"asked for the draft {draft}, got {used}")
        down, up = (sum(a[i] - b[i] for a, b in zip(after, before)) for i in (0, 1))
        return ([part["answers"] for part in found], max(part["wall_s"] for part in found), down,
                up)

    def run_once(self, node, question, draft, *more):
        """`vericache run` on a node: an answer as ask() gives it, by the command's own times."""
        before = node.link_bytes()
        done = node.run([*self.flags("run", self.cores_of(node)), "-f", self.prefix.file, "-p",
                         question.text, "-n", self.prefix.num_tokens, "--draft", draft, "--json",
                         *more], self.cores_of(node))
        after = node.link_bytes()
        if done.returncode != 0:
            raise Failed(done.stderr.strip()[-300:])
        found = json.loads(done.stdout)
        times = found["stats"]["times"]
        told = [line for line in done.stderr.splitlines() if line.startswith(("remote", "prefix"))]
        answer = {"start_s": 0.0, "first_s": times["first_token_s"], "total_s": times["end_s"],
                  "token_ids": found["token_ids"], "logits_hash": found["logits_hash"],
                  "stats": {k: found["stats"][k] for k in
                            ("rounds", "drafted", "accepted", "kept_fraction", "draft_bytes",
                             "full_bytes")} | {"told": told},
                  "cached_tokens": found["usage"]["cached_tokens"]}
        return answer, after[0] - before[0], after[1] - before[1]
