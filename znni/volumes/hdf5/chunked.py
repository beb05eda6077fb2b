"""HDF5 datasets whose chunks are read by several threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import product
from math import prod
from threading import Lock
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.machine.io_threads import at_once, finish, mapped

NOWHERE = -1  # the place of a chunk that the file does not list


def chunk_places(dataset: h5py.Dataset) -> NDArray[np.int64]:
    """Return where in its file each chunk begins, by its index in the grid of chunks, or `NOWHERE`.

    HDF5 lists a thousand chunks in 2 ms. Asked for the place of one, it looks through half of all.
    """
    grid = [-(-extent // step) for extent, step in zip(dataset.shape, dataset.chunks, strict=True)]
    places = np.full(grid, NOWHERE, np.int64)

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        index = (at // step for at, step in zip(chunk.chunk_offset, dataset.chunks, strict=True))
        places[tuple(index)] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    return places


class ChunkedDataset(ABC):
    """A dataset in chunks, sliced by ``slice(start, stop)`` along each axis.

    Together the threads hold at most one copy of the data being read.

    Args:
        dataset: the dataset.
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
        """Return a part of the values of a chunk.

        Args:
            start: the first index of the chunk along each axis.
            inside: the part, counted from there.
        """

    def _place(self, start: tuple[int, ...]) -> int:
        """Return where a chunk begins in the file, or `NOWHERE`. The first call lists all."""
        with self._listing:
            if self._places is None:
                self._places = chunk_places(self._dataset)
        index = (at // size for at, size in zip(start, self.chunks, strict=True))
        return int(self._places[tuple(index)])

    def __getitem__(self, key: tuple[slice, ...], /) -> NDArray[Any]:
        ranges = [range(*part.indices(size)) for part, size in zip(key, self.shape, strict=True)]
        starts = list(self._starts(ranges))
        if len(starts) == 1:
            return self.part(starts[0], self._inside(starts[0], ranges))
        found = np.empty([len(part) for part in ranges], self.dtype)

        def read(start: tuple[int, ...]) -> None:
            inside = self._inside(start, ranges)
            place = tuple(
                slice(first + part.start - r.start, first + part.stop - r.start)
                for first, part, r in zip(start, inside, ranges, strict=True)
            )
            found[place] = self.part(start, inside)

        finish(mapped(read, starts, at_once(found.nbytes, self._task_bytes)))
        return found

    def _inside(self, start: tuple[int, ...], ranges: list[range]) -> tuple[slice, ...]:
        """Return the part of a chunk that lies in some ranges, counted from its start."""
        return tuple(
            slice(max(part.start - first, 0), min(part.stop - first, size))
            for first, size, part in zip(start, self.chunks, ranges, strict=True)
        )

    def _starts(self, ranges: list[range]) -> Iterator[tuple[int, ...]]:
        """Yield the starts of the chunks that a part overlaps."""
        yield from product(
            *(
                range(part.start // size * size, part.stop, size)
                for part, size in zip(ranges, self.chunks, strict=True)
            )
        )
