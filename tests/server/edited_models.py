"""Variants of a committed tiny model: other templates, bad numbers, scripted answers, wide outputs.

A GGUF file is taken apart and put together again. Standard library only.
"""

import struct

from cli_fixture import GOLDEN, _GgufCursor

F32, F16 = 0, 1
SIZES = {F32: 4, F16: 2}
STRING, ARRAY, UINT32, BOOL = 8, 9, 4, 7
HIDDEN = 48
NEWLINE = "\u010a"  # as byte-level BPE writes it; a blank is \u0120


def _text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


class Model:
    """Metadata as (type, bytes), tensors as (type, dims, bytearray)."""

    def __init__(self, name="llama_head_dim"):
        data = (GOLDEN / f"{name}.gguf").read_bytes()
        cursor = _GgufCursor(data)
        cursor.pos = 8
        num_tensors, num_values = cursor.read("Q"), cursor.read("Q")
        self.values, self.tensors = {}, {}
        for _ in range(num_values):
            key = self._string(cursor)
            kind, begin = cursor.read("I"), cursor.pos
            cursor.skip_value(kind)
            self.values[key] = (kind, data[begin:cursor.pos])
        heads = []
        for _ in range(num_tensors):
            name = self._string(cursor)
            dims = [cursor.read("Q") for _ in range(cursor.read("I"))]
            heads.append((name, dims, cursor.read("I"), cursor.read("Q")))
        start = cursor.pos + -cursor.pos % 32
        for name, dims, kind, offset in heads:
            count = 1
            for dim in dims:
                count *= dim
            self.tensors[name] = (kind, dims, bytearray(
                data[start + offset:start + offset + count * SIZES[kind]]))

    @staticmethod
    def _string(cursor):
        length = cursor.read("Q")
        cursor.pos += length
        return cursor.data[cursor.pos - length:cursor.pos].decode()

    def set_text(self, key, value):
        self.values[key] = (STRING, _text(value))
        return self

    def set_flag(self, key, value):
        self.values[key] = (BOOL, bytes([value]))
        return self

    def set_number(self, key, value):
        self.values[key] = (UINT32, struct.pack("<I", value))
        return self

    def tokens(self):
        cursor = _GgufCursor(self.values["tokenizer.ggml.tokens"][1])
        cursor.pos = 4
        return [self._string(cursor) for _ in range(cursor.read("Q"))]

    def add_tokens(self, texts):
        """Normal tokens that no text is encoded to; gives their ids. Their rows come by add_rows.
        """
        old = self.tokens()
        everything = old + texts
        self.values["tokenizer.ggml.tokens"] = (ARRAY, struct.pack("<IQ", STRING, len(everything)) +
                                                b"".join(map(_text, everything)))
        kind, data = self.values["tokenizer.ggml.token_type"]
        self.values["tokenizer.ggml.token_type"] = (
            kind, data[:4] + struct.pack("<Q", len(everything)) + data[12:] +
            struct.pack("<i", 1) * len(texts))
        return list(range(len(old), len(everything)))

    def add_rows(self, rows):
        kind, dims, data = self.tensors["token_embd.weight"]
        for row in rows:
            data += struct.pack(f"<{HIDDEN}e", *row)
        dims[1] += len(rows)
        self.set_number("llama.vocab_size", dims[1])
        return self

    def row(self, token):
        data = self.tensors["token_embd.weight"][2]
        return struct.unpack_from(f"<{HIDDEN}e", data, token * HIDDEN * 2)

    def put(self, tensor, index, value):
        kind, _, data = self.tensors[tensor]
        struct.pack_into("<e" if kind == F16 else "<f", data, index * SIZES[kind], value)
        return self

    def clear(self, tensor):
        data = self.tensors[tensor][2]
        data[:] = bytes(len(data))

    def write(self, path):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.values))
        for key, (kind, data) in self.values.items():
            head += _text(key) + struct.pack("<I", kind) + data
        offset, body = 0, b""
        for name, (kind, dims, data) in self.tensors.items():
            head += _text(name) + struct.pack("<I", len(dims))
            head += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)
            body += bytes(data) + bytes(-len(data) % 32)
            offset = len(body)
        path.write_bytes(head + bytes(-len(head) % 32) + body)
        return path


def scripted(pieces, template):
    """A model that answers every prompt that ends in a line break with `pieces`, then ends.

    Each piece is a token of its own, there only once; nothing but the last token decides what
    follows.
    """
    model = Model().set_text("tokenizer.chat_template", template)
    written = [p.replace(" ", "\u0120").replace("\n", NEWLINE) for p in pieces]
    old = model.tokens()
    added = model.add_tokens([name for name in written if name not in old])
    names = model.tokens()
    script = [names.index(name) for name in written]
    # One unit vector for each of them; the rest of the vocabulary has another direction.
    start, end = names.index(NEWLINE), names.index("<|im_end|>")
    chain = [start, *script, end]
    data = model.tensors["token_embd.weight"][2]
    assert len(chain) <= HIDDEN
    assert len(set(chain)) == len(chain)
    unit = lambda i, size=1.0: [size if j == i else 0.0 for j in range(HIDDEN)]
    model.add_rows([unit(HIDDEN - 1)] * len(added))
    for token in range(len(names)):
        place = chain.index(token) if token in chain[:-1] else HIDDEN - 1
        struct.pack_into(f"<{HIDDEN}e", data, token * HIDDEN * 2, *unit(place))
    for layer in range(2):
        model.clear(f"blk.{layer}.attn_output.weight")
        model.clear(f"blk.{layer}.ffn_down.weight")
    rows = len(names)
    output = bytearray(rows * HIDDEN * 2)
    for i in range(len(chain) - 1):
        struct.pack_into(f"<{HIDDEN}e", output, chain[i + 1] * HIDDEN * 2, *unit(i, 30.0))
    model.tensors["output.weight"] = (F16, [HIDDEN, rows], output)
    return model
