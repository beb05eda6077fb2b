"""Arrays of the host in page-locked memory, from and to which a GPU copies at the link's speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from mmap import mmap
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.logged import warn_once
from znni.core.shapes import FLOAT_BYTES
from znni.machine.arena import Arena, PageLock, map_pages
from znni.machine.cuda import cupy
from znni.network.weights import Float32


class LockedArrays:
    """Arrays in page-locked memory, which is used again once nobody refers to an array.

    So there is only as much memory as arrays need at the same time. New memory would take longer
    than a copy, because the system clears each page when it is first touched.
    """

    def __init__(self) -> None:
        self._free: deque[_Locked] = deque()  # memory whose arrays are gone, from any thread

    def array(self, shape: Sequence[int], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return an array whose values are not set."""
        of_type = np.dtype(dtype)
        count = prod(shape)
        locked = self._memory(count * of_type.itemsize)
        owner = np.frombuffer(locked.pages, of_type, count)
        # Every view refers to this array, and not to the pages alone.
        finalize(owner, self._free.append, locked).atexit = False
        return owner.reshape(shape)

    def _memory(self, nbytes: int) -> _Locked:
        """Return free memory that is large enough, or else new memory instead of what is free."""
        while self._free:
            locked = self._free.popleft()
            if len(locked.pages) >= nbytes:
                return locked
            del locked
        pages = map_pages(max(1, nbytes))
        try:
            return _Locked(pages, PageLock(pages))
        except cupy().cuda.runtime.CUDARuntimeError as error:
            warn_once(
                f"copies to and from the GPU are slow, as the system locks no memory: {error}"
            )
            return _Locked(pages, None)


def pinned(shape: tuple[int, ...]) -> Float32:
    """Return a float32 array of the host that a GPU copies from at the full speed of the link.

    Raises:
        cupy.cuda.runtime.CUDARuntimeError: the system does not lock so many pages.
    """
    nbytes = prod(shape) * FLOAT_BYTES
    memory: Any = Arena(nbytes, page_locked=True).take(nbytes)
    return np.frombuffer(memory, np.float32, prod(shape)).reshape(shape)


class _Locked(NamedTuple):
    """Pages, and what keeps them locked, if the system does that."""

    pages: mmap
    lock: PageLock | None
