"""HDF5 datasets that are not compressed, read past HDF5 by several threads.

HDF5 reads one part at a time, under a lock that all its files share. Here it only tells where
values lie in the file: those of each chunk, or all of them. Without chunks, the file is mapped:
then a narrow box takes only what it needs of each long row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from typing import Any
from weakref import finalize

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.core import system
from znni.volumes.formats.hdf5.chunk_reader import NOWHERE, ChunkReader, ChunkRow
from znni.volumes.mapped_array import MappedArray

# Bytes of chunks that are read together. Many small reads wait for the interpreter's lock.
ROW_BYTES = 2 << 20


def read_past_hdf5(dataset: h5py.Dataset) -> PlainDataset | MappedArray | None:
    """Return a view of a dataset that reads faster, or None if its bytes are not its values.

    The values must be stored as NumPy has them, in one local file without bytes before HDF5's own.

    Raises:
        ValueError: the file ends before the last value of a dataset without chunks.
        OSError: the file cannot be opened or mapped.
    """
    made, file = dataset.id.get_create_plist(), dataset.file
    plain = (
        dataset.dtype.kind in "iufb"
        and dataset.size
        and made.get_nfilters() == 0
        and made.get_external_count() == 0
        and file.driver == "sec2"
        and file.userblock_size == 0
        and dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype, logical=True)
    )
    if not plain:
        return None
    match made.get_layout():
        case h5py.h5d.CHUNKED if hasattr(os, "preadv"):
            return PlainDataset(dataset)
        case h5py.h5d.CONTIGUOUS if (first := dataset.id.get_offset()) is not None:
            return MappedArray(file.filename, dataset.dtype, first, dataset.shape)
        case _:
            return None


class PlainDataset(ChunkReader):
    """A dataset whose chunks hold nothing but its values."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        chunks = dataset.chunks
        self._most = max(1, ROW_BYTES // (prod(chunks) * dataset.dtype.itemsize))
        super().__init__(dataset, chunks, copies=self._most)
        self._descriptor = os.open(dataset.file.filename, os.O_RDONLY | system.AS_BYTES)
        finalize(self, os.close, self._descriptor)

    def part(self, start: tuple[int, ...], inside: tuple[slice, ...]) -> NDArray[Any]:
        """Return a part of a chunk. Only bytes between its first and its last value are read.

        If rows are not needed whole, few of them are in memory at once.
        """
        sizes = [one.stop - one.start for one in inside]
        place = self._place(start)
        if place == NOWHERE:
            return np.broadcast_to(np.asarray(self._dataset.fillvalue, self.dtype), sizes)
        # The axes after the first that is longer than 1 are read whole, so the bytes are together.
        axis = next((n for n, size in enumerate(self.chunks) if size > 1), len(sizes) - 1)
        values, row = np.empty(sizes, self.dtype), self.chunks[axis + 1 :]
        each = prod(row) * self.dtype.itemsize
        place += inside[axis].start * each
        if values.shape[axis + 1 :] == row:
            self._fill(values, place)
            return values
        whole, rows = (slice(None),) * axis, max(1, min(ROW_BYTES, values.nbytes) // each)
        for first in range(0, sizes[axis], rows):
            some = values[*whole, first : first + rows]
            read = np.empty((*some.shape[: axis + 1], *row), self.dtype)
            self._fill(read, place + first * each)
            some[...] = read[*whole, :, *inside[axis + 1 :]]
        return values

    def chunk_rows(self, wanted: list[range]) -> Iterator[ChunkRow]:
        """Yield all chunks that a part overlaps. Neighbours in the file are in one row.

        Rows begin and end with chunks of which the part has all along the last axis.
        """
        if self._most == 1:
            yield from super().chunk_rows(wanted)
            return
        size, along = self.chunks[-1], wanted[-1]
        each = prod(self.chunks) * self.dtype.itemsize
        for row in super().chunk_rows([*wanted[:-1], along[:1]]):
            starts = range(row.start[-1], along.stop, size)
            places = [self._place((*row.start[:-1], start)) for start in starts]
            first = 0
            for after in range(1, len(starts) + 1):
                joined = (
                    after < len(starts)
                    and after - first < self._most
                    and places[first] != NOWHERE
                    and places[after] == places[after - 1] + each
                    and starts[first] >= along.start
                    and starts[after] + size <= along.stop
                )
                if not joined:
                    yield ChunkRow((*row.start[:-1], starts[first]), after - first)
                    first = after

    def take(self, row: ChunkRow, inside: tuple[slice, ...], into: NDArray[Any]) -> None:
        """Read a part of a row. All its chunks are read at once."""
        if row.chunks == 1:
            super().take(row, inside, into)
            return
        values = np.empty((row.chunks, *self.chunks), self.dtype)
        self._fill(values, self._place(row.start))
        by_chunk = into.reshape(*into.shape[:-1], row.chunks, self.chunks[-1])  # the same memory
        by_chunk[...] = np.moveaxis(values[(slice(None), *inside[:-1])], 0, -2)

    def _fill(self, values: NDArray[Any], place: int) -> None:
        """Read bytes from a place in the file.

        Raises:
            OSError: the file ends before.
        """
        left = memoryview(values.reshape(-1).view(np.uint8).data)
        while left:
            count = system.read_into(self._descriptor, left, place)
            if not count:
                raise OSError(f"{self._dataset.file.filename}: ends at {place}, within {self.name}")
            left, place = left[count:], place + count
