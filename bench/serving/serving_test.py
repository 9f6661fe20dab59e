#!/usr/bin/env python3
"""Tests of run.py, agent_trace.py and their tables with false servers and made-up records."""

import contextlib
import copy
import io
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree
from unittest import mock

import agent_script
import agent_trace
import records
import report
import run
import servers
import serving_plot
import traffic

# Stands in for `vericache serve`, and for a Python with llama_cpp.server. What is wrong with it,
# if anything, comes from the environment.
FALSE = r"""#!/usr/bin/env python3
import hashlib, http.server, json, os, pathlib, sys, time
words, wrong = sys.argv[1:], os.environ.get("FALSE_WRONG", "")
if words[0] == "inspect":
    sys.exit(1)
if words[0] == "-c":
    sys.exit(print("9.9"))
flag = lambda name: words[words.index(name) + 1]
ours = words[0] == "serve"
with open(os.environ["FALSE_LOG"], "a") as log:
    log.write(json.dumps(words) + "\n")
if wrong == "dies":
    sys.exit("no such model")

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *unused):
        pass

    def do_GET(self):
        self.reply(b"{}", "application/json")

    def reply(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        if wrong == "hangs":
            pathlib.Path(os.environ["FALSE_LOG"] + ".pid").write_text(str(os.getpid()) + " ")
            time.sleep(600)
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not ours and request.get("repeat_penalty") != 1:
            return self.send_error(400)
        digest = hashlib.sha256(json.dumps(request["messages"]).encode()).hexdigest()
        count = sum(len(m["content"] or "") // 4 for m in request["messages"])
        for message in request["messages"]:
            for call in message.get("tool_calls", []):
                if not ours:
                    return self.send_error(400)
                written = "<tool_call>\n{\"name\": \"\", \"arguments\": }\n</tool_call>"
                count += len(written + "".join(call["function"].values())) // 4
        drafting = ours and "off" not in words
        bad = wrong == "differs" and drafting
        if not request["stream"]:
            usage = {"prompt_tokens": count + (wrong == "longer")}
            return self.reply(json.dumps({"usage": usage}).encode(), "application/json")
        events = [{"choices": [{"delta": {"content": digest[i]}}]} for i in range(3)]
        if bad:
            events[-1]["choices"][0]["delta"]["content"] = "!"
        events.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if ours:
            receipt = {"token_ids": [1, 2, 4 if bad else 3], "logits_hash": digest}
            usage = {"prompt_tokens": count, "completion_tokens": 3,
                     "prompt_tokens_details": {"cached_tokens": count // 2},
                     "vericache": {"rounds": 2 if drafting else 3, "drafted": 1, "accepted": 1,
                                   "receipt": receipt}}
            events.append({"choices": [], "usage": usage})
        body = "".join("data: " + json.dumps(e) + "\n\n" for e in events) + "data: [DONE]\n\n"
        self.reply(body.encode(), "text/event-stream")

port = 0 if ours else int(flag("--port"))
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
if ours:
    path = pathlib.Path(flag("--port-file"))
    path.with_suffix(".new").write_text(str(server.server_port))
    path.with_suffix(".new").rename(path)
server.serve_forever()
"""


class WithFalseServers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.false = self.folder / "vericache"
        self.false.write_text(FALSE)
        self.false.chmod(self.false.stat().st_mode | stat.S_IXUSR)
        self.model, self.log = self.folder / "model.gguf", self.folder / "log"
        self.model.write_text("model")
        self.results = self.folder / "results.jsonl"

    def run_tool(self, tool, *words, wrong=""):
        command = ["tool", "-m", str(self.model), "--vericache", str(self.false), "--busy-ok",
                   "--peer-python", str(self.false), "-o", str(self.results), *words]
        environment = {"FALSE_LOG": str(self.log), "FALSE_WRONG": wrong}
        self.said = said = io.StringIO()
        with (mock.patch.object(sys, "argv", command), mock.patch.dict(os.environ, environment),
              contextlib.redirect_stdout(said)):
            tool.main()
        return said.getvalue()

    def traffic(self, *words, wrong=""):
        return self.run_tool(run, "--documents", "800,800", "--loads", "2", "--warm", "3", *words,
                             wrong=wrong)

    def found(self):
        return [json.loads(line) for line in self.results.read_text().splitlines()]

    def started(self):
        if not self.log.is_file():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]


class Traffic(WithFalseServers):
    def test_one_server_at_a_time_each_with_the_same_requests(self):
        said = self.traffic()
        self.assertEqual(len(self.started()), 3)
        self.assertIn("--draft", self.started()[1])
        ours, plain, llama = self.found()
        self.assertEqual([r["variant"] for r in (ours, plain, llama)], run.DEFAULT)
        self.assertEqual([len(ours["phases"][p]["requests"]) for p in ("cold", "warm")], [2, 3])
        ids = [[r["id"] for r in run.requests_of(x)] for x in (ours, plain, llama)]
        self.assertEqual(ids[0], ids[1])
        self.assertEqual(ids[0], ids[2])
        self.assertEqual(len(set(ids[0])), 5)
        self.assertIn("tok/s", said)

    def test_a_run_that_was_stopped_goes_on(self):
        self.traffic()
        lines = self.results.read_text().splitlines(True)
        self.results.write_text("".join(lines[:2]) + lines[2][:40])
        self.traffic()
        self.assertEqual(len(self.started()), 4)  # the last one once more
        self.assertEqual(len(self.found()), 3)
        with self.assertRaisesRegex(SystemExit, "another num_tokens"):
            self.traffic("--tokens", "7")

    def test_the_first_place_goes_round(self):
        self.traffic("--repeats", "2", "--variants", f"{servers.OURS}; {servers.PLAIN}")
        self.assertEqual([r["variant"] for r in self.found()[2:]], [servers.PLAIN, servers.OURS])

    def test_unequal_answers_have_no_times(self):
        with self.assertRaisesRegex(SystemExit, "not bit for bit"):
            self.traffic(wrong="differs")
        self.assertNotIn("tok/s", self.said.getvalue())
        with self.assertRaisesRegex(SystemExit, "answers differ, no table"):
            report.tables(self.found())

    def test_a_prompt_read_as_other_tokens_has_no_times(self):
        with self.assertRaisesRegex(SystemExit, "unequal work"):
            self.traffic(wrong="longer")

    def test_a_server_that_dies_says_why(self):
        with self.assertRaisesRegex(SystemExit, "no such model"):
            self.traffic(wrong="dies")

    def test_a_run_that_is_ended_leaves_no_server_behind(self):
        command = [sys.executable, "-B", run.__file__, "-m", self.model, "--vericache", self.false,
                   "--variants", f"{servers.OURS}; {servers.PLAIN}", "--busy-ok",
                   "-o", self.results]
        environment = {"FALSE_LOG": str(self.log), "FALSE_WRONG": "hangs"}
        pid_file = pathlib.Path(f"{self.log}.pid")
        with subprocess.Popen(command, env=os.environ | environment) as process:
            try:
                end = time.monotonic() + 100
                while time.monotonic() < end and not self.text_of(pid_file).endswith(" "):
                    time.sleep(0.02)
                process.terminate()
                self.assertEqual(process.wait(100), 128 + signal.SIGTERM)
            finally:
                process.kill()
        self.assertFalse(pathlib.Path("/proc", self.text_of(pid_file).strip()).exists())

    def text_of(self, path):
        return path.read_text() if path.is_file() else ""

    def test_arrivals(self):
        self.run_tool(run, "--documents", "800", "--loads", "100/s", "--cold", "2", "--warm", "2")
        self.assertEqual({r["load"] for r in self.found()}, {"100/s"})
        self.assertIn("100 arrivals a second", report.tables(self.found()))

    def test_what_is_refused(self):
        for words, why in ((["--variants", "x"], "no variant x"),
                           (["--variants", servers.OURS], "equal answers"),
                           (["--peer-python", "/bin/false"], "llama-cpp-python"),
                           (["--vericache", "/nowhere"], "no command")):
            with self.assertRaisesRegex(SystemExit, why):
                self.traffic(*words)

    def test_a_busy_machine_is_refused(self):
        with mock.patch.object(records.quiet, "share_now", lambda: 0.5):
            args = mock.Mock(variants=run.DEFAULT, vericache=self.false, busy_ok=False,
                             peer_python=str(self.false))
            with mock.patch.dict(os.environ, {"FALSE_LOG": str(self.log)}):
                with self.assertRaisesRegex(SystemExit, "50%"):
                    records.check(args)


class Agent(WithFalseServers):
    def test_all_variants_and_the_store_twice(self):
        said = self.run_tool(agent_trace)
        found = self.found()
        self.assertEqual([(r["variant"], r["server"]) for r in found], [
            (servers.OURS, agent_trace.FIRST), (servers.PLAIN, agent_trace.FIRST),
            (servers.STORE, agent_trace.FIRST), (servers.STORE, agent_trace.AGAIN),
            (servers.LLAMA, agent_trace.FIRST)])
        self.assertEqual({len(r["requests"]) for r in found}, {10})
        stores = [words[words.index("--prefix-store") + 1] for words in self.started()
                  if "--prefix-store" in words]
        self.assertEqual(len(stores), 2)
        self.assertEqual(stores[0], stores[1])
        self.assertIn("started again", said)
        made = report.tables(found)
        self.assertIn("ten turns", made)

    def test_half_a_store_is_measured_again(self):
        ours = ["--variants", "; ".join([servers.OURS, servers.PLAIN, servers.STORE])]
        self.run_tool(agent_trace, *ours)
        lines = self.results.read_text().splitlines(True)
        self.results.write_text("".join(lines[:3]))
        self.run_tool(agent_trace, *ours)
        self.assertEqual(len(self.found()), 4)
        self.assertEqual(len(self.started()), 4 + 2)

    def test_unequal_answers_have_no_times(self):
        with self.assertRaisesRegex(SystemExit, "not bit for bit"):
            self.run_tool(agent_trace, "--variants", f"{servers.OURS}; {servers.PLAIN}",
                          wrong="differs")


    def test_a_prompt_read_as_other_tokens_has_no_times(self):
        with self.assertRaisesRegex(SystemExit, "unequal work"):
            self.run_tool(agent_trace, "--variants",
                          "; ".join([servers.OURS, servers.PLAIN, servers.LLAMA]), wrong="longer")
        self.assertNotIn("first text", self.said.getvalue())


class Script(unittest.TestCase):
    def test_each_turn_begins_as_the_one_before(self):
        turns = list(agent_script.turns(8192))
        self.assertEqual(len(turns), 10)
        for before, after in zip(turns, turns[1:]):
            self.assertEqual(after[:len(before)], before)
            self.assertEqual([m["role"] for m in after[len(before):]], ["assistant", "tool"])

    def test_calls_are_of_the_tools(self):
        known = {t["function"]["name"]: t["function"]["parameters"]["required"]
                 for t in agent_script.TOOLS}
        used = set()
        for name, arguments, result in agent_script.steps(agent_script.Repository(8192)):
            self.assertEqual(sorted(arguments), sorted(known[name]))
            self.assertNotEqual(result, "no lines")
            used.add(name)
        self.assertEqual(used, set(known))

    def test_questions_differ(self):
        asked = traffic.Traffic([1200, 1200]).take(24)
        self.assertEqual(len({r.messages[1]["content"] for r in asked}), 24)
        self.assertEqual(len({r.messages[0]["content"] for r in asked}), 2)


def request(number, ttft, tokens=3, gap=100.0):
    return {"id": f"r{number}", "start_ms": 0.0, "ttft_ms": ttft, "gaps_ms": [gap] * (tokens - 1),
            "end_to_end_ms": ttft + gap * (tokens - 1), "tokens": tokens, "text": "abc",
            "finish_reason": "length", "text_sha256": "x", "token_ids": [1] * tokens,
            "logits_hash": "h", "prompt_tokens": 1000, "cached_tokens": 900, "rounds": 2,
            "drafted": 2, "accepted": 1}


def part(wall, requests, others=0.01):
    generator = {"wall_s": wall, "cpu_s": 0.02, "late_p99_s": 0.001, "late_max_s": 0.002}
    return {"wall_s": wall, "others_cpu_share": others, "generator": generator,
            "requests": requests}


def common(benchmark, variant):
    return {"benchmark": benchmark, "variant": variant, "repeat": 0, "commit": "0" * 40,
            "uncommitted_changes": False, "cpu": "CPU", "cores": 2, "compiler": "c++",
            "peer_version": "1.0", "model": "m.gguf", "threads": 2, "label": "", "num_tokens": 3,
            "time": "2026-01-01T00:00:00+00:00", "peak_rss_bytes": 100 << 20}


def traffic_record(variant, scale, others=0.01):
    """Two cold requests at 1 and 3 s, four warm ones at 0.1 to 0.4 s, times `scale`."""
    cold = [request(i, 1000.0 * scale * (2 * i + 1)) for i in range(2)]
    warm = [request(2 + i, 100.0 * scale * (i + 1)) for i in range(4)]
    phases = {"cold": part(6.0 * scale, cold, others), "warm": part(1.2 * scale, warm, others)}
    return common("traffic", variant) | {"load": "4", "documents": [4096], "phases": phases}


class Tables(unittest.TestCase):
    def setUp(self):
        self.found = [traffic_record(servers.OURS, 1), traffic_record(servers.PLAIN, 2),
                      traffic_record(servers.LLAMA, 4)]

    def test_figures_by_hand(self):
        made = report.tables(self.found, ["traffic"])
        # 6 tokens in 6 s; of 1 and 3 s the nearest ranks; gaps of 100 ms.
        self.assertIn("| cold: vericache | 2 | 6 | 6.0 | 1.0 | 1.00 / 3.00 | 100.0 / 100.0 | 100.0 "
                      "|", made)
        # 12 tokens in 1.2 s; of 0.1 to 0.4 s.
        self.assertIn("| warm: vericache | 4 | 12 | 1.2 | 10.0 | 0.20 / 0.40 |", made)
        self.assertIn("| warm: llama server | 4 | 12 | 4.8 | 2.5 | 0.80 / 1.60 |", made)

    def test_ratios(self):
        made = report.tables(self.found, ["ratios"])
        self.assertIn("| 4 clients, warm: vericache / llama server | 4.00x | 4.00x | 4.00x |", made)
        self.assertIn("warm: vericache, draft off / llama server | 2.00x | 2.00x | 2.00x |", made)

    def test_no_ratio_to_a_peer_of_a_busy_machine(self):
        self.found[2] = traffic_record(servers.LLAMA, 4, others=0.5)
        self.assertNotIn("x |", report.tables(self.found, ["ratios"]))

    def test_the_better_peer_counts(self):
        self.found.append(traffic_record(servers.LLAMA_FLASH_OFF, 3))
        self.assertIn("flash attention off | 3.00x", report.tables(self.found, ["ratios"]))

    def test_answers(self):
        made = report.tables(self.found, ["answers"])
        self.assertIn("| 4 clients | vericache | 1,000-1,000 | 90% | 1.0 | 100 | 6 of 6, bit for "
                      "bit |", made)
        self.found[2]["phases"]["cold"]["requests"][0]["text"] = "other"
        self.assertIn("| 5 of 6 |", report.tables(self.found, ["answers"]))

    def test_caption_tells_of_the_generator_and_of_others(self):
        made = report.tables(self.found, ["caption"])
        self.assertIn("at most 0.8% of the cores", made)  # 0.02 s of 1.2 s on two cores
        self.assertIn("Other work took 1% to 1%", made)
        self.assertNotIn("stopped", made)
        self.found[1]["phases"]["warm"]["generator"]["late_max_s"] = 52.0
        self.assertIn("stopped for 52 s", report.tables(self.found, ["caption"]))

    def test_another_answer_has_no_table(self):
        other = copy.deepcopy(self.found)
        other[0]["phases"]["warm"]["requests"][0]["logits_hash"] = "i"
        with self.assertRaisesRegex(SystemExit, "differ"):
            report.tables(other)

    def test_a_document_that_was_changed_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "a.jsonl")
            path.write_text("".join(json.dumps(r) + "\n" for r in self.found))
            text = "<!-- serving ratios: a.jsonl -->\n<!-- end -->\n"
            made = report.filled(text, pathlib.Path(folder))
            self.assertIn("4.00x", made)
            self.assertNotEqual(report.filled(made.replace("4.00x", "5.00x"), pathlib.Path(folder)),
                                made.replace("4.00x", "5.00x"))
            path.unlink()
            self.assertIn("Not measured yet", report.filled(text, pathlib.Path(folder)))

    def test_agent_by_hand(self):
        found = []
        for name, scale in ((servers.OURS, 1), (servers.PLAIN, 1), (servers.LLAMA, 3)):
            turns = [request(i, (1000.0 if i == 0 else 100.0 * i) * scale) for i in range(10)]
            found.append(common("agent", name) | part(5.0 * scale, turns)
                         | {"server": agent_trace.FIRST, "repository": 8192})
        made = report.tables(found)
        self.assertIn("| vericache | 5.0 | 3.00x | 1.00 | 0.50 / 0.90 | 30 | 1,000 | 1.0 | 100 |",
                      made)
        self.assertIn("| llama server | 3.00 | 0.30 | 0.60 |", made)


class Plot(unittest.TestCase):
    def test_dots_of_all_requests_inside_the_picture(self):
        found = [traffic_record(servers.OURS, 1), traffic_record(servers.PLAIN, 2),
                 traffic_record(servers.LLAMA, 4)]
        root = xml.etree.ElementTree.fromstring(serving_plot.svg(found))
        dots = root.findall("{http://www.w3.org/2000/svg}circle")
        self.assertEqual(len(dots), 3 * 6)
        for dot in dots:
            self.assertTrue(serving_plot.LEFT <= float(dot.get("cx")) <= serving_plot.WIDTH)
            self.assertTrue(0 < float(dot.get("cy")) < float(root.get("height")))
        ours, theirs = (d.get("cx") for d in (dots[0], dots[4]))
        self.assertLess(float(ours), float(theirs))  # sooner is to the left


if __name__ == "__main__":
    unittest.main()
