"""The bytes of chunks and shards of a new Zarr (version 3), as its metadata describe them.

zarr-python makes the same bytes, but takes up to three times as long. ``bench zarr-libraries``
compares both, and ``docs/developers/outputs.md`` says why no library takes the place of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import Compression
from znni.core.shapes import Vec3
from znni.volumes.formats import library

ZSTD_LEVEL = 1
GZIP_LEVEL = 1

# Offset and length that a shard's index gives to a chunk that is not stored: it is all zeros.
NOWHERE = 2**64 - 1

# Bytes of a compressed chunk, or the chunk's own memory; None if it is all zeros.
Encoded: TypeAlias = bytes | memoryview | None


def compressors(compression: Compression) -> tuple[Any, ...]:
    """Return codecs of the zarr library, for the metadata of an array."""
    codecs = library("zarr", "zarr").codecs
    if compression == "none":
        return ()
    if compression == "gzip":
        return (codecs.GzipCodec(level=GZIP_LEVEL),)
    return (codecs.ZstdCodec(level=ZSTD_LEVEL, checksum=True),)


def encoder(compression: Compression) -> Callable[[NDArray[Any], Vec3, bool], Encoded]:
    """Return a function that encodes values (z, y, x) as a chunk of given extents, in any thread.

    If the values are smaller than the chunk, as at the array's end, the rest is zero. Its last
    argument says whether a chunk of zeros is encoded, too.
    """
    if compression == "none":
        return _plain
    if compression == "gzip":
        codec = library("numcodecs.gzip", "zarr").GZip(level=GZIP_LEVEL)
    else:
        codec = library("numcodecs.zstd", "zarr").Zstd(level=ZSTD_LEVEL, checksum=True)

    def compressed(values: NDArray[Any], chunk: Vec3, zeros: bool) -> Encoded:
        plain = _plain(values, chunk, zeros)
        return None if plain is None else bytes(codec.encode(plain))

    return compressed


def _plain(values: NDArray[Any], chunk: Vec3, zeros: bool) -> memoryview | None:
    if not zeros and not values.any():
        return None
    full = np.zeros(chunk, values.dtype.newbyteorder("<"))
    full[tuple(map(slice, values.shape))] = values
    return full.data.cast("B")


def file_of(chunks: Sequence[Encoded], in_shard: Vec3 | None) -> list[bytes | memoryview]:
    """Return the parts of a file: one chunk, or all chunks of a shard and their index.

    A shard holds its chunks in Morton order, as zarr-python writes it. The list is empty if no
    chunk is stored.

    Args:
        chunks: the chunks, x fastest.
        in_shard: number of chunks along each axis of a shard; None if the file is no shard.
    """
    if in_shard is None or not any(chunk is not None for chunk in chunks):
        return [chunk for chunk in chunks if chunk is not None]
    index, at = np.full((len(chunks), 2), NOWHERE, "<u8"), 0
    parts: list[bytes | memoryview] = []
    for number in _morton_order(in_shard):
        if (chunk := chunks[number]) is not None:
            index[number] = at, len(chunk)
            at += len(chunk)
            parts.append(chunk)
    entries = index.tobytes()
    checksum: int = library("google_crc32c", "zarr").value(entries)
    return [*parts, entries, checksum.to_bytes(4, "little")]


@cache
def _morton_order(counts: Vec3) -> list[int]:
    """Return the numbers of chunks, x fastest, in the order of their Morton codes.

    A code takes the bits of all three indices in turn, the lowest first, z before y before x.
    """
    bits = [(count - 1).bit_length() for count in counts]
    places = [(bit, axis) for bit in range(max(bits)) for axis in range(3) if bit < bits[axis]]

    def code(index: tuple[int, ...]) -> int:
        return sum((index[axis] >> bit & 1) << at for at, (bit, axis) in enumerate(places))

    indices = list(product(*map(range, counts)))
    return sorted(range(len(indices)), key=lambda number: code(indices[number]))
