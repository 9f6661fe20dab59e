#!/usr/bin/env python3
"""Makes perplexity.txt: 60 KB from the middle of Jane Austen's Mansfield Park (1814).

The text is in the public domain.

apt-get download r-cran-janeaustenr && dpkg-deb -x r-cran-janeaustenr_*.deb DIR
python3 bench/data/make_perplexity_text.py DIR > bench/data/perplexity.txt
"""

import struct
import sys
import zlib
from pathlib import Path

FIRST_LINE = "CHAPTER XXXI"  # mid-novel: less likely to be known by heart than a first chapter
SIZE = 60000


def novels(database):
    """An R lazy-load database: one record a novel, unpacked length (big-endian) and zlib bytes."""
    while database:
        unpack = zlib.decompressobj()
        yield unpack.decompress(database[4:])
        database = unpack.unused_data


def lines(data, start):
    """The strings of an R character vector in XDR form from the string `start` on."""
    i = data.index(start) - 8
    while i + 8 <= len(data):
        flags, size = struct.unpack(">Ii", data[i : i + 8])
        if flags & 0xFF != 9 or size < 0:  # 9: CHARSXP
            return
        yield data[i + 8 : i + 8 + size].decode()
        i += 8 + size


def main():
    database = (
        Path(sys.argv[1]) / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    ).read_bytes()
    novel = next(n for n in novels(database) if b"MANSFIELD PARK" in n)
    text = ""
    for line in lines(novel, FIRST_LINE.encode()):
        text += line + "\n"
        if len(text) >= SIZE and not line:  # end with a paragraph
            break
    sys.stdout.write(text.rstrip("\n") + "\n")


main()
