"""HDF5 datasets whose chunks are read by several threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import product
from math import prod
from threading import Lock
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.machine.io_threads import at_once, finish_all
from znni.volumes.chunk_ranges import chunk_starts, common, counted_from

NOWHERE = -1  # the place of a chunk that the file does not list


# Bytes that are worth the waking of threads.
LEAST_SHARED = 2**18


def chunk_places(dataset: h5py.Dataset) -> NDArray[np.int64]:
    """Return where in its file each chunk begins, by its index in the grid of chunks, or `NOWHERE`.

    HDF5 lists a thousand chunks in 1 ms. Asked for the place of one, it looks through half of all.
    """
    chunks = dataset.chunks
    grid = [-(-extent // step) for extent, step in zip(dataset.shape, chunks, strict=True)]
    places = np.full(grid, NOWHERE, np.int64)
    starts, found = list[tuple[int, ...]](), list[int]()

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        starts.append(chunk.chunk_offset)
        found.append(chunk.byte_offset)

    dataset.id.chunk_iter(note)
    if found:
        places[tuple(np.array(starts).T // np.array(chunks)[:, None])] = found
    return places


class ChunkRow(NamedTuple):
    """Chunks that follow each other along the last axis, and are read together."""

    start: tuple[int, ...]
    chunks: int


class ChunkReader(ABC):
    """A reader of a dataset in chunks, sliced by ``slice(start, stop)`` along each axis.

    ``PlainDataset`` reads chunks as they are, and ``CompressedDataset`` decodes them.

    Together the threads hold at most one copy of the data being read, or what one chunk takes.

    Args:
        chunks: the extents of its chunks.
        copies: the copies of a chunk that a thread holds.

    Attributes:
        name: name in its file.
        shape: extents.
        dtype: type of its values.
        chunks: extents of its chunks.
        pieces: the same extents: threads may read chunks at the same time.
    """

    def __init__(self, dataset: h5py.Dataset, chunks: tuple[int, ...], copies: int) -> None:
        self.name: str = dataset.name
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype: np.dtype[Any] = dataset.dtype
        self.chunks = self.pieces = chunks
        self._dataset = dataset
        self._places: NDArray[np.int64] | None = None
        self._listing = Lock()
        self._task_bytes = copies * prod(chunks) * self.dtype.itemsize

    @abstractmethod
    def part(self, start: tuple[int, ...], inside: tuple[slice, ...]) -> NDArray[Any]:
        """Return a part of the values of a chunk."""

    def _place(self, start: tuple[int, ...]) -> int:
        """Return where a chunk begins in the file, or `NOWHERE`. The first call lists all."""
        with self._listing:
            if self._places is None:
                self._places = chunk_places(self._dataset)
        index = (at // size for at, size in zip(start, self.chunks, strict=True))
        return int(self._places[tuple(index)])

    def __getitem__(self, key: tuple[slice, ...], /) -> NDArray[Any]:
        wanted = [range(*part.indices(size)) for part, size in zip(key, self.shape, strict=True)]
        rows = list(self.chunk_rows(wanted))
        if len(rows) == 1 and rows[0].chunks == 1:
            (row,) = rows
            return self.part(row.start, counted_from(row.start, self._common(row, wanted)))
        found = np.empty([len(part) for part in wanted], self.dtype)
        firsts = [part.start for part in wanted]

        def read(row: ChunkRow) -> None:
            both = self._common(row, wanted)
            self.take(row, counted_from(row.start, both), found[counted_from(firsts, both)])

        most = at_once(found.nbytes, self._task_bytes) if found.nbytes > LEAST_SHARED else 1
        finish_all(read, rows, most)
        return found

    def chunk_rows(self, wanted: list[range]) -> Iterator[ChunkRow]:
        """Yield all chunks that a part overlaps, each as a row of its own."""
        yield from (ChunkRow(start, 1) for start in product(*chunk_starts(wanted, self.chunks)))

    def take(self, row: ChunkRow, inside: tuple[slice, ...], into: NDArray[Any]) -> None:
        """Read a part of a row, which is one chunk.

        Args:
            row: the chunk. If there are several, the part has all along the last axis.
            inside: the part, counted from the start of the row.
            into: room for the values of the part.
        """
        into[...] = self.part(row.start, inside)

    def _common(self, row: ChunkRow, wanted: list[range]) -> list[range]:
        """Return what a part and a row have in common."""
        return common(wanted, row.start, (*self.chunks[:-1], row.chunks * self.chunks[-1]))
