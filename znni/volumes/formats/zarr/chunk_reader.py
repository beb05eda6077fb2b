"""Zarr arrays, read in as much memory as is declared."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.volumes.chunk_ranges import chunk_starts, common, counted_from
from znni.volumes.formats import library

LEAST_ROOM = 2**23  # bytes for decoding small chunks of small parts


class ChunkedZarr:
    """A Zarr array that decodes few chunks at once if they are large.

    Zarr's library decodes many at once, however large they are. So a part is read box by box,
    unless these chunks take no more memory than its values, or than ``LEAST_ROOM``.

    Attributes:
        shape: extents.
        dtype: type of its values.
        chunk_bytes: the bytes that decoding takes at least: those of a chunk, or of several small
            ones.
    """

    def __init__(self, array: Any) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        # The stored chunk, what it is decoded to, and one that the library has not given back.
        # With filters, these are two more.
        copies = 5 if array.filters else 3
        self._each = copies * prod(array.chunks) * self.dtype.itemsize
        self._most: int = library("zarr", "zarr").config.get("async.concurrency")
        self.chunk_bytes = max(self._each, min(self._most * self._each, LEAST_ROOM))
        self._array = array

    def __getitem__(self, key: tuple[slice, ...], /) -> NDArray[Any]:
        wanted = [range(*part.indices(size)) for part, size in zip(key, self.shape, strict=True)]
        chunks = chunk_starts(wanted, self._array.chunks)
        room = max(prod(map(len, wanted)) * self.dtype.itemsize, self.chunk_bytes)
        if min(self._most, prod(map(len, chunks))) * self._each <= room:
            return np.asarray(self._array[key])
        box = _box(chunks, room // self._each)
        starts = (range(it.start, it.stop, extent) for it, extent in zip(chunks, box, strict=True))
        found = np.empty([len(part) for part in wanted], self.dtype)
        firsts, zeros = [part.start for part in wanted], [0] * len(wanted)
        for start in product(*starts):
            both = common(wanted, start, box)
            found[counted_from(firsts, both)] = self._array[counted_from(zeros, both)]
        return found


def _box(chunks: list[range], most: int) -> list[int]:
    """Return the extents of a box of at most so many chunks.

    Args:
        chunks: the starts of the chunks along each axis.
        most: the number of chunks, at least one; the last axes get as many as there are.
    """
    box, left = [it.step for it in chunks], most
    for axis in reversed(range(len(chunks))):
        along = min(len(chunks[axis]), left)
        box[axis], left = along * box[axis], left // along
    return box
