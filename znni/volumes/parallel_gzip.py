"""Gzip and zlib by several threads at once: one stream, which any program reads.

The bytes are cut into blocks of equal size, so the result does not depend on the number of threads.
Each block is compressed with the end of the one before as its dictionary, as in RFC 1951.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeAlias

from znni.machine.io_threads import io_threads, mapped

# Returns the checksum of bytes that follow others, from the checksum of these.
Checksum: TypeAlias = Callable[[bytes, int], int]

BLOCK = 2**17  # bytes that a thread compresses at a time
WINDOW = 2**15  # bytes before a block to which deflate may refer
HEADER = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x00\xff"  # gzip's, without a name and a time
ZLIB_HEADER = b"\x78\x01"
LAST = b"\x03\x00"  # an empty block that ends the stream


def gzipped(pieces: Iterable[bytes | memoryview], level: int) -> Iterator[bytes]:
    """Yield a gzip stream of bytes, piece by piece. The same bytes always give the same stream."""
    yield HEADER
    checksum, length = yield from _deflated(pieces, level, zlib.crc32, 0)
    yield struct.pack("<II", checksum, length % 2**32)


def zlibbed(pieces: Iterable[bytes | memoryview], level: int) -> Iterator[bytes]:
    """Yield a zlib stream (RFC 1950) of bytes, with the arguments of ``gzipped``."""
    yield ZLIB_HEADER
    checksum, _ = yield from _deflated(pieces, level, zlib.adler32, 1)
    yield struct.pack(">I", checksum)


def _deflated(
    pieces: Iterable[bytes | memoryview], level: int, sum_up: Checksum, checksum: int
) -> Generator[bytes, None, tuple[int, int]]:
    """Yield deflated blocks, and return the checksum and the length of all bytes."""
    length = 0

    def with_dictionaries() -> Iterator[tuple[bytes, bytes]]:
        nonlocal checksum, length
        before = b""
        for block in _blocks(pieces):
            checksum, length = sum_up(block, checksum), length + len(block)
            yield block, before
            before = block[-WINDOW:]

    def compress(block: tuple[bytes, bytes]) -> bytes:
        values, before = block
        packing = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=before)
        return packing.compress(values) + packing.flush(zlib.Z_SYNC_FLUSH)

    yield from mapped(compress, with_dictionaries(), 2 * io_threads(), "writing")
    yield LAST
    return checksum, length


def _blocks(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the bytes of pieces in blocks of equal size; the last one may be smaller."""
    waiting = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(waiting) + len(view) >= BLOCK:
            share = BLOCK - len(waiting)
            yield bytes(waiting) + bytes(view[:share])
            waiting.clear()
            view = view[share:]
        waiting += view
    if waiting:
        yield bytes(waiting)
