"""Files that are mapped into memory to be read. Their pages are given back once they are used."""

from __future__ import annotations

import mmap
import os
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import DTypeLike, NDArray

from znni.core import system
from znni.core.shapes import round_up

# Bytes that Linux maps around a page that is read, if they are in memory already.
MAPPED_TOGETHER = max(2**16, mmap.PAGESIZE)

# Tells the system that pages read so far need not stay in the process's memory. Not everywhere.
FORGET = getattr(mmap, "MADV_DONTNEED", None)


class MappedFile(mmap.mmap):
    """A file that is mapped into memory, to be read.

    It is the same if another file takes its name. It stays open, with its locks, as long as an
    array of it is there.
    """

    _start: int  # its address

    def __new__(cls, file: str | Path | int, needed: int = 1) -> Self:
        """Map a file.

        Args:
            file: the path of the file, or its descriptor, which may be closed afterwards.
            needed: the bytes that it must have.

        Raises:
            ValueError: the file has fewer.
            OSError: it cannot be opened or mapped.
        """
        flags = os.O_RDONLY | system.AS_BYTES
        descriptor = file if isinstance(file, int) else os.open(file, flags)
        try:
            _check_length(os.fstat(descriptor).st_size, needed)  # an empty file cannot be mapped
            made = super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            if descriptor is not file:
                os.close(descriptor)  # the mapping keeps one of its own
        made._start = np.frombuffer(made, np.uint8, 1).ctypes.data
        return made

    def array(
        self, dtype: DTypeLike, offset: int, shape: tuple[int, ...], *, fortran: bool = False
    ) -> NDArray[Any]:
        """Return an array of the file, which cannot be written.

        Args:
            dtype: the type of the values.
            offset: the place of the first byte.
            shape: the extents.
            fortran: the first axis is that of neighbouring values, and not the last one.
        """
        flat = np.frombuffer(self, dtype, prod(shape), offset)
        return flat.reshape(shape, order="F" if fortran else "C")

    def check_length(self, needed: int) -> None:
        """Check that the file still has so many bytes.

        Raises:
            ValueError: it has fewer.
        """
        _check_length(self.size(), needed)

    def give_back(self, values: NDArray[Any]) -> None:
        """Give back the pages of some values, and those around them that were mapped with them.

        The system reads them again when they are needed.
        """
        if FORGET is None or not values.size:
            return
        low, high = (place - self._start for place in byte_bounds(values))
        first = low // MAPPED_TOGETHER * MAPPED_TOGETHER
        length = min(round_up(high, MAPPED_TOGETHER), len(self)) - first
        self.madvise(FORGET, first, length)


def give_back(values: NDArray[Any]) -> None:
    """Give back the pages of an array, if it lies in a ``MappedFile``. Else do nothing."""
    if file := _file_of(values):
        file.give_back(values)


def check_length(values: NDArray[Any]) -> None:
    """Check that the file of an array is whole, if the array lies in a ``MappedFile``.

    The system ends a process that reads mapped pages beyond the end of their file.

    Raises:
        ValueError: the file was cut.
    """
    if file := _file_of(values):
        file.check_length(len(file))


def _file_of(values: NDArray[Any]) -> MappedFile | None:
    owner: Any = values
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, MappedFile) else None


def _check_length(length: int, needed: int) -> None:
    if missing := max(0, needed - length):
        raise ValueError(f"its last {missing} bytes are missing")
