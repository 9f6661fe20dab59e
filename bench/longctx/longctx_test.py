#!/usr/bin/env python3
"""Tests of bench/longctx on made-up records and a false command: figures by hand, and what must
give no figure. No model, no package."""

import json
import pathlib
import stat
import tempfile
import types
import unittest

import bound
import command
import contexts
import names
import record_files
import report
import run
import speed_plot
import together
import variants

SERIAL, STREAMED = names.RAM_SERIAL, f"{names.STREAMED} @1/4"
STAGGERED, LOCK_STEP = f"{names.STAGGERED} @1/4", f"{names.LOCK_STEP} @1/4"
PARTS = {
    "depth": 1000,
    "sinks": ["sink:0.25+int4"],
    "verify_ms_0_1": 10,
    "verify_ms_0_8": 24,
    "verify_ms_1000_1": 20,
    "verify_ms_1000_9": 100,
    "draft_step_ms_1000_sink:0.25+int4": 12,
}


def variant(tok_s, drafted=8, rounds=1, **more):
    tokens = drafted + rounds
    return {
        "tok_s": tok_s, "tokens": tokens, "decode_s": tokens / tok_s, "drafted": drafted,
        "rounds": rounds, "accepted": drafted, "draft_spec": "verify:0.25+int4",
        "peak_rss_bytes": 3 << 20, "kept_fraction": 0.1,
    } | more


def record(repeat=0, num_requests=1, **speeds):
    return {
        "time": "t", "commit": "c" * 40, "uncommitted_changes": False, "cpu": "x",
        "compiler": "gcc", "model": "m.gguf", "model_sha256": "0", "model_bytes": 1 << 20,
        "heads_per_kv_head": 7, "threads": 2, "num_tokens": 9, "read_limit": 10**9,
        "draft": "verify:0.25+int4", "kind": "code", "shares": [4], "draft_lens": ["auto"],
        "label": "", "context": "8k", "num_requests": num_requests, "repeat": repeat,
        "prompt_tokens": [1000] * num_requests, "full_bytes": [4 << 20] * num_requests,
        "others_cpu_share": 0.02, "parts": PARTS, "base_rss_bytes": 2 << 20, "variants": speeds,
    }


def rounds():
    fetched = {"fetch_s": 2.0, "stall_s": 0.5, "fetched_bytes": 4 * 10**6,
               "peak_kv_bytes": 1 << 19}
    names_of = {"off": 4.0, "half": 20.0}
    return [
        record(repeat, **{
            SERIAL: variant(names_of["half"] + repeat, 0, 9),
            names.PEERS["off"]: variant(5.0), names.PEERS["on"]: variant(4.0),
            STREAMED: variant(names_of["off"], 0, 9, **fetched),
            # its stream waited for staging: 8 s for what takes 2
            STAGGERED: variant(18.0 + repeat, **fetched | {"fetch_s": 8.0}),
            LOCK_STEP: {"error": "no room"},
        })
        for repeat in range(3)
    ]


class Bound(unittest.TestCase):
    def setUp(self):
        self.parts = bound.Parts(PARTS)

    def test_lines_between_and_beyond(self):
        self.assertEqual(bound.interpolate([(1, 10), (3, 30), (5, 70)], 2), 20)
        self.assertEqual(bound.interpolate([(5, 70), (1, 10), (3, 30)], 4), 50)
        self.assertEqual(bound.interpolate([(1, 10), (3, 30), (5, 70)], 7), 110)
        self.assertEqual(bound.interpolate([(4, 3)], 9), 3)

    def test_one_request(self):
        one = variant(1, drafted=8, rounds=1, fetched_bytes=10**6)
        # 8 draft steps of 12 ms, a verification of 9 positions of 100 ms
        found = bound.seconds(self.parts, one, 1, "sink:0.25+int4", 0)
        self.assertAlmostEqual(found, 0.196)
        # the transfer takes 1 s: it hides all of it, or what is after the draft
        found = bound.seconds(self.parts, one, 1, "sink:0.25+int4", 1e6)
        self.assertAlmostEqual(found, 1.0)
        found = bound.seconds(self.parts, one, 1, "sink:0.25+int4", 1e6, lock_step=True)
        self.assertAlmostEqual(found, 1.096)

    def test_many_requests_share_weights(self):
        two = variant(1, drafted=16, rounds=2)
        # a draft step of two: 12 ms for two rows and 2 ms of draft KV each
        self.assertAlmostEqual(self.parts.draft("sink:0.25+int4", 2), 0.016)
        staggered = bound.seconds(self.parts, two, 2, "sink:0.25+int4", 0)
        self.assertAlmostEqual(staggered, 8 * 0.016 + 2 * (0.1 - 0.01))
        lock_step = bound.seconds(self.parts, two, 2, "sink:0.25+int4", 0, lock_step=True)
        self.assertAlmostEqual(lock_step, staggered + 0.01)

    def test_plain_decoding(self):
        plain = variant(1, drafted=0, rounds=9, fetched_bytes=0)
        self.assertAlmostEqual(bound.seconds(self.parts, plain, 1, None, 1e9), 0.18)


def event(pid, tid, name, ts, dur, **args):
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}


TIMELINE = [
    event(2, 1, "prefill", 0, 100, rows=8),
    event(2, 1, "verify", 100, 100, rows=5, accepted=4),  # while the other's prompt is computed
    event(2, 2, "prefill", 100, 100, rows=8),
    event(1, 0, "both", 200, 300, rows=4, stall_ms=0.1),
    event(2, 1, "verify", 200, 300, rows=4, accepted=2),
    event(2, 2, "draft", 200, 300, rows=1),
    event(3, 1, "fetch", 100, 200, bytes=1000),  # half of it before
    event(1, 0, "last", 500, 500, rows=3),
    event(2, 2, "verify", 500, 500, rows=2, accepted=0),
    event(2, 1, "plain", 500, 500, rows=1),
]


class Together(unittest.TestCase):
    def test_counts_from_the_last_prompt_on(self):
        found = together.of_timeline(TIMELINE)
        self.assertAlmostEqual(found["gap_p50_s"], 500e-6)  # of the first: 500 to 1000
        self.assertEqual(together.quantile([1, 2, 3, 4], 0.5), 2)
        self.assertEqual(together.quantile([1, 2, 3, 4], 0.99), 4)
        self.assertEqual(
            {key: found[key] for key in ("tokens", "rounds", "drafted", "accepted")},
            {"tokens": 5, "rounds": 3, "drafted": 4, "accepted": 2})
        self.assertAlmostEqual(found["decode_s"], 800e-6)
        self.assertAlmostEqual(found["stall_s"], 100e-6)
        self.assertAlmostEqual(found["fetch_s"], 100e-6)
        self.assertEqual(found["fetched_bytes"], 500)

    def test_a_prompt_computed_again_has_no_such_time(self):
        again = TIMELINE + [event(2, 1, "prefill", 1000, 100, rows=8)]
        self.assertIsNone(together.of_timeline(again))


class Report(unittest.TestCase):
    def cell(self):
        return report.cells_of(rounds())[0]

    def test_ratios_are_of_the_same_round(self):
        records = rounds()
        del records[1]["variants"][SERIAL]
        cell = report.cells_of(records)[0]
        self.assertEqual(cell.ratios(STAGGERED, SERIAL), [18 / 20, 20 / 22])

    def test_a_peer_is_not_compared_on_a_busy_machine(self):
        records = rounds()
        records[0]["others_cpu_share"] = records[2]["others_cpu_share"] = 0.5
        cell = report.cells_of(records)[0]
        self.assertEqual(cell.llama(), names.PEERS["off"])
        self.assertEqual(cell.ratios(STAGGERED, cell.llama()), [19 / 5])
        self.assertEqual(len(cell.ratios(STAGGERED, SERIAL)), 3)

    def test_figures_by_hand(self):
        cell = self.cell()
        columns = report.inside_columns(cell, STAGGERED, 4)
        self.assertEqual(columns["tokens a round"], [9, 9, 9])
        self.assertEqual(columns["transfer hidden"], [0.75] * 3)
        self.assertEqual(columns["peak memory / (budget + weights)"], [1.5] * 3)
        # Transfers of eight requests at the same time: their sum is not the time of the link.
        for of_round in cell.rounds:
            of_round["variants"][STREAMED] |= {"fetch_s": 16.0, "decode_s": 2.0}
        self.assertEqual(report.inside_columns(cell, STAGGERED, 4)["transfer hidden"], [0.75] * 3)
        self.assertEqual(columns["KV held / budget"], [0.5] * 3)
        self.assertEqual(columns["peak above loading, MiB"], [1] * 3)
        self.assertEqual(columns["longest gap, s"], [])
        # 4 MB at 2 MB/s bound it: 2 s of the 9 tokens' time at 18, 19, 20 a second
        for share, speed in zip(columns["of the bound"], (18, 19, 20)):
            self.assertAlmostEqual(share, 2 * speed / 9)

    def test_tables(self):
        text = report.tables(rounds())
        self.assertIn("| VeriCache, staggered |  | 19.0 (18.0-20.0) |", text)
        self.assertIn("| VeriCache, lock-step |  | failed |", text)
        self.assertIn("- 8k, 1 request, VeriCache, lock-step @1/4: no room", text)
        self.assertIn("1/4 (1 MiB)", text)
        self.assertNotIn("one full KV", text)
        many = record(num_requests=4, **{SERIAL: variant(1), STAGGERED: variant(2)})
        self.assertIn("1/4 (4 MiB = one full KV)", report.tables([many]))

    def test_a_changed_figure_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.jsonl")
            path.write_text("".join(json.dumps(r) + "\n" for r in rounds()))
            text = "<!-- longctx speed: r.jsonl -->\nold\n<!-- end -->\n"
            made = report.filled(text, path.parent)
            self.assertIn("19.0 (18.0-20.0)", made)
            self.assertEqual(report.filled(made, path.parent), made)
            self.assertNotEqual(
                report.filled(made.replace("19.0", "29.0"), path.parent),
                made.replace("19.0", "29.0"))
            with self.assertRaises(SystemExit):
                report.filled("<!-- longctx no: r.jsonl -->\n<!-- end -->\n", path.parent)
            with self.assertRaises(SystemExit):
                report.filled("<!-- longctx speed: r.jsonl -->\n", path.parent)

    def test_plot(self):
        made = speed_plot.svg(rounds())
        self.assertEqual(made.count("<rect"), 1 + 5)  # the failed one has no bar
        self.assertIn("VeriCache, staggered, 1 MiB (1/4)", made)


class Names(unittest.TestCase):
    def test_sink_of_the_same_size(self):
        self.assertEqual(names.sink_of("verify:0.25+int4"), "sink:0.25+int4")
        self.assertEqual(names.sink_of("verify:0.1,floor=0.05"), "sink:0.1")
        self.assertIsNone(names.sink_of("off"))
        self.assertIsNone(names.sink_of("int4"))

    def test_budget_of_a_name(self):
        self.assertEqual((names.base_of(STAGGERED), names.parts_of(STAGGERED)),
                         (names.STAGGERED, 4))
        self.assertIsNone(names.parts_of(SERIAL))


def request(name="a"):
    return contexts.Prepared(name, "text", [1, 2], [5, 6, 7], "hash", 4000)


def answer(tokens=(5, 6, 7), logits_hash="hash", first=1.0, end=2.0):
    return {
        "token_ids": list(tokens), "logits_hash": logits_hash, "finish_reason": "length",
        "stats": {
            "rounds": 1, "drafted": 1, "accepted": 1, "draft_s": 0.25, "verify_s": 0.5,
            "kept_fraction": 0.1, "full_bytes": 4000, "kv_memory": None,
            "times": {"first_token_s": first, "end_s": end, "max_burst_s": end - first},
        },
    }


class FalseVericache:
    def __init__(self, *answers):
        self.answers, self.asked, self.most_running = list(answers), [], len(answers)

    def run_one(self, *asked):
        self.asked.append(asked)
        return self.answers.pop(0), command.Ended("", "", 100)

    def run_batch(self, *asked):
        self.asked.append(asked)
        stats = dict.fromkeys(variants.STATS, 0) | {"most_running": self.most_running}
        return self.answers, stats, TIMELINE, command.Ended("", "", 100)


class Variants(unittest.TestCase):
    def setup_of(self, *answers):
        requests = [request(f"r{i}") for i in range(len(answers))]
        return variants.Setup(FalseVericache(*answers), requests, 3, "verify:0.25+int4")

    def test_one_after_another_is_the_sum_and_at_once_from_the_last_prompt_on(self):
        answers = answer(first=1, end=3), answer(first=2, end=6)
        serial = variants.serial(self.setup_of(*answers), "off", "auto", 0)
        self.assertEqual((serial["tokens"], serial["decode_s"]), (4, 6))
        at_once = variants.at_once(self.setup_of(*answers), "off", "auto", 0)
        self.assertEqual(at_once["tokens"], 5)
        self.assertAlmostEqual(at_once["tok_s"], 5 / 800e-6)
        self.assertAlmostEqual(at_once["with_prompts_tok_s"], 4 / 5)
        setup = self.setup_of(*answers)
        setup.vericache.most_running = 1  # the other had to wait
        waited = variants.at_once(setup, "off", "auto", 0)
        self.assertEqual((waited["tokens"], waited["tok_s"]), (4, 4 / 5))
        self.assertEqual(at_once["longest_gap_s"], 4)

    def test_another_answer_gives_no_time(self):
        for wrong in (answer(tokens=(5, 6, 8)), answer(tokens=(5, 6)), answer(logits_hash="x")):
            with self.assertRaises(variants.Wrong):
                variants.serial(self.setup_of(wrong), "off", "auto", 0)
            with self.assertRaises(variants.Wrong):
                variants.at_once(self.setup_of(answer(), wrong), "off", "auto", 0)

    def test_what_a_round_holds(self):
        one = variants.of_round(self.setup_of(answer()), [8, 4], ["auto", "32"], [])
        self.assertIn(names.UNVERIFIED, one)
        self.assertNotIn(names.RAM_AT_ONCE, one)
        setup = self.setup_of(answer(), answer())
        two = variants.of_round(setup, [4], ["32"], [])
        self.assertIn(names.RAM_AT_ONCE, two)
        two[f"{names.STAGGERED}, 32 drafted @1/4"]()
        *_, draft, length, budget, lock_step = setup.vericache.asked[-1]
        self.assertEqual((draft, length, budget), ("verify:0.25+int4", "32", 2000))
        self.assertFalse(lock_step)
        two[f"{names.LOCK_STEP}, 32 drafted @1/4"]()
        self.assertTrue(setup.vericache.asked[-1][-1])

    def test_a_shrunken_draft_is_told(self):
        ended = command.Ended("", "vericache: note: draft verify:0.093+int4 instead of "
                              "verify:0.25+int4: a larger one does not fit", 0)
        self.assertEqual(ended.fitted_spec("verify:0.25+int4"), "verify:0.093+int4")
        ended = command.Ended("", "vericache: note: no draft KV: it does not fit", 0)
        self.assertEqual(ended.fitted_spec("verify:0.25+int4"), "off")
        self.assertEqual(command.Ended("", "", 0).fitted_spec("int4"), "int4")


class Command(unittest.TestCase):
    def test_a_refusal_is_told(self):
        with self.assertRaisesRegex(command.Failed, "too small"):
            command.run(["sh", "-c", "echo first >&2; echo too small >&2; exit 1"])
        with self.assertRaisesRegex(command.Failed, "ended with 3"):
            command.run(["sh", "-c", "exit 3"])

    def test_memory_and_output(self):
        ended = command.run(["sh", "-c", "echo out; echo err >&2"])
        self.assertEqual((ended.stdout, ended.stderr), ("out\n", "err\n"))
        self.assertGreater(ended.peak_rss_bytes, 1 << 16)

    def test_batch_files(self):
        with tempfile.TemporaryDirectory() as folder:
            false = pathlib.Path(folder, "vericache")
            false.write_text(
                '#!/bin/sh\nwhile [ $# -gt 0 ]; do case "$1" in\n'
                '-f) asked=$2; shift;; -o) out=$2; shift;; --stats) stats=$2; shift;;\n'
                '--timeline) trace=$2; shift;; esac; shift\n'
                'done\ncp "$asked" "$out"; echo \'{"passes": 7}\' > "$stats"\n'
                'echo "[]" > "$trace"\n')
            false.chmod(false.stat().st_mode | stat.S_IXUSR)
            ours = command.Vericache(false, "m.gguf", 2, folder, 10, None)
            found, stats, trace, _ = ours.run_batch([request()], 3, "int4", "32", 1000, True)
        self.assertEqual((stats, trace), ({"passes": 7}, []))
        self.assertEqual(
            (found[0]["custom_id"], found[0]["max_tokens"], found[0]["draft_len"]), ("a", 3, 32))


class Prepare(unittest.TestCase):
    def test_short_answers_are_passed_over_and_nothing_is_asked_twice(self):
        asked = []

        def ask(text):
            asked.append(text)
            result = answer(tokens=(5, 6) if text == "b" else (5, 6, 7))
            return result | {"prompt_ids": [1]}

        rows = [(name, name) for name in "abcd"]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "p.jsonl")
            first = contexts.prepare(path, 2, rows, ask, 3, lambda text: None)
            self.assertEqual([p.custom_id for p in first], ["a", "c"])
            again = contexts.prepare(path, 3, rows, ask, 3, lambda text: None)
            self.assertEqual([p.custom_id for p in again], ["a", "c", "d"])
            self.assertEqual(asked, ["a", "b", "c", "d"])
            with self.assertRaises(SystemExit):
                contexts.prepare(path, 4, rows, ask, 3, lambda text: None)

    def test_documents_come_once_before_any_comes_again(self):
        found = contexts.candidates("code", "4k")
        documents = [name.split("-")[2] for name, _ in found]
        self.assertEqual(len(set(documents[:8])), 8)


class Rounds(unittest.TestCase):
    def common(self):
        return {key: rounds()[0][key] for key in run.SETTINGS}

    def test_goes_on_after_the_last_complete_round(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.jsonl")
            whole = [json.dumps(r) for r in rounds()]
            path.write_text("\n".join(whole)[:-20])  # killed within the third
            args = types.SimpleNamespace(shares=[4], draft_lens=["auto"], only="", no_parts=True)
            made = run.Rounds(args, self.common(), path, [])
            self.assertEqual(made.done, {("8k", 1, 0), ("8k", 1, 1)})
            self.assertEqual(path.read_text(), "\n".join(whole[:2]) + "\n")
            setup = variants.Setup(FalseVericache(), [request()], 3, "int4")
            made.measure("8k", setup, 0)  # there already: nothing is asked
            self.assertEqual(setup.vericache.asked, [])

    def test_other_settings_need_another_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.jsonl")
            path.write_text(json.dumps(rounds()[0]) + "\n")
            with self.assertRaisesRegex(SystemExit, "threads"):
                record_files.read_again(path, self.common() | {"threads": 3}, run.SETTINGS, run.die)


if __name__ == "__main__":
    unittest.main()
