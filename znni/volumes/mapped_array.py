"""Arrays that lie in files as they lie in memory."""

from __future__ import annotations

import mmap
import os
import weakref
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

# Tells the system that pages read so far need not stay in the process's memory. Not everywhere.
FORGET = getattr(mmap, "MADV_DONTNEED", None)


class MappedArray:
    """An array of a file that is mapped into memory anew for each read.

    The file stays open, so that the array is the same if another file takes its name. Pages are
    given back plane by plane, because the process's memory would hold all that were read, and
    their neighbours.

    Args:
        path: the file.
        dtype: the type of the values.
        offset: the place of the first byte.
        shape: the extents.
        fortran: the first axis is that of neighbouring values, and not the last one.

    Raises:
        ValueError: the file is too short.
        OSError: it cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        dtype: DTypeLike,
        offset: int,
        shape: tuple[int, ...],
        *,
        fortran: bool = False,
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._offset, self._fortran = offset, fortran
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._file)
        missing = offset + prod(shape) * self.dtype.itemsize - os.fstat(self._file).st_size
        if missing > 0:
            raise ValueError(f"its last {missing} bytes are missing")

    def __getitem__(self, key: Any, /) -> NDArray[Any]:
        """Return a copy of the values at integers and slices."""
        if not prod(self.shape):
            return np.array(np.empty(self.shape, self.dtype)[key])
        pages = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)  # until nothing refers to it
        whole: NDArray[Any] = np.ndarray(
            self.shape, self.dtype, pages, self._offset, order="F" if self._fortran else "C"
        )
        return _copied(whole[key], pages)


def _copied(values: Any, pages: mmap.mmap) -> NDArray[Any]:
    """Return a copy of values in mapped pages, and give the pages back."""
    given = np.asarray(values)
    made = np.empty(given.shape, given.dtype)
    for at in np.ndindex(given.shape[:-2]):
        made[at] = given[at]
        if FORGET is not None:
            pages.madvise(FORGET)
    return made
