"""Downloads: copies of a GPU's outputs to the host, at the full speed of the link."""

from __future__ import annotations

from collections import deque
from mmap import mmap
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from znni.core.logged import warn_once
from znni.machine.arena import PageLock, map_pages
from znni.machine.cuda import cupy


class Download:
    """Downloads of one array at a time, into page-locked memory.

    The memory of an array is used again once nobody refers to it. So there is as much memory as
    there are arrays at the same time. New memory would cost more than the copy, because the system
    clears each page when it is first touched.

    Attributes:
        stream: the stream that copies.
    """

    def __init__(self) -> None:
        self.stream = cupy().cuda.Stream(non_blocking=True)
        self._free: deque[_Locked] = deque()  # memory whose arrays are gone, from any thread

    def of(self, values: Any) -> NDArray[Any]:
        """Return a copy on the host. What the stream has not done yet is done first."""
        copy = self._array(values.shape, values.dtype, values.nbytes)
        values.get(stream=self.stream, out=copy)
        return copy

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> NDArray[Any]:
        """Return an array whose values are not set."""
        locked = self._memory(nbytes)
        owner = np.frombuffer(locked.pages, dtype, nbytes // dtype.itemsize)
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
            warn_once(f"copies from the GPU are slow, as the system locks no memory: {error}")
            return _Locked(pages, None)


class _Locked(NamedTuple):
    """Pages, and what keeps them locked, if the system does that."""

    pages: mmap
    lock: PageLock | None
