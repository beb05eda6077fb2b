"""HDF5 datasets with compressed chunks, decoded by several threads.

HDF5 itself decodes one chunk at a time, under a lock that all its files share.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.volumes.array import ArrayLike
from znni.volumes.io_threads import at_once, finish, mapped

# Filters that are decoded here. Datasets with any other filter are left to HDF5.
DEFLATE, SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE


def decoded_by_threads(dataset: h5py.Dataset) -> ArrayLike:
    """Return a view of a dataset that reads faster, if its chunks are compressed by deflate."""
    filters = _filters(dataset)
    known = DEFLATE in filters and set(filters) <= {DEFLATE, SHUFFLE}
    return CompressedDataset(dataset, filters) if known else dataset


def _filters(dataset: h5py.Dataset) -> list[int]:
    """Return the filters of a dataset's chunks, in order."""
    made = dataset.id.get_create_plist()
    return [made.get_filter(index)[0] for index in range(made.get_nfilters())]


class CompressedDataset:
    """A dataset of compressed chunks, sliced by ``slice(start, stop)`` along each axis.

    Together the threads hold at most one copy of the data being read.

    Args:
        dataset: dataset whose chunks have exactly these filters.
        filters: codes of the filters, in order.

    Attributes:
        name: name in its file.
        shape: extents.
        dtype: type of its values.
    """

    def __init__(self, dataset: h5py.Dataset, filters: list[int]) -> None:
        self.name: str = dataset.name
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype: np.dtype[Any] = dataset.dtype
        self._dataset = dataset
        self._filters = filters

    def __getitem__(self, key: tuple[slice, ...], /) -> NDArray[Any]:
        ranges = [range(*part.indices(size)) for part, size in zip(key, self.shape, strict=True)]
        found = np.empty([len(part) for part in ranges], self.dtype)
        # The stored chunk and two copies of it: each filter turns one copy into the next.
        chunk_bytes = prod(self._dataset.chunks) * self.dtype.itemsize
        decoding = at_once(found.nbytes, 3 * chunk_bytes)

        def read(start: tuple[int, ...]) -> None:
            ends = zip(start, self._dataset.chunks, ranges, strict=True)
            both = [(max(a, part.start), min(a + size, part.stop)) for a, size, part in ends]
            inside = tuple(slice(a - b, c - b) for (a, c), b in zip(both, start, strict=True))
            place = tuple(
                slice(a - r.start, c - r.start) for (a, c), r in zip(both, ranges, strict=True)
            )
            found[place] = self._chunk(start)[inside]

        finish(mapped(read, self._starts(ranges), decoding))
        return found

    def _starts(self, ranges: list[range]) -> Iterator[tuple[int, ...]]:
        """Yield the starts of the chunks that a part overlaps."""
        yield from product(
            *(
                range(part.start // size * size, part.stop, size)
                for part, size in zip(ranges, self._dataset.chunks, strict=True)
            )
        )

    def _chunk(self, start: tuple[int, ...]) -> NDArray[Any]:
        chunks = self._dataset.chunks
        if self._dataset.id.get_chunk_info_by_coord(start).byte_offset is None:
            return np.full(chunks, self._dataset.fillvalue, self.dtype)  # never written
        skipped, data = self._dataset.id.read_direct_chunk(start)
        for index, code in reversed(list(enumerate(self._filters))):
            if not skipped >> index & 1:
                data = zlib.decompress(data) if code == DEFLATE else self._unshuffled(data)
        return np.frombuffer(data, self.dtype, prod(chunks)).reshape(chunks)

    def _unshuffled(self, data: bytes) -> NDArray[np.uint8]:
        """Undo shuffling, which stores the first bytes of all values, then the second ones."""
        return np.ascontiguousarray(
            np.frombuffer(data, np.uint8).reshape(self.dtype.itemsize, -1).T
        )
