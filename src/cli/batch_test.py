#!/usr/bin/env python3
"""`vericache batch` from outside, on tiny random models. Standard library only.

    src/cli/batch_test.py VERICACHE_BINARY
"""

import json
import re
import signal
import subprocess
import time

from cli_fixture import GOLDEN, LLAMA, QWEN, TEXT, CliTest, main

WIDE = GOLDEN / "llama_head_dim.gguf"  # heads of 32 channels, which integer codecs want
# What must not depend on who else was in the batch.
ANSWER = ("text", "token_ids", "logits_hash", "finish_reason")
REQUESTS = (
    {"custom_id": "greedy", "prompt": TEXT, "max_tokens": 24},
    {"custom_id": "warm", "prompt": TEXT + " one", "max_tokens": 30, "temperature": 0.9,
     "seed": 7, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
    {"prompt": "Short.", "max_tokens": 9, "draft": "off"},
    {"custom_id": "other", "prompt": TEXT * 2, "max_tokens": 40, "draft": "int4", "draft_len": 5,
     "priority": 3},
    {"custom_id": "same", "prompt": TEXT, "max_tokens": 24},
    {"custom_id": "none", "prompt": TEXT, "max_tokens": 0},
)


class Batch(CliTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "answers.jsonl"
        self.part = self.folder / "answers.jsonl.part"

    def requests(self, *requests):
        path = self.folder / "requests.jsonl"
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n"
                                for r in requests))
        return path

    def command(self, requests, *flags, model=WIDE):
        return ("batch", "-m", model, "--threads", 2, "-f", requests, "-o", self.out, *flags)

    def lines(self):
        return self.out.read_text().splitlines()

    def answers(self, requests, *flags, model=WIDE):
        """The answers, and what was told on stderr."""
        done = self.ok(*self.command(requests, *flags, model=model))
        self.assertFalse(self.part.exists())
        return [json.loads(line) for line in self.lines()], done.err

    def run_alone(self, request, model=WIDE):
        names = {"temperature": "--temp", "seed": "--seed", "top_k": "--top-k", "top_p": "--top-p",
                 "min_p": "--min-p", "draft": "--draft", "draft_len": "--draft-len",
                 "max_tokens": "-n", "prompt": "-p"}
        flags = [part for key, value in request.items() if key in names
                 for part in (names[key], value)]
        return self.run_json("--raw", "--threads", 2, *flags, model=model)

    def check(self, answers, requests, model=WIDE):
        self.assertEqual([a["custom_id"] for a in answers],
                         [r.get("custom_id") for r in requests])
        for answer, request in zip(answers, requests):
            with self.subTest(request=request.get("custom_id")):
                alone = self.run_alone(request, model=model)
                self.assertIsNone(answer["error"])
                self.assertEqual({k: answer[k] for k in ANSWER}, {k: alone[k] for k in ANSWER})
                self.assertEqual(set(answer) - set(alone),
                                 {"custom_id", "error", "request_digest"})
                self.assertEqual(set(answer["stats"]), set(alone["stats"]))
                stats = answer["stats"]
                if stats["rounds"] > 1:
                    self.assertEqual(stats["choice"]["plain_rounds"] +
                                     stats["choice"]["drafted_rounds"], stats["rounds"])
                    self.assertIn(stats["choice"]["mode"], ("plain", "draft-kv", "ngram",
                                                              "ngram+draft-kv"))
                self.assertEqual(answer["usage"]["prompt_tokens"],
                                 alone["usage"]["prompt_tokens"])

    def test_every_answer_is_that_of_run(self):
        for model in (WIDE, LLAMA, QWEN):
            requests = self.requests(*REQUESTS)
            answers, err = self.answers(requests, model=model)
            self.check(answers, REQUESTS, model)
            self.assertRegex(err, r"batch +6 requests: 6 computed; ")
            self.assertRegex(err, r"answers +\d+ tokens, .* tok/s; \d+ passes, \d at once at most")
            self.out.unlink()

    def test_no_way_of_running_changes_an_answer(self):
        requests = self.requests(*REQUESTS)
        plain, _ = self.answers(requests)
        for flags in (("--lock-step",), ("--max-running", 1), ("--max-running", 2),
                      ("--max-burst-ms", 1), ("--kv-memory", "600KiB"),
                      ("--kv-memory", "600KiB", "--lock-step"), ("--chunk", 16),
                      ("--prefix-store", self.folder / "prefixes")):
            with self.subTest(flags=flags):
                self.out.unlink()
                answers, _ = self.answers(requests, *flags)
                for a, b in zip(answers, plain):
                    self.assertEqual({k: a[k] for k in ANSWER}, {k: b[k] for k in ANSWER})

    def test_other_proposals_change_nothing(self):
        requests = self.requests(*REQUESTS)
        plain, _ = self.answers(requests)
        for flags in (("--propose", "ngram", "--draft-len", 6),
                      ("--propose", "model", "--draft-model", WIDE, "--draft-len", 6),
                      ("--propose", "off", "--draft-len", 6)):
            with self.subTest(flags=flags):
                self.out.unlink()
                answers, _ = self.answers(requests, *flags)
                self.assertEqual([{k: a[k] for k in ANSWER} for a in answers],
                                 [{k: a[k] for k in ANSWER} for a in plain])
                modes = {m["mode"] for a in answers for m in a["stats"]["modes"]}
                wanted = {"off": set(), "ngram": {"ngram", "ngram+draft-kv"},
                          "model": {"draft-model", "draft-model+draft-kv"}}[flags[1]]
                self.assertLessEqual(modes, wanted | {"plain", "draft-kv"})
                self.assertTrue(modes & wanted or not wanted, modes)

    def test_ignore_eos(self):
        requests = self.requests({"prompt": TEXT, "max_tokens": 300, "temperature": 2, "seed": 1})
        answers, _ = self.answers(requests, "--ignore-eos")
        self.assertEqual(answers[0]["usage"]["completion_tokens"], 300)
        alone = self.run_json("--raw", "-p", TEXT, "-n", 300, "--temp", 2, "--seed", 1,
                              "--ignore-eos", model=WIDE)
        self.assertEqual(alone["token_ids"], answers[0]["token_ids"])

    def test_flags_are_the_defaults_of_the_lines(self):
        requests = self.requests({"prompt": TEXT}, {"prompt": TEXT, "seed": 5, "max_tokens": 4})
        flags = ("-n", 12, "--temp", 0.8, "--seed", 9, "--draft", "int8")
        answers, _ = self.answers(requests, *flags)
        for answer, own in zip(answers, ({}, {"seed": 5, "max_tokens": 4})):
            alone = self.run_alone({"prompt": TEXT, "max_tokens": 12, "temperature": 0.8,
                                    "seed": 9, "draft": "int8"} | own)
            self.assertEqual({k: answer[k] for k in ANSWER}, {k: alone[k] for k in ANSWER})

    def test_chats_go_through_the_template(self):
        model = self.chat_model()
        requests = self.requests(
            {"custom_id": "q", "question": TEXT, "max_tokens": 8},
            {"custom_id": "m", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 8},
            {"custom_id": "s", "messages": [{"role": "system", "content": "Be brief."},
                                            {"role": "user", "content": "Hi"}], "max_tokens": 8})
        answers, _ = self.answers(requests, model=model)
        alone = self.run_json("-p", TEXT, "-n", 8, model=model)
        for answer in answers[:2]:
            self.assertEqual({k: answer[k] for k in ANSWER}, {k: alone[k] for k in ANSWER})
        self.assertEqual(answers[2]["text"], self.run_json("-p", "Hi", "--system", "Be brief.",
                                                           "-n", 8, model=model)["text"])

    def test_a_second_run_computes_only_what_changed(self):
        requests = self.requests(*REQUESTS)
        self.answers(requests)
        before = self.lines()
        _, err = self.answers(requests)
        self.assertIn("6 requests: 0 computed, 6 kept;", err)
        self.assertEqual(self.lines(), before)
        changed = [dict(r) for r in REQUESTS]
        changed[1]["seed"] = 8
        changed.reverse()
        answers, err = self.answers(self.requests(*changed))
        self.assertIn("6 requests: 1 computed, 5 kept;", err)
        self.assertIn("note: 1 of the 6 answers in", err)
        self.check(answers, changed)
        self.assertEqual([l for l in reversed(self.lines()) if '"warm"' not in l],
                         [l for l in before if '"warm"' not in l])
        _, err = self.answers(requests, model=QWEN)
        self.assertIn("6 requests: 6 computed;", err)

    def test_a_damaged_line_is_computed_again(self):
        requests = self.requests(*REQUESTS)
        answers, _ = self.answers(requests)
        before = self.lines()
        whole = self.out.read_bytes()
        for damaged in (whole[:-20], whole[:len(whole) // 2] + b"\0\xff" + whole[len(whole) // 2:],
                        whole.replace(b'"token_ids"', b'"token_idx"', 1)):
            self.out.write_bytes(damaged)
            again, err = self.answers(requests)
            self.assertRegex(err, r"6 requests: [123] computed, [345] kept;")
            self.assertEqual([{k: a[k] for k in ANSWER} for a in again],
                             [{k: a[k] for k in ANSWER} for a in answers])
            self.assertGreaterEqual(len(set(before) & set(self.lines())), 3)
            self.out.write_bytes(whole)

    def many(self):
        return [{"custom_id": f"r{i}", "prompt": TEXT + str(i), "max_tokens": 200}
                for i in range(24)]

    def start_and_wait(self, requests, *flags, lines=3):
        """A running batch of which `lines` answers are there, one at a time, in order."""
        process = subprocess.Popen(
            [str(a) for a in (self.binary, *self.command(requests, "--max-running", 1, *flags))],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self.environment(),
            cwd=self.folder)
        end = time.monotonic() + 100
        while not (self.part.exists() and self.part.read_bytes().count(b"\n") >= lines):
            self.assertIsNone(process.poll(), "it ended too early")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.002)
        return process

    def test_kill_9_loses_only_what_is_unfinished(self):
        many = self.many()
        requests = self.requests(*many)
        process = self.start_and_wait(requests)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.assertFalse(self.out.exists())
        there = self.part.read_bytes().count(b"\n")
        self.assertGreaterEqual(there, 3)
        self.assertLess(there, len(many))
        finished = self.part.read_text().splitlines()[:there]
        with open(self.part, "ab") as part:
            part.write(b'{"custom_id": "r23", "err')  # as a kill within a write leaves it
        # Killed once more: the cut line has swallowed none of the answers behind it.
        process = self.start_and_wait(requests, lines=there + 3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        whole = self.part.read_bytes().split(b"\n")[:-1]
        self.assertEqual(whole.pop(there), b'{"custom_id": "r23", "err')
        there = len(whole)
        self.assertEqual([json.loads(line)["custom_id"] for line in whole],
                         [f"r{i}" for i in range(there)])
        answers, err = self.answers(requests)
        self.assertIn(f"24 requests: {24 - there} computed, {there} kept;", err)
        self.assertEqual([a["custom_id"] for a in answers], [r["custom_id"] for r in many])
        self.assertLessEqual(set(finished), set(self.lines()))
        self.out.unlink()
        fresh, _ = self.answers(requests)
        self.assertEqual([{k: a[k] for k in ANSWER} for a in answers],
                         [{k: a[k] for k in ANSWER} for a in fresh])

    def test_ctrl_c_keeps_what_is_finished(self):
        self.out.write_text("of somebody else\n")
        requests = self.requests(*self.many())
        timeline = self.folder / "timeline.json"
        process = self.start_and_wait(requests, "--timeline", timeline)
        process.send_signal(signal.SIGINT)
        err = process.communicate()[1].decode()
        self.assertEqual(process.returncode, 130, err)
        self.assertRegex(err.splitlines()[-1], r"^vericache: stopped: \d+ of 24 answers are there")
        self.assertEqual(self.out.read_text(), "of somebody else\n")
        json.loads(timeline.read_text())
        there = self.part.read_bytes().count(b"\n")
        _, err = self.answers(requests)
        self.assertIn(f"24 requests: {24 - there} computed, {there} kept;", err)

    def test_bad_lines_fail_alone(self):
        good = {"custom_id": "good", "prompt": TEXT, "max_tokens": 8}
        requests = self.requests(
            good, "", "nonsense", {"custom_id": "none"},
            {"custom_id": "a", "prompt": "x", "seed": -1},
            {"custom_id": "far", "prompt": TEXT * 400, "max_tokens": 8},
            {"custom_id": "hot", "prompt": "x", "temperature": -1},
            {"custom_id": "d", "prompt": "x", "draft": "int9"}, '{"prompt": "cut', good)
        done = self.fails(1, *self.command(requests),
                          says=("7 of 9 requests failed", self.out.name))
        self.assertIn("9 requests: 2 computed, 7 failed;", done.err)
        self.assertFalse(self.part.exists())
        answers = [json.loads(line) for line in self.lines()]
        for i in (0, 8):
            self.assertEqual(answers[i]["text"], self.run_alone(good)["text"])
        errors = [a["error"] for a in answers[1:8]]
        for error, says in zip(errors, (
                "line 3: expected one JSON object", "line 4: give one of", 'line 5: "seed" must',
                "line 6: ", "line 7: ", "line 8: ", "line 9: expected one JSON object")):
            self.assertTrue(error.startswith(says), error)
        self.assertIn("context", errors[3])
        self.assertIn("temperature", errors[4])
        self.assertIn("int9", errors[5])
        self.assertEqual([a["custom_id"] for a in answers],
                         ["good", None, "none", "a", "far", "hot", "d", None, "good"])
        self.assertNotIn("text", answers[1])
        # What failed is tried again.
        answers, err = self.answers(self.requests(good, {"custom_id": "a", "prompt": "x",
                                                         "max_tokens": 2}))
        self.assertIn("2 requests: 1 computed, 1 kept;", err)

    def test_the_timeline_shows_transfers_beside_passes(self):
        timeline, stats = self.folder / "timeline.json", self.folder / "stats.json"
        # Two that never run, so that places in the file and in the batch differ.
        too_long = {"prompt": TEXT * 400}
        requests = self.requests("nonsense", *(
            {"custom_id": f"r{i}", "prompt": TEXT * 3 + str(i), "max_tokens": 60, "draft_len": 6}
            for i in range(2)), too_long, *(
            {"custom_id": f"r{i}", "prompt": TEXT * 3 + str(i), "max_tokens": 60, "draft_len": 6}
            for i in range(2, 4)))
        budget = 2 << 20
        err = self.fails(1, *self.command(
            requests, "--kv-memory", budget, "--timeline", timeline, "--stats", stats,
            "--kv-read-limit", "8MiB")).err
        answers = [json.loads(line) for line in self.lines()]
        self.assertRegex(err, r"memory +.* for KV at most; .* read back in ")
        numbers = json.loads(stats.read_text())
        self.assertGreater(numbers["fetched_bytes"], 0)
        self.assertEqual(numbers["tokens"], sum(
            len(a.get("token_ids", [])) for a in answers))
        trace = json.loads(timeline.read_text())
        lanes = {e["pid"]: e["args"]["name"] for e in trace if e["name"] == "process_name"}
        self.assertEqual(lanes, {1: "passes", 2: "requests", 3: "fetches"})
        events = [e for e in trace if e["ph"] == "X"]
        self.assertEqual({e["ph"] for e in trace}, {"X", "M"})
        passes = [e for e in events if e["pid"] == 1]
        fetches = [e for e in events if e["pid"] == 3]
        self.assertEqual(len(passes), numbers["passes"])
        self.assertEqual(sum(e["args"]["bytes"] for e in fetches), numbers["fetched_bytes"])
        self.assertGreater(len(fetches), 0)
        self.assertEqual({e["tid"] for e in events if e["pid"] == 2}, {2, 3, 5, 6})
        self.assertEqual({e["tid"]: e["args"]["name"] for e in trace if e["pid"] == 2 and
                          e["name"] == "thread_name"}, {2: "r0", 3: "r1", 5: "r2", 6: "r3"})
        for tid in (2, 3, 5, 6):  # the rows of the prompt, as the request's own answer counts them
            rows = sum(e["args"]["rows"] for e in events
                       if (e["pid"], e["tid"], e["name"]) == (2, tid, "prefill"))
            self.assertGreaterEqual(rows, answers[tid - 1]["usage"]["prompt_tokens"])
        self.assertLessEqual({e["name"] for e in events if e["pid"] == 2},
                             {"prefill", "draft", "verify", "plain"})
        # Also beside a pass of others, or of the own drafts: not only beside the pass that
        # reads what comes.
        def beside(fetch, p):
            return (fetch["ts"] < p["ts"] + p["dur"] and p["ts"] < fetch["ts"] + fetch["dur"])
        ahead = [f for f in fetches for p in passes if beside(f, p) and not any(
            r["pid"] == 2 and r["tid"] == f["tid"] and r["name"] in ("verify", "plain", "prefill")
            and r["ts"] == p["ts"] for r in events)]
        self.assertGreater(len(ahead), 0)
        # A verification and another request's draft in one pass.
        at = {}
        for e in events:
            if e["pid"] == 2:
                at.setdefault(e["ts"], set()).add(e["name"])
        self.assertTrue(any({"verify", "draft"} <= names for names in at.values()))

    def test_progress_is_told_when_asked_for(self):
        requests = self.requests(*REQUESTS)
        self.assertNotRegex(self.answers(requests)[1], r"\d of 6")
        self.out.unlink()
        self.assertRegex(self.answers(requests, "--progress")[1],
                         r"\d of 6.*  \d+ tokens, .* tok/s")

    def test_requests_from_standard_input(self):
        requests = self.requests(REQUESTS[2])
        self.ok(*self.command("-"), stdin=requests.read_text())
        self.check([json.loads(line) for line in self.lines()], REQUESTS[2:3])

    def test_wrong_usage(self):
        requests = self.requests(REQUESTS[0])
        empty = self.folder / "empty.jsonl"
        empty.write_text("\n \n")
        out = ("-o", self.out)
        for status, flags, says in (
                (2, out, "give the requests with -f"),
                (2, ("-f", requests), "give the file for the answers with -o"),
                (2, ("-f", requests, "-o", "-"), "-o must be a file"),
                (2, ("-f", requests, "-o", "/dev/stdout"), "-o must be a file"),
                (1, ("-f", requests, "-o", self.folder / "no" / "x"), "there is no folder"),
                (1, ("-f", self.folder / "none", *out), "none"),
                (1, ("-f", empty, *out), "holds no request"),
                (2, ("-f", requests, *out, "--max-running", 0), "--max-running"),
                (2, ("-f", requests, *out, "--draft-len", "long"), "--draft-len"),
                (1, ("-f", requests, *out, "--timeline", self.folder / "no" / "x"), "--timeline"),
                (1, ("-f", requests, *out, "--stats", self.folder / "no" / "x"), "--stats")):
            with self.subTest(says=says), self.no_new_files():
                self.fails(status, "batch", "-m", WIDE, *flags, says=says)
        with self.no_new_files():
            self.fails(1, "batch", "-m", self.folder / "no.gguf", "-f", requests, *out,
                       says="no.gguf")

    def test_an_unknown_member_is_told_once(self):
        requests = self.requests({"prompt": "x", "max_tokens": 2, "stream": True},
                                 {"prompt": "y", "max_tokens": 2, "model": "z"})
        _, err = self.answers(requests)
        self.assertEqual(re.findall(r"note: .*", err),
                         [f"note: {requests}:1: stream is no member that batch reads"])

    def test_a_second_writer_is_refused(self):
        requests = self.requests(*self.many())
        process = self.start_and_wait(requests)
        self.fails(1, *self.command(requests), says="another `vericache batch` is writing")
        process.send_signal(signal.SIGKILL)
        process.communicate()


if __name__ == "__main__":
    main()
