"""Arrays that lie in files as they lie in memory."""

from __future__ import annotations

from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import DTypeLike, NDArray

from znni.core.mapped_file import MappedFile

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
        self._file = MappedFile(file, self._end)
        self._whole = self._file.array(self.dtype, offset, shape, fortran=fortran)

    def __getitem__(self, key: Any, /) -> NDArray[Any]:
        """Return a copy of the values at integers and slices.

        Raises:
            ValueError: the file is too short meanwhile.
        """
        # The system ends a process that reads mapped pages beyond the end of their file.
        self._file.check_length(self._end)
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
                self._file.give_back(planes[first : first + depth])
        return made
