#!/usr/bin/env python3
"""kvstate.py on made-up states: rows keep their order, positions increase, damage is refused."""

import struct
import unittest

import kvstate

LAYERS, ROW = 2, 6  # K and V rows of 6 bytes; transposed, V is 3 values of 2 bytes


def row(layer, what, cell):
    return bytes([layer, what, cell, cell + 100, layer + 50, what + 50])


def state(cells, transposed, is_ik, positions=None, streams=1):
    out = b"" if is_ik else struct.pack("<3I", kvstate.MAGIC, 0, streams)
    out += struct.pack("<I", len(cells))
    for pos in positions or range(len(cells)):
        out += struct.pack("<iI", pos, 0) if is_ik else struct.pack("<iIi", pos, 1, 0)
    out += struct.pack("<II", transposed, LAYERS)
    for layer in range(LAYERS):
        out += struct.pack("<iQ", 1, ROW) + b"".join(row(layer, 0, c) for c in cells)
    for layer in range(LAYERS):
        rows = [row(layer, 1, c) for c in cells]
        if transposed:
            out += struct.pack("<iII", 1, 2, 3)
            out += b"".join(r[2 * v : 2 * v + 2] for v in range(3) for r in rows)
        else:
            out += struct.pack("<iQ", 1, ROW) + b"".join(rows)
    return out + (bytes(4) if is_ik else b"")


KINDS = [(transposed, is_ik) for transposed in (0, 1) for is_ik in (False, True)]


class Tile(unittest.TestCase):
    def test_repeats_rows_at_increasing_positions(self):
        for kind in KINDS:
            for depth in (1, 2, 3, 4, 8):  # cut, whole, and repeated with and without a rest
                with self.subTest(kind=kind, depth=depth):
                    want = state([c % 3 for c in range(depth)], *kind)
                    self.assertEqual(bytes(kvstate.tile(state([0, 1, 2], *kind), depth)), want)

    def test_damage_is_refused(self):
        for kind in KINDS:
            good = state([0, 1, 2], *kind)
            for bad, word in (
                (good[:-1], "the state ends|behind the last"),
                (good + b"x", "behind the last layer"),
                (state([0, 1, 2], *kind, positions=[0, 2, 1]), "cell 1 holds position 2"),
                (state([0, 1, 2], *kind, positions=[1, 2, 3]), "cell 0 holds position 1"),
                (state([], *kind), "no cell"),
            ):
                with self.subTest(kind=kind, word=word):
                    self.assertRaisesRegex(ValueError, word, kvstate.tile, bad, 4)

    def test_several_streams_are_refused(self):
        self.assertRaisesRegex(
            ValueError, "several streams", kvstate.tile, state([0], 0, False, streams=2), 4
        )


if __name__ == "__main__":
    unittest.main()
