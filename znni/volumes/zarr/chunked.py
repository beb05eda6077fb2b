"""Zarr arrays, read in as much memory as is declared."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.machine.io_threads import at_once, finish_all
from znni.volumes.chunk_ranges import chunk_starts, common, counted_from
from znni.volumes.formats import library


class ChunkedZarr:
    """A Zarr array that decodes few chunks at once if they are large.

    Zarr's library decodes many at once, however large they are. That is faster, so it does so if
    they take no more memory than the values that are read.

    Args:
        array: the array.

    Attributes:
        shape: extents.
        dtype: type of its values.
        chunk_bytes: the bytes that decoding a chunk takes.
    """

    def __init__(self, array: Any) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        # The stored chunk, what it is decoded to, and one that the library has not given back.
        # With filters, these are two more.
        copies = 5 if array.filters else 3
        self.chunk_bytes = copies * prod(array.chunks) * self.dtype.itemsize
        self._array = array

    def __getitem__(self, key: tuple[slice, ...], /) -> NDArray[Any]:
        array, chunks = self._array, self._array.chunks
        wanted = [range(*part.indices(size)) for part, size in zip(key, self.shape, strict=True)]
        starts = chunk_starts(wanted, chunks)
        most: int = library("zarr", "zarr").config.get("async.concurrency")
        nbytes, count = prod(map(len, wanted)) * self.dtype.itemsize, prod(map(len, starts))
        if count == 1 or min(most, count) * self.chunk_bytes <= nbytes:
            return np.asarray(array[key])
        found = np.empty([len(part) for part in wanted], self.dtype)
        firsts, zeros = [part.start for part in wanted], [0] * len(wanted)

        def read(start: tuple[int, ...]) -> None:
            both = common(wanted, start, chunks)
            found[counted_from(firsts, both)] = array[counted_from(zeros, both)]

        finish_all(read, product(*starts), at_once(nbytes, self.chunk_bytes))
        return found
