"""The bytes of chunks and shards of a new Zarr (version 3), as its metadata say.

zarr-python makes the same bytes, but hands every chunk through the event loop of one thread, which
takes some tenths of a millisecond whatever the number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.options import Compression
from znni.core.shapes import Vec3
from znni.volumes.formats import library

ZSTD_LEVEL = 1
GZIP_LEVEL = 1

# In a shard's index, the offset and the length of a chunk that is not stored: it is all zeros.
NOWHERE = 2**64 - 1

# Bytes of a compressed chunk, or the chunk's own memory; None where it is all zeros.
Encoded: TypeAlias = bytes | memoryview | None


def compressors(compression: Compression) -> tuple[Any, ...]:
    """Codecs of the zarr library, for the metadata of an array."""
    codecs = library("zarr", "zarr").codecs
    if compression == "none":
        return ()
    if compression == "gzip":
        return (codecs.GzipCodec(level=GZIP_LEVEL),)
    return (codecs.ZstdCodec(level=ZSTD_LEVEL, checksum=True),)


def encoder(compression: Compression) -> Callable[[NDArray[Any], Vec3], Encoded]:
    """What encodes values (z, y, x) as a chunk of given extents, in any thread.

    Beyond the values, as at the array's end, a chunk is zero.
    """
    if compression == "none":
        return _plain
    if compression == "gzip":
        codec = library("numcodecs.gzip", "zarr").GZip(level=GZIP_LEVEL)
    else:
        codec = library("numcodecs.zstd", "zarr").Zstd(level=ZSTD_LEVEL, checksum=True)

    def compressed(values: NDArray[Any], chunk: Vec3) -> Encoded:
        plain = _plain(values, chunk)
        return None if plain is None else bytes(codec.encode(plain))

    return compressed


def _plain(values: NDArray[Any], chunk: Vec3) -> memoryview | None:
    if not values.any():
        return None
    full = np.zeros(chunk, values.dtype.newbyteorder("<"))
    full[tuple(map(slice, values.shape))] = values
    return full.data.cast("B")


def file_of(chunks: Sequence[Encoded], *, sharded: bool) -> list[bytes | memoryview]:
    """The parts of a file: its chunk, or of a shard all of them, in order, then their index.

    There are none where no chunk is stored.
    """
    parts = [chunk for chunk in chunks if chunk is not None]
    if not sharded or not parts:
        return parts
    index, at = np.full((len(chunks), 2), NOWHERE, "<u8"), 0
    for entry, chunk in zip(index, chunks, strict=True):
        if chunk is not None:
            entry[:] = at, len(chunk)
            at += len(chunk)
    entries = index.tobytes()
    checksum: int = library("google_crc32c", "zarr").value(entries)
    return [*parts, entries, checksum.to_bytes(4, "little")]
