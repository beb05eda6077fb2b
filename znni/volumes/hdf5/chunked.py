"""HDF5 datasets whose chunks are read by several threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.machine.io_threads import at_once, finish, mapped


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
        self._task_bytes = copies * prod(chunks) * self.dtype.itemsize

    @abstractmethod
    def part(self, start: tuple[int, ...], inside: tuple[slice, ...]) -> NDArray[Any]:
        """Return a part of the values of a chunk.

        Args:
            start: the first index of the chunk along each axis.
            inside: the part, counted from there.
        """

    def __getitem__(self, key: tuple[slice, ...], /) -> NDArray[Any]:
        ranges = [range(*part.indices(size)) for part, size in zip(key, self.shape, strict=True)]
        found = np.empty([len(part) for part in ranges], self.dtype)

        def read(start: tuple[int, ...]) -> None:
            ends = zip(start, self.chunks, ranges, strict=True)
            both = [(max(a, part.start), min(a + size, part.stop)) for a, size, part in ends]
            inside = tuple(slice(a - b, c - b) for (a, c), b in zip(both, start, strict=True))
            place = tuple(
                slice(a - r.start, c - r.start) for (a, c), r in zip(both, ranges, strict=True)
            )
            found[place] = self.part(start, inside)

        finish(mapped(read, self._starts(ranges), at_once(found.nbytes, self._task_bytes)))
        return found

    def _starts(self, ranges: list[range]) -> Iterator[tuple[int, ...]]:
        """Yield the starts of the chunks that a part overlaps."""
        yield from product(
            *(
                range(part.start // size * size, part.stop, size)
                for part, size in zip(ranges, self.chunks, strict=True)
            )
        )
