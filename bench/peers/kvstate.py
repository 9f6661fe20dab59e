"""The saved KV of one sequence, as llama.cpp and ik_llama.cpp lay it out; standard library only.

Little-endian; llama.cpp begins with a magic number, a version and the number of streams (1):
  u32 cells
  per cell           i32 position, u32 num_seq, i32 seq[num_seq]   (ik_llama.cpp: num_seq = 0)
  u32 transposed, u32 layers                        whether V is stored value by value
  per layer, K       i32 type, u64 row_bytes, [cells][row_bytes]
  per layer, V       the same; transposed: i32 type, u32 value_bytes, u32 num_values,
                     [num_values][cells][value_bytes]

`tile` makes the state of a long sequence out of a short one, by repeating its rows at increasing
positions. The answers of the model are then worthless; the time of a step is not.
"""

import struct

MAGIC = 0xAF143CD8  # of llama.cpp's sequence states
NO_RECURRENT = bytes(4)  # ik_llama.cpp ends with the number of recurrent layers


class Part:
    """num_rows rows of `cells` items of item_bytes each, behind `head`."""

    def __init__(self, head, num_rows, item_bytes, data):
        self.head, self.num_rows, self.item_bytes, self.data = head, num_rows, item_bytes, data


class State:
    def __init__(self, data):
        self.at, self.bytes = 0, memoryview(data)
        has_header = struct.unpack_from("<I", data)[0] == MAGIC
        self.header = bytes(self.take(12)) if has_header else b""
        if has_header and struct.unpack("<3I", self.header)[2] != 1:
            raise ValueError("a state of several streams")
        (self.cells,) = self.read("<I")
        self.owners = b""  # num_seq and seq of the first cell; all must be alike
        for i in range(self.cells):
            pos, num_seq = self.read("<iI")
            owners = struct.pack("<I", num_seq) + bytes(self.take(4 * num_seq))
            self.owners = self.owners or owners
            if pos != i or owners != self.owners:
                raise ValueError(f"cell {i} holds position {pos}: the rows are not in order")
        self.transposed, self.layers = self.read("<II")
        self.parts = [self.rows() for _ in range(self.layers)]
        self.parts += [
            self.values() if self.transposed else self.rows() for _ in range(self.layers)
        ]
        self.tail = bytes(self.take(len(self.bytes) - self.at))
        if self.tail not in (b"", NO_RECURRENT):
            raise ValueError(f"{len(self.tail)} bytes behind the last layer")

    def take(self, size):
        if size > len(self.bytes) - self.at:
            raise ValueError(f"the state ends within an item of {size} bytes")
        self.at += size
        return self.bytes[self.at - size : self.at]

    def read(self, layout):
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def rows(self):
        head = bytes(self.take(12))
        (row_bytes,) = struct.unpack_from("<Q", head, 4)
        return Part(head, 1, row_bytes, self.take(row_bytes * self.cells))

    def values(self):
        head = bytes(self.take(12))
        value_bytes, num_values = struct.unpack_from("<II", head, 4)
        size = value_bytes * num_values * self.cells
        return Part(head, num_values, value_bytes, self.take(size))


def tile(data, depth):
    """The state `data` repeated, or cut, to `depth` cells at positions 0..depth-1."""
    state = State(data)
    if state.cells == 0:
        raise ValueError("no cell to repeat")
    out = bytearray(state.header)
    out += struct.pack("<I", depth)
    for i in range(depth):
        out += struct.pack("<i", i) + state.owners
    out += struct.pack("<II", state.transposed, state.layers)
    for part in state.parts:
        out += part.head
        size = part.item_bytes * state.cells
        wanted = part.item_bytes * depth
        for row in range(part.num_rows):
            once = bytes(part.data[row * size : (row + 1) * size])
            out += (once * (-(-depth // state.cells)))[:wanted]
    return out + state.tail
