"""What the end-to-end tests of the command share: running it, tiny models, a folder to work in.

The models are the committed ones of tests/golden/model; chat_model() writes a copy with a chat
template in its metadata.
"""

import contextlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/model"
LLAMA = GOLDEN / "llama_tied.gguf"
QWEN = GOLDEN / "qwen2_untied.gguf"
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|im_start|>assistant\n' }}{% endif %}")
# Long enough for SnapKV to drop something, short enough to be fast.
TEXT = " ".join(f"item {i} is the {'black' if i % 3 else 'white'} stone," for i in range(24))

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q",
            12: "d"}


class _GgufCursor:
    """Steps over the parts of a GGUF head."""

    def __init__(self, data):
        self.data, self.pos = data, 0

    def read(self, fmt):
        value = struct.unpack_from("<" + fmt, self.data, self.pos)
        self.pos += struct.calcsize("<" + fmt)
        return value[0]

    def skip_string(self):
        length = self.read("Q")
        self.pos += length

    def skip_value(self, kind):
        if kind == 8:
            self.skip_string()
        elif kind == 9:
            inner, count = self.read("I"), self.read("Q")
            for _ in range(count):
                self.skip_value(inner)
        else:
            self.read(_FORMATS[kind])


def with_template(data, template):
    """The GGUF file `data` with one more metadata value, tokenizer.chat_template."""
    cursor = _GgufCursor(data)
    cursor.pos = 8
    num_tensors, num_values = cursor.read("Q"), cursor.read("Q")
    for _ in range(num_values):
        cursor.skip_string()
        cursor.skip_value(cursor.read("I"))
    values_end = cursor.pos
    for _ in range(num_tensors):
        cursor.skip_string()
        for _ in range(cursor.read("I")):
            cursor.read("Q")
        cursor.read("I")
        cursor.read("Q")
    head_end = cursor.pos

    def text(value):
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw
    head = data[:16] + struct.pack("<Q", num_values + 1) + data[24:values_end]
    head += text("tokenizer.chat_template") + struct.pack("<I", 8) + text(template)
    head += data[values_end:head_end]
    return head + bytes(-len(head) % 32) + data[head_end + -head_end % 32:]


class CliTest(unittest.TestCase):
    """A folder of its own for each test, and vericache with an environment of its own."""

    binary = None  # set by main()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.models = self.folder / "cache/vericache/models"
        self.models.mkdir(parents=True)

    def environment(self, **extra):
        kept = {k: v for k, v in os.environ.items()
                if not k.startswith(("VERICACHE_", "HF_", "XDG_"))}
        return kept | {"XDG_CACHE_HOME": str(self.folder / "cache")} | extra

    def vericache(self, *args, stdin=b"", env=None, timeout=600):
        """Runs the command; its stdout and stderr come as text."""
        if isinstance(stdin, str):
            stdin = stdin.encode()
        done = subprocess.run([str(self.binary), *map(str, args)], input=stdin,
                              capture_output=True, env=self.environment(**(env or {})),
                              cwd=self.folder, timeout=timeout, check=False)
        done.out, done.err = done.stdout.decode(), done.stderr.decode()
        return done

    def ok(self, *args, **kwargs):
        done = self.vericache(*args, **kwargs)
        self.assertEqual(done.returncode, 0, done.err)
        return done

    def fails(self, status, *args, says=(), **kwargs):
        """The command ends with `status` and one error line that holds all of `says`."""
        done = self.vericache(*args, **kwargs)
        self.assertEqual(done.returncode, status, done.err + done.out)
        errors = [line for line in done.err.splitlines()
                  if line.startswith("vericache: ") and not line.startswith("vericache: note: ")]
        self.assertEqual(len(errors), 1, done.err)
        self.assertEqual(errors[0], done.err.splitlines()[-1])
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, errors[0])
        return done

    def run_json(self, *args, model=LLAMA, **kwargs):
        return json.loads(self.ok("run", "-m", model, "--json", *args, **kwargs).out)

    def chat_model(self):
        path = self.folder / "chat.gguf"
        path.write_bytes(with_template(LLAMA.read_bytes(), CHATML))
        return path

    @contextlib.contextmanager
    def no_new_files(self):
        before = sorted(self.folder.rglob("*"))
        yield
        self.assertEqual(sorted(self.folder.rglob("*")), before)


def main():
    if len(sys.argv) < 2 or not pathlib.Path(sys.argv[1]).is_file():
        sys.exit(f"usage: {sys.argv[0]} VERICACHE [TEST...]")
    CliTest.binary = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(module="__main__")
