"""A model with the tokenizer of a committed one and any size: the same weights over and over.

Standard library only. Its answers mean nothing; it is there to be loaded and run.
"""

import struct

from cli_fixture import LLAMA, _GgufCursor

Q8_0, F32 = 8, 0  # tensor types
UINT32 = 4        # value type
BLOCK = 32        # values of a Q8_0 block, 34 bytes


def _text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _metadata(sizes):
    """The committed model's values, with `sizes` in place of its own."""
    data = LLAMA.read_bytes()
    cursor = _GgufCursor(data)
    cursor.pos = 16
    count = cursor.read("Q")
    values = {}
    for _ in range(count):
        begin = cursor.pos
        length = cursor.read("Q")
        key = data[cursor.pos:cursor.pos + length].decode()
        cursor.pos = begin
        cursor.skip_string()
        cursor.skip_value(cursor.read("I"))
        values[key] = data[begin:cursor.pos]
    for key, number in sizes.items():
        values[key] = _text(key) + struct.pack("<II", UINT32, number)
    return values


def write_big_model(path, *, hidden=1024, ffn=4096, layers=6, heads=16, kv_heads=4, rows=65536,
                    context=8192):
    """Writes the file; returns the bytes of its matrices. Embedding and output are one."""
    head_dim = hidden // heads
    values = _metadata({
        "llama.block_count": layers, "llama.embedding_length": hidden,
        "llama.feed_forward_length": ffn, "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads, "llama.context_length": context,
        "llama.attention.key_length": head_dim, "llama.attention.value_length": head_dim,
        "llama.rope.dimension_count": head_dim})
    values.pop("llama.vocab_size", None)
    tensors = [("token_embd.weight", Q8_0, (hidden, rows))]
    for layer in range(layers):
        p = f"blk.{layer}."
        tensors += [(p + "attn_norm.weight", F32, (hidden,)),
                    (p + "attn_q.weight", Q8_0, (hidden, hidden)),
                    (p + "attn_k.weight", Q8_0, (hidden, kv_heads * head_dim)),
                    (p + "attn_v.weight", Q8_0, (hidden, kv_heads * head_dim)),
                    (p + "attn_output.weight", Q8_0, (hidden, hidden)),
                    (p + "ffn_norm.weight", F32, (hidden,)),
                    (p + "ffn_gate.weight", Q8_0, (hidden, ffn)),
                    (p + "ffn_up.weight", Q8_0, (hidden, ffn)),
                    (p + "ffn_down.weight", Q8_0, (ffn, hidden))]
    tensors.append(("output_norm.weight", F32, (hidden,)))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values.values())
    offset, places = 0, []
    for name, kind, dims in tensors:
        count = dims[0] * (dims[1] if len(dims) > 1 else 1)
        size = count * 4 if kind == F32 else count // BLOCK * 34
        head += _text(name) + struct.pack("<I", len(dims))
        head += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)
        places.append((kind, size))
        offset += -(-size // 32) * 32
    # Codes that look random, with a prime number of blocks, so that rows differ.
    state, codes = 1, bytearray()
    for _ in range(4099):
        codes += struct.pack("<e", 0.0004)
        for _ in range(BLOCK):
            state = (state * 1103515245 + 12345) & 0x7fffffff
            codes.append(state >> 16 & 0xff)
    with open(path, "wb") as out:
        out.write(head + bytes(-len(head) % 32))
        for kind, size in places:
            if kind == F32:
                out.write(struct.pack("<f", 1.0) * (size // 4))
            else:
                whole, rest = divmod(size, len(codes))
                for _ in range(whole):
                    out.write(codes)
                out.write(codes[:rest])
            out.write(bytes(-size % 32))
    return sum(size for kind, size in places if kind == Q8_0)
