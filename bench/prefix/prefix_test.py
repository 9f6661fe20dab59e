#!/usr/bin/env python3
"""bench/prefix on made-up records and a false scene: unequal answers have no time."""

import contextlib
import json
import pathlib
import tempfile
import unittest

import bench_path  # noqa: F401
import client
import names
import prefix_plot
import prefixes
import record_files
import report
import run
import scene
import variants

PUSHED = {"stored_tokens": 4096, "full_bytes": 100_000_000, "push_s": 30.0, "push_threads": 2,
          "drafts": [{"draft": "kvzip:0.25+int4", "num_bytes": 9_000_000}]}


def result(first, total, down=0, **stats):
    return {"first_s": [first], "total_s": [total], "wall_s": total, "requests_per_s": 1 / total,
            "down_bytes": down, "up_bytes": 0, "stats": [stats], "cached_tokens": [0]}


def record(rate="100mbit", repeat=0, num_requests=1, num_nodes=1, **variants_of):
    return {
        "time": "t", "commit": "c" * 40, "uncommitted_changes": False, "cpu": "x", "cores": 2,
        "compiler": "gcc", "model": "m.gguf", "model_sha256": "0", "kv_bytes_token": 1,
        "num_tokens": 101, "draft": "kvzip:0.25+int4", "delay_ms": 0, "node_cores": ["0"],
        "far_cores": "1", "label": "", "context": "8k", "rate": rate, "num_requests": num_requests,
        "num_nodes": num_nodes, "repeat": repeat, "link_bits_per_s": 8e7, "pushed": PUSHED,
        "load": 1.0, "others_cpu_share": 0.02, "variants": variants_of,
    }


def rounds():
    found = [
        record(repeat=i, **{
            names.RECOMPUTE: result(40 + i, 42 + i),
            names.LOAD_FULL: result(10.5, 12.5 + i, 100_000_000),
            names.REMOTE: result(2, 5, 8_000_000 + i * 2_000_000),
            names.DRAFT_FIRST: result(11, 12.5, 109_000_000, accepted=40, rounds=2),
            names.LOAD_DRAFT: {"error": "no such flag"},
        })
        for i in range(3)
    ]
    found.append(record("1gbit", **{names.LOAD_FULL: result(1.5, 3.5, 100_000_000),
                                    names.REMOTE: result(1, 4, 9_000_000)}))
    found.append(record(num_requests=4, num_nodes=2, **{
        names.LOAD_FULL: result(20, 22), names.STAGGERED: result(4, 11),
        names.LOCK_STEP: {"error": "no lock-step"}}))
    return found


class Report(unittest.TestCase):
    def cell(self):
        return report.cells_of(rounds())[0]

    def test_ratios_are_of_the_same_round(self):
        records = rounds()
        del records[1]["variants"][names.LOAD_FULL]
        cell = report.cells_of(records)[0]
        self.assertEqual(cell.ratios(names.REMOTE, names.LOAD_FULL, report.total_s), [2.5, 2.9])

    def test_targets_by_hand(self):
        lines = report.targets(report.cells_of(rounds())).splitlines()
        # best alternative: drafting while blocks arrive, 12.5 s; allowed: 9 + 1 MB
        self.assertIn("| 8k, 100mbit | 2.70x (2.50x-2.90x) | 2.50x (2.50x-2.50x) | "
                      f"{names.DRAFT_FIRST} | 1.00 (0.80-1.20) | 20.5x (20.0x-21.0x) |", lines[2])
        # recomputing was measured at another link
        self.assertIn("40.0x", lines[3])

    def test_bound_of_drafting_while_blocks_arrive(self):
        cell, first = self.cell(), rounds()[0]
        # 109 MB at 10 MB/s, half a second behind the last byte, 101 - 21 tokens of 20 ms
        bound = report.draft_first_bound(cell, first, first["variants"][names.DRAFT_FIRST])
        self.assertAlmostEqual(bound, 10.9 + 0.5 + 80 * 0.02)
        del first["variants"][names.LOAD_FULL]
        self.assertIsNone(report.draft_first_bound(cell, first, result(1, 2)))

    def test_tables(self):
        text = report.tables(rounds())
        self.assertIn("| remote drafting | 2.00 (2.00-2.00) / 5.00 (5.00-5.00), 10.0 (8.0-12.0) | "
                      "1.00 / 4.00, 9.0 |", text)
        self.assertIn("| load full, then decode with drafts | failed | - |", text)
        self.assertIn("- 8k, 100mbit, 4, remote drafting, lock-step: no lock-step", text)
        self.assertIn("| 8k, 1gbit, 1 request, 1 node | load full, then decode | remote drafting |",
                      text)
        self.assertIn("8k, 2 nodes: requests/s", text)

    def test_a_changed_figure_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.jsonl")
            path.write_text("".join(json.dumps(r) + "\n" for r in rounds()))
            text = "<!-- prefix one: r.jsonl -->\nold\n<!-- end -->\n"
            made = report.filled(text, path.parent)
            self.assertIn("1.00 / 4.00", made)
            self.assertEqual(report.filled(made, path.parent), made)
            wrong = made.replace("1.00 / 4.00", "1.00 / 3.00")
            self.assertNotEqual(report.filled(wrong, path.parent), wrong)
            with self.assertRaises(SystemExit):
                report.filled("<!-- prefix no: r.jsonl -->\n<!-- end -->\n", path.parent)

    def test_plot(self):
        made = prefix_plot.svg(rounds())
        self.assertIn("seconds to 101 tokens", made)
        self.assertEqual(made.count("<polyline"), 3)  # only what is asked again stands for remote


QUESTIONS = [prefixes.Question(id=f"q{i}", text=f"?{i}", prompt_tokens=9, token_ids=[i, 2],
                               logits_hash=f"h{i}") for i in range(4)]


def answer_to(question):
    return {"first_s": 1.0, "total_s": 2.0, "start_s": 0.0, "token_ids": question.token_ids,
            "logits_hash": question.logits_hash, "stats": {}, "cached_tokens": 0}


class FalseNode:
    def reach(self, port):
        return "there", port


class FalseScene:
    def __init__(self, num_nodes=1, change=None):
        self.nodes, self.change = [FalseNode() for _ in range(num_nodes)], change or {}
        self.started, self.asked = [], []

    def store_flags(self, node=None):
        return ["--prefix-store", "near" if node is None else "far"]

    def verifier_flags(self, _):
        return ["--verifier", "url"]

    @contextlib.contextmanager
    def far(self, command, port, *more):
        self.started.append((command, *more))
        yield

    @contextlib.contextmanager
    def serving(self, _, *more):
        self.started.append(("serve", *more))
        yield

    def ask(self, asked, clients):
        self.asked.append((asked, clients))
        return [[answer_to(q) | self.change for q in part[2]] for part in asked], 2.0, 10, 1

    def run_once(self, _, question, draft, *more):
        self.started.append(("run", draft, *more))
        return answer_to(question) | self.change, 10, 1


class FalseFeatures:
    def __init__(self, *known):
        self.known = known

    def has(self, command, flag):
        return (command, flag) in self.known


ALL = FalseFeatures(("serve", "--verifier"), ("serve", "--prefix-plan"),
                    ("run", "--prefix-plan"), ("verifier", "--lock-step"))


class Variants(unittest.TestCase):
    def one(self, place, features=ALL):
        return variants.One(place, features, QUESTIONS[0], QUESTIONS[1], "int4")

    def test_unequal_answers_have_no_time(self):
        for wrong in ({"token_ids": [9, 9]}, {"logits_hash": "x"}, {"token_ids": None}):
            for name, measure in self.one(FalseScene(change=wrong)).all().items():
                with self.subTest(name=name), self.assertRaises(variants.Wrong):
                    measure()
            many = variants.Many(FalseScene(2, wrong), ALL, QUESTIONS, "int4")
            for measure in many.all().values():
                with self.assertRaises(variants.Wrong):
                    measure()

    def test_an_answer_is_compared_with_its_own_question(self):
        place = FalseScene(2)
        found = variants.Many(place, ALL, QUESTIONS, "int4").staggered()
        self.assertEqual(found[names.STAGGERED]["requests_per_s"], 2.0)
        (asked, clients), = place.asked
        self.assertEqual([[q.id for q in part[2]] for part in asked], [["q0", "q2"], ["q1", "q3"]])
        self.assertEqual(clients, 2)

    def test_what_runs(self):
        place = FalseScene()
        one = self.one(place)
        self.assertEqual(set(one.remote()), {names.REMOTE, names.REMOTE_AGAIN})
        self.assertEqual([s[0] for s in place.started], ["verifier", "serve"])
        self.assertEqual(place.started[-1][-2:], ("--prefix-plan", "remote"))
        self.assertEqual(set(one.chosen()), {names.CHOSEN, names.CHOSEN_AGAIN})
        self.assertEqual(place.started[-1][-2:], ("--prefix-plan", "auto"))
        one.draft_first()  # the service does not know it
        self.assertEqual((place.started[-1][0], place.started[-1][-2:]),
                         ("run", ("--prefix-plan", "draft-first")))
        one.recompute()
        self.assertEqual(place.started[-1], ("serve", "--prefix-memory", 0))

    def test_what_a_build_does_not_know_has_failed(self):
        place = FalseScene()
        old = self.one(place, FalseFeatures(("run", "--verifier")))
        with self.assertRaises(scene.Failed):
            old.draft_first()
        old.remote()
        self.assertEqual([s[0] for s in place.started], ["verifier", "run", "run"])
        many = variants.Many(place, FalseFeatures(), QUESTIONS, "int4")
        for measure in (many.staggered, many.lock_step):
            with self.assertRaises(scene.Failed):
                measure()


class Parts(unittest.TestCase):
    def test_cores(self):
        self.assertEqual([scene.num_cores(c) for c in ("0", "0,2", "4-7", "1,4-5")], [1, 2, 4, 3])

    def test_questions_come_from_the_prefix_and_differ(self):
        found = prefixes.candidates("4k")
        self.assertGreaterEqual(len(found), 8)
        self.assertEqual(len({text for _, text in found}), len(found))
        self.assertIn("shlex", prefixes.text_of("4k")[0])

    def test_a_request_as_bytes(self):
        data = client.encoded({"host": "h", "port": 1, "key": "k", "body": {"a": 1}})
        self.assertIn(b"Host: h:1\r\n", data)
        self.assertIn(b"Authorization: Bearer k\r\n", data)
        self.assertTrue(data.endswith(b'\r\n\r\n{"a": 1}'))
        self.assertNotIn(b"Authorization", client.encoded(
            {"host": "h", "port": 1, "key": "", "body": {}}))

    def test_a_cut_line_is_measured_again_and_other_settings_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.jsonl")
            lines = [json.dumps(r) for r in rounds()]
            path.write_text("\n".join(lines)[:-20])
            common = {key: rounds()[0][key] for key in run.SETTINGS}
            with contextlib.redirect_stdout(None):
                found = record_files.read_again(path, common, run.SETTINGS, run.die)
            self.assertEqual(len(found), len(lines) - 1)
            self.assertEqual(len(path.read_text().splitlines()), len(lines) - 1)
            with self.assertRaises(SystemExit):
                record_files.read_again(path, common | {"delay_ms": 5}, run.SETTINGS, run.die)


if __name__ == "__main__":
    unittest.main()
