"""Host arrays: aligned allocation, and measurement of the process's memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import psutil
from numpy.typing import DTypeLike, NDArray

from znni.core import system

# Files of Linux about this process. The first two tell its resident memory and the peak of it, and
# writing to the third resets the peak. Other systems have no such files.
STATM, STATUS, CLEAR_REFS = "/proc/self/statm", "/proc/self/status", "/proc/self/clear_refs"
PAGE_BYTES = mmap.PAGESIZE
MOST_READ = 2**16  # bytes; such a file has a few thousand

ALIGNMENT = 64  # bytes: a cache line, and the widest SIMD register


def empty_aligned(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised C-contiguous array that starts on a cache line."""
    dtype = np.dtype(dtype)
    nbytes = prod(shape) * dtype.itemsize
    buffer = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + nbytes].view(dtype).reshape(shape)


def front(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the first values of a C-contiguous array, as an array of another shape."""
    return array.reshape(-1)[: prod(shape)].reshape(shape)


@dataclass
class Peak:
    """Resident memory of the process in bytes: at the start, and the highest since then."""

    before: int
    highest: int = 0

    @property
    def added(self) -> int:
        """Bytes above the resident memory at the start."""
        return self.highest - self.before


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measure the peak resident memory of this process within a ``with`` block.

    On Linux it is the kernel's high-water mark, reset at the start. Elsewhere it is the largest
    since the process began, which is an upper bound.
    """
    reset_high_water_mark()
    peak = Peak(before=resident_memory())
    yield peak
    peak.highest = max(high_water_mark(), peak.before)


def resident_memory() -> int:
    """Return the resident bytes of this process now."""
    try:
        pages = _content(STATM).split()[1]
    except OSError:
        return int(psutil.Process().memory_info().rss)
    return int(pages) * PAGE_BYTES


def reset_high_water_mark() -> None:
    """Make ``high_water_mark`` count from now, if the system can."""
    with suppress(OSError):
        descriptor = os.open(CLEAR_REFS, os.O_WRONLY)
        try:
            os.write(descriptor, b"5")
        finally:
            os.close(descriptor)


def high_water_mark() -> int:
    """Return the peak resident bytes of this process."""
    try:
        status = _content(STATUS)
    except OSError:
        return system.peak_resident_bytes()
    return _field(status, b"VmHWM")


def resident_shared_memory() -> int:
    """Return how many resident bytes of this process are shared memory.

    Mapped files do not count. If the system does not say, it is 0.
    """
    try:
        status = _content(STATUS)
    except OSError:
        return 0
    return _field(status, b"RssShmem")


def _field(status: bytes, name: bytes) -> int:
    """Return the bytes in a field of Linux's file ``STATUS``; 0 if it has no such field."""
    found = status.partition(b"\n%b:" % name)[2].split(maxsplit=1)
    return int(found[0]) * 1024 if found else 0


def _content(path: str) -> bytes:
    """Return what Linux tells in a file about this process. A run of many volumes asks often."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, MOST_READ)
    finally:
        os.close(descriptor)


def return_freed_memory() -> None:
    """Return freed memory to the system, where the C library can. It keeps some of it otherwise."""
    if trim := system.c_function("malloc_trim"):
        trim(0)
