"""Host memory shared by a patch's arrays, so that the system provides each page only once.

The first touch of a page costs more than many passes over it: the system must find it and clear
it. An arena keeps its pages between arrays. Within a patch, ``step`` serves each call at the places
that a plan decided (``znni.plans.placement``). Outside of a patch, as in a benchmark, ``in_use``
serves a call: its output and its workspace lie at the same end.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from math import prod
from threading import Event
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core import system
from znni.core.shapes import round_up
from znni.core.text import in_units
from znni.machine.arrays import ALIGNMENT, empty_aligned
from znni.machine.cuda import cupy
from znni.machine.detect import usable_cores
from znni.network.weights import Float32

SMALL = 64 * 1024  # bytes; malloc serves smaller arrays as well
SPARE = 2048  # bytes that the alignment of a call's arrays takes at the most
TOUCHED = 64 * 2**20  # bytes that a thread touches at a time

# How pages are mapped that no other process sees. Windows has no others without a file.
PRIVATE: dict[str, Any] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)

_current: ContextVar[Arena | None] = ContextVar("_current", default=None)
_given: ContextVar[Float32 | None] = ContextVar("_given", default=None)


@contextmanager
def output_into(array: Any) -> Iterator[None]:
    """Use this array for the one output that is made within a ``with`` block.

    Args:
        array: the array, of the host or a GPU. It may be packed. None: the output is a new one.
    """
    token = _given.set(array)
    try:
        yield
    finally:
        _given.reset(token)


def given_output(shape: tuple[int, ...]) -> Any:
    """Return the array given by ``output_into``, on the host or a GPU, or None.

    Raises:
        ValueError: the array has another shape.
    """
    given = _given.get()
    if given is not None and given.shape != tuple(shape):
        raise ValueError(f"an output of {given.shape} is given where {shape} is made")
    return given


def new_output(shape: tuple[int, ...]) -> Float32:
    """Return an uninitialised float32 array for a layer's output, or the one given for it.

    Raises:
        ValueError: the given array has another shape.
    """
    given: Float32 | None = given_output(shape)
    if given is not None:
        return given
    arena = _current.get()
    return arena.new_output(shape) if arena else _allocate(None, shape, np.float32)


def workspace(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised, aligned array that lives no longer than the call that takes it."""
    return _allocate(_current.get(), shape, dtype)


def _allocate(arena: Arena | None, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    memory: object
    if nbytes < SMALL:
        memory = empty_aligned((nbytes,), np.uint8)
    elif arena:
        memory = arena.take(nbytes)
    else:
        memory = map_pages(nbytes)
    return np.frombuffer(memory, dtype, prod(shape)).reshape(shape)  # type: ignore[call-overload, no-any-return]


def map_pages(nbytes: int) -> mmap.mmap:
    """Return zeroed pages, huge ones if possible, that go back to the system when freed.

    ``malloc`` keeps freed blocks of up to some tens of megabytes. Then the peak memory would not be
    exactly what a plan declares.

    Raises:
        MemoryError: the system has no memory left.
    """
    try:
        pages = mmap.mmap(-1, nbytes, **PRIVATE)
    except OSError as error:
        raise MemoryError(f"{in_units(nbytes)} cannot be had: {error.strerror}") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class Arena:
    """A fixed amount of memory for the arrays of one thread.

    If no free piece is large enough, an array gets pages outside the arena. While such an array
    is alive, the arena's free pages go back to the system, so that resident memory never exceeds
    the capacity. Page-locked pages cannot go back, because a GPU may copy from them. So there such
    an array adds to the capacity.

    Args:
        capacity: bytes of the arrays alive at the same time.
        spare: bytes besides these, for the alignment of arrays.
        page_locked: True if a GPU copies to and from the arrays.

    Raises:
        MemoryError: the system has no memory left.
        cupy.cuda.runtime.CUDARuntimeError: the system does not lock so many pages.
    """

    def __init__(
        self, capacity: int, spare: int = mmap.PAGESIZE, *, page_locked: bool = False
    ) -> None:
        self.capacity = round_up(capacity + spare, mmap.PAGESIZE)
        self._pages = map_pages(self.capacity)
        self._address = np.frombuffer(self._pages, np.uint8).ctypes.data
        self._lock = PageLock(self._pages) if page_locked else None
        self._free = [(0, self.capacity)]  # ascending, never adjacent
        self._freed: deque[tuple[int, int]] = deque()  # blocks whose arrays are gone, any thread
        self._outside = 0
        self._at_high_end = True
        self._output: int | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Serve ``new_output`` and ``workspace`` of this thread within a ``with`` block.

        Each use begins at the same end of the arena, so that all patches have the same layout.
        """
        self._at_high_end = True
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def step(self, output: int | None, room: tuple[int, int]) -> Iterator[None]:
        """Serve one call within a ``with`` block, at places that were decided before.

        Args:
            output: where the output begins, in bytes; None if it has a place elsewhere.
            room: the first byte for output and workspace, and the one after the last.
        """
        self._free, self._freed, self._outside = [room], deque(), 0
        self._output, self._at_high_end = output, output == room[0]
        token = _current.set(self)
        try:
            yield
        finally:
            self._output = None
            _current.reset(token)

    def new_output(self, shape: tuple[int, ...]) -> Float32:
        """Return the array of a call's output: at its place, or at the other end than the last."""
        start, self._output = self._output, None
        if start is None:
            self._at_high_end = not self._at_high_end
            return _allocate(self, shape, np.float32)
        memory: Any = self._take_at(start, 4 * prod(shape))
        return np.asarray(memory).view(np.float32).reshape(shape)

    def array_at(self, start: int, shape: tuple[int, ...]) -> Float32:
        """Return an array at a byte of the arena, whatever else lies there.

        Args:
            start: the first byte.
            shape: the shape of the array.
        """
        pages = self._lock or self._pages
        nobody: deque[tuple[int, int]] = deque()
        memory: Any = _MemoryOwner(self._address, start, 0, 4 * prod(shape), pages, nobody)
        return np.asarray(memory).view(np.float32).reshape(shape)

    def _take_at(self, start: int, nbytes: int) -> object:
        """Return the memory at a byte; memory elsewhere if workspace is still there."""
        self._collect()
        stop = start + round_up(nbytes, ALIGNMENT)
        for index, (low, high) in enumerate(self._free):
            if low <= start and stop <= high:
                rest = (low, start), (stop, high)
                self._free[index : index + 1] = [piece for piece in rest if piece[0] < piece[1]]
                pages = self._lock or self._pages
                return _MemoryOwner(self._address, start, stop, nbytes, pages, self._freed)
        return self._take_outside(nbytes)

    def take(self, nbytes: int) -> object:
        """Return memory as an object with the buffer interface; it is freed with the last view."""
        size = round_up(nbytes, ALIGNMENT)
        self._collect()
        candidates = reversed(self._free) if self._at_high_end else iter(self._free)
        found = next((piece for piece in candidates if piece[1] - piece[0] >= size), None)
        if found is None:
            return self._take_outside(nbytes)
        start, stop = found
        index = self._free.index(found)
        if self._at_high_end:
            rest, taken = (start, stop - size), (stop - size, stop)
        else:
            rest, taken = (start + size, stop), (start, start + size)
        self._free[index : index + 1] = [rest] if rest[0] < rest[1] else []
        pages = self._lock or self._pages
        return np.asarray(_MemoryOwner(self._address, *taken, nbytes, pages, self._freed))

    def _take_outside(self, nbytes: int) -> object:
        for start, stop in self._free:
            self._give_back(start, stop)
        self._outside += 1
        pages = map_pages(nbytes)
        address = np.frombuffer(pages, np.uint8).ctypes.data
        return np.asarray(_MemoryOwner(address, 0, 0, nbytes, pages, self._freed))

    def _collect(self) -> None:
        """Join freed ranges to the free pieces."""
        while self._freed:
            start, stop = self._freed.popleft()
            if start == stop:
                self._outside -= 1
                continue
            if self._outside:
                self._give_back(start, stop)
            pieces = sorted([*self._free, (start, stop)])
            self._free = [pieces[0]]
            for piece in pieces[1:]:
                before = self._free[-1]
                if before[1] == piece[0]:
                    self._free[-1] = (before[0], piece[1])
                else:
                    self._free.append(piece)

    def _give_back(self, start: int, stop: int) -> None:
        """Return the whole pages of a free piece to the system."""
        if self._lock:
            return
        first = round_up(start, mmap.PAGESIZE)
        last = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)


class PageLock:
    """Pages locked in RAM, so that a GPU copies to and from them by itself.

    They stay locked until this object and all arrays in the pages are gone. All cores touch the
    pages first. Locking untouched pages takes four times as long, because one core finds and
    clears them.

    Args:
        pages: the mapping; all its pages are locked.

    Raises:
        cupy.cuda.runtime.CUDARuntimeError: the system does not lock so many pages.
    """

    def __init__(self, pages: mmap.mmap) -> None:
        self._pages = pages
        values = np.frombuffer(pages, np.uint8)
        touch(values)
        address, runtime = values.ctypes.data, cupy().cuda.runtime
        runtime.hostRegister(address, len(pages), 0)  # for the current device; not mapped into it
        self._unlock = finalize(self, runtime.hostUnregister, address)
        self._unlock.atexit = False  # the locks end with the process


def touch(values: NDArray[np.uint8]) -> None:
    """Make the system find and clear all pages of a mapping that still holds only zeros."""
    _each_page(values, lambda pages: pages.fill(0))


def touch_shared(values: NDArray[np.uint8], over: Event) -> None:
    """Make the system find all pages of shared memory, and map them for this process.

    The values stay, and others may set them at the same time.

    Args:
        values: the memory.
        over: ends this early once it is set.
    """
    _each_page(values, lambda pages: over.is_set() or pages.max())


def give_back_shared(values: NDArray[np.uint8]) -> None:
    """Give whole pages of shared memory back to the system. Nobody may use them any more.

    If the system cannot do it now, it does so when nobody maps the memory. ``mmap.madvise`` would
    keep all threads of Python waiting meanwhile: 0.1 s for 0.7 GB.

    Args:
        values: memory that begins with a page.
    """
    madvise, remove = _madvise(), getattr(mmap, "MADV_REMOVE", None)
    whole = len(values) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole and madvise and remove:
        madvise(values.ctypes.data, whole, remove)


@cache
def _madvise() -> Callable[..., int] | None:
    """Return the system's function, during which other threads go on, if it has one."""
    return system.c_function("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _each_page(values: NDArray[np.uint8], reach: Callable[[NDArray[np.uint8]], object]) -> None:
    """Reach the first byte of each page. All cores share the work."""
    starts = range(0, len(values), TOUCHED)
    pages = [values[start : start + TOUCHED : mmap.PAGESIZE] for start in starts]
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(reach, pages))  # re-raises errors of the threads


class _MemoryOwner:
    """The owner of an array's memory: NumPy keeps it as long as any view is alive."""

    def __init__(
        self,
        address: int,
        start: int,
        stop: int,
        nbytes: int,
        pages: object,
        freed: deque[tuple[int, int]],
    ) -> None:
        self._range = (start, stop)
        self._pages = pages  # stays mapped until the last array is gone
        self._freed = freed
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address + start, False),
        }

    def __del__(self) -> None:
        self._freed.append(self._range)
