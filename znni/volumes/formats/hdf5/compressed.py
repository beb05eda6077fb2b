"""HDF5 datasets with compressed chunks, decoded by several threads.

HDF5 itself decodes one chunk at a time, under a lock that all its files share.
"""

from __future__ import annotations

from math import prod
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from znni.volumes.formats.hdf5.chunk_reader import NOWHERE, ChunkReader

# Copies of a chunk that decoding holds, here and in HDF5: each filter turns one into the next.
COPIES = 2

# Filters that are decoded here. Datasets with any other filter are left to HDF5.
DEFLATE, SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE


def decoded_by_threads(dataset: h5py.Dataset) -> CompressedDataset | None:
    """Return a view that reads faster, or None unless deflate compressed the chunks."""
    filters = _filters(dataset)
    known = DEFLATE in filters and set(filters) <= {DEFLATE, SHUFFLE}
    return CompressedDataset(dataset, filters) if known else None


def _filters(dataset: h5py.Dataset) -> list[int]:
    """Return the filters of a dataset's chunks, in order."""
    made = dataset.id.get_create_plist()
    return [made.get_filter(index)[0] for index in range(made.get_nfilters())]


class CompressedDataset(ChunkReader):
    """A dataset of compressed chunks.

    Args:
        dataset: dataset whose chunks have exactly these filters.
        filters: codes of the filters, in order.
    """

    def __init__(self, dataset: h5py.Dataset, filters: list[int]) -> None:
        super().__init__(dataset, dataset.chunks, copies=COPIES)
        self._filters = filters

    def part(self, start: tuple[int, ...], inside: tuple[slice, ...]) -> NDArray[Any]:
        """Return a part of the values of a chunk."""
        return self._chunk(start)[inside]

    def _chunk(self, start: tuple[int, ...]) -> NDArray[Any]:
        chunks = self.chunks
        if self._place(start) == NOWHERE:
            return np.full(chunks, self._dataset.fillvalue, self.dtype)  # never written
        skipped, data = self._dataset.id.read_direct_chunk(start)
        nbytes = prod(chunks) * self.dtype.itemsize
        for index, code in reversed(list(enumerate(self._filters))):
            if not skipped >> index & 1:
                if code == DEFLATE:
                    # With fewer bytes, it makes a larger buffer before it finds the end.
                    data = zlib_ng.decompress(data, bufsize=nbytes + 1)
                else:
                    data = self._unshuffled(data)
        return np.frombuffer(data, self.dtype, prod(chunks)).reshape(chunks)

    def _unshuffled(self, data: bytes) -> NDArray[np.uint8]:
        """Undo shuffling, which stores the first bytes of all values, then the second ones."""
        return np.ascontiguousarray(
            np.frombuffer(data, np.uint8).reshape(self.dtype.itemsize, -1).T
        )
