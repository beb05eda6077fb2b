"""CRC-32 checksums of blocks, by one thread or by several."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from znni.machine.io_threads import begin_task

# Bytes of a block for each thread. One thread alone reads 1 to 7 GB/s, which may be slower than
# the disk.
PIECE_BYTES = 8 * 2**20

# The polynomial of CRC-32. The highest bit of a number is its coefficient of x^0.
POLYNOMIAL = 0xEDB88320
ONE, X = 1 << 31, 1 << 30


def checksum_of(values: NDArray[Any]) -> str:
    """Return the CRC-32 of a block's values (f', z, y, x) as they are stored, in C order."""
    return _text(_checksum(values))


def begin_checksum(values: NDArray[Any]) -> Callable[[], str]:
    """Begin to compute a checksum, as ``checksum_of``, in the threads that write.

    Returns:
        A function that waits for it.
    """
    pieces = _pieces(values)
    sums = [(begin_task(partial(_checksum, piece), "writing"), piece.nbytes) for piece in pieces]

    def wait() -> str:
        found = 0
        for found_there, length in sums:
            found = joined(found, found_there.result(), length)
        return _text(found)

    return wait


def _pieces(values: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the pieces of a block, in the order of its bytes: planes of one map each, or all."""
    if values.nbytes <= PIECE_BYTES:
        return [values]
    maps, depth = values.shape[:2]
    planes = max(1, maps * depth * PIECE_BYTES // values.nbytes)
    return [
        image[np.newaxis, first : first + planes]
        for image in values
        for first in range(0, depth, planes)
    ]


def _checksum(values: NDArray[Any]) -> int:
    if values.flags.c_contiguous:
        return crc32(values.data)
    found = 0
    for plane in (plane for image in values for plane in image):
        found = crc32(np.ascontiguousarray(plane).data, found)
    return found


def _text(checksum: int) -> str:
    return f"{checksum:08x}"


def joined(first: int, second: int, length: int) -> int:
    """Return the CRC-32 of two parts together, from that of each.

    A CRC-32 is the remainder of a polynomial whose coefficients are the bits. Bytes after the first
    part multiply its polynomial by a power of x.

    Args:
        first: the checksum of the first part.
        second: the checksum of the second part.
        length: the bytes of the second part.
    """
    return _product(_power(8 * length), first) ^ second


@lru_cache(maxsize=64)
def _power(exponent: int) -> int:
    """Return the remainder of a power of x."""
    found, square = ONE, X
    while exponent:
        if exponent & 1:
            found = _product(found, square)
        square = _product(square, square)
        exponent >>= 1
    return found


def _product(first: int, second: int) -> int:
    """Return the remainder of the product of two polynomials."""
    found = 0
    while first:
        if first & ONE:
            found ^= second
        first = first << 1 & 0xFFFFFFFF
        second = second >> 1 ^ (POLYNOMIAL if second & 1 else 0)
    return found
