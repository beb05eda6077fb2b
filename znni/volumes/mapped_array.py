"""Arrays that lie in files as they lie in memory."""

from __future__ import annotations

import mmap
import os
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import DTypeLike, NDArray

from znni.core import system
from znni.core.shapes import round_up
from znni.machine.handling_times import MAPPED_TOGETHER

# Tells the system that pages read so far need not stay in the process's memory. Not everywhere.
FORGET = getattr(mmap, "MADV_DONTNEED", None)

# Bytes that a thread reads before it gives their pages back, or one plane if that is more. The
# threads on other cores stop for a moment then.
HELD = 2**20


class MappedArray:
    """An array of a file that is mapped into memory. Several threads may read it.

    The array is the same if another file takes the name of its file. Pages are given back as soon
    as some planes are copied, because the process's memory would hold all that were read, and their
    neighbours.

    Args:
        file: the path of the file, or its descriptor. The file stays open, with its locks, as long
            as the array is there; the descriptor may be closed.
        dtype: the type of the values.
        offset: the place of the first byte.
        shape: the extents.
        fortran: the first axis is that of neighbouring values, and not the last one.

    Attributes:
        shape: the extents.
        dtype: the type of the values.
        row: the extents of the values that follow each other along one axis.
        pieces: the extents of a plane, which threads may read at the same time; None if the planes
            of an array with this order of axes lie in one another.

    Raises:
        ValueError: the file is too short.
        OSError: it cannot be opened or mapped.
    """

    def __init__(
        self,
        file: str | Path | int,
        dtype: DTypeLike,
        offset: int,
        shape: tuple[int, ...],
        *,
        fortran: bool = False,
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        ones = (1,) * (len(shape) - 1)
        self.row = (*shape[:1], *ones) if fortran else (*ones, *shape[-1:])
        self.pieces = None if fortran else (*(1 for _ in shape[:-2]), *shape[-2:])
        self._end = offset + prod(shape) * self.dtype.itemsize
        flags = os.O_RDONLY | system.AS_BYTES
        descriptor = file if isinstance(file, int) else os.open(file, flags)
        try:
            self._check_length(os.fstat(descriptor).st_size)  # an empty file cannot be mapped
            self._pages = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            if descriptor is not file:
                os.close(descriptor)  # the mapping keeps one of its own
        if not prod(shape):
            self._whole: NDArray[Any] = np.empty(shape, self.dtype)
            return
        flat = np.frombuffer(self._pages, self.dtype, prod(shape), offset)
        self._whole = flat.reshape(shape, order="F" if fortran else "C")
        self._start = byte_bounds(self._whole)[0] - offset

    def __getitem__(self, key: Any, /) -> NDArray[Any]:
        """Return a copy of the values at integers and slices.

        Raises:
            ValueError: the file is too short meanwhile.
        """
        # The system ends a process that reads mapped pages beyond the end of their file.
        self._check_length(self._pages.size())
        given = self._whole[key]
        if not given.ndim:
            return np.asarray(given)  # one value is no view
        made = np.empty(given.shape, given.dtype)
        for at in product(*map(range, given.shape[:-3])):
            planes, copies = (
                array[at] if array.ndim > 2 else array[np.newaxis] for array in (given, made)
            )
            low, high = byte_bounds(planes)
            depth = max(1, len(planes) * HELD // max(1, high - low))
            for first in range(0, len(planes), depth):
                copies[first : first + depth] = planes[first : first + depth]
                self._give_back(planes[first : first + depth])
        return made

    def _check_length(self, length: int) -> None:
        missing = self._end - length
        if missing > 0:
            raise ValueError(f"its last {missing} bytes are missing")

    def _give_back(self, values: NDArray[Any]) -> None:
        """Give back the pages of some values, and those around them that were mapped with them."""
        if FORGET is None or not values.size:
            return
        low, high = (place - self._start for place in byte_bounds(values))
        first = low // MAPPED_TOGETHER * MAPPED_TOGETHER
        length = min(round_up(high, MAPPED_TOGETHER), len(self._pages)) - first
        self._pages.madvise(FORGET, first, length)
