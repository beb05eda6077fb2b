"""GPU memory shared by a patch's arrays: one allocation of the size that a plan promises.

A GPU has no pages to fall back on, so the free memory must stay in one piece. Within a patch,
``step`` serves each call at the places that a plan decided (``znni.plans.placement``). What a call
takes beside its output nests: the last array taken is freed first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import DTypeLike

from znni.core.shapes import round_up
from znni.machine.arena import given_output
from znni.machine.cuda import cupy

ALIGNMENT = 512  # bytes: as CuPy's own pool aligns, which is enough for any access
MOST_ARRAYS = 2048  # that are alive at a time and lose less than ALIGNMENT each
SPARE = MOST_ARRAYS * ALIGNMENT

_current: ContextVar[DeviceArena | None] = ContextVar("_current", default=None)
_arenas: WeakSet[DeviceArena] = WeakSet()


def new_device_output(shape: tuple[int, ...]) -> Any:
    """Return an uninitialised float32 ``cupy.ndarray`` for a layer's output, or the one given.

    Raises:
        ValueError: the given array has another shape.
    """
    given = given_output(shape)
    if given is not None:
        return given
    arena = _current.get()
    if arena:
        arena.change_ends()
    return _allocate(arena, shape, np.float32)


def device_workspace(shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """Return an uninitialised ``cupy.ndarray`` that lives no longer than the call that takes it.

    A call that takes several should free the last one first. An array's memory is available again
    only when all arrays taken after it, at the same end, are freed.
    """
    return _allocate(_current.get(), shape, dtype)


def _allocate(arena: DeviceArena | None, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    memory = arena.take(prod(shape) * np.dtype(dtype).itemsize) if arena else None
    return cupy().ndarray(shape, dtype, memptr=memory)


class DeviceArena:
    """A fixed amount of memory of the current GPU, for the arrays of one thread and one stream.

    Memory is free for the next array as soon as nothing in Python refers to the last one. This is
    safe because one stream does its work in the order of the requests.

    Args:
        capacity: bytes of the arrays alive at a time.
        spare: bytes beside these, for what the alignment of arrays takes.

    Raises:
        cupy.cuda.runtime.CUDARuntimeError: the GPU does not have so much memory.
    """

    def __init__(self, capacity: int, spare: int = SPARE) -> None:
        self._capacity = capacity_with_alignment(capacity, spare)
        self._memory = allocate(self._capacity)
        self._ends = TwoStacks(0, self._capacity)
        self._peak = 0
        _arenas.add(self)

    @property
    def capacity(self) -> int:
        """Bytes of the memory, with what alignment takes."""
        return self._capacity

    @property
    def peak(self) -> int:
        """The most bytes that were taken at a time."""
        return max(self._peak, self._ends.peak)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Serve the arrays of this thread within a ``with`` block.

        Every block begins at the same end, so that all patches have the same layout.
        """
        self._ends.at_high_end = True
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def step(self, room: tuple[int, int]) -> Iterator[None]:
        """Serve the workspace of one call within a ``with`` block, where it was decided before.

        Args:
            room: the first byte for workspace, and the one after the last.
        """
        self._ends = TwoStacks(*room)
        taken = self.capacity - self._ends.size
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._peak = max(self._peak, taken + self._ends.peak)

    def array_at(self, start: int, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Any:
        """Return an array that begins at a byte of the arena."""
        memory = cupy().cuda.MemoryPointer(self._memory, start)
        return cupy().ndarray(shape, dtype, memptr=memory)

    def change_ends(self) -> None:
        """Allocate at the other end from now on."""
        self._ends.at_high_end = not self._ends.at_high_end

    def take(self, nbytes: int) -> Any:
        """Return a ``cupy.cuda.MemoryPointer``; its memory is freed with the last reference."""
        block = self._ends.take(nbytes)
        owner = _Owner(block, self._memory)
        address = self._memory.ptr + block.start
        memory = cupy().cuda.UnownedMemory(address, nbytes, owner, self._memory.device_id)
        return cupy().cuda.MemoryPointer(memory, 0)


def device_peak() -> int:
    """Return the peak bytes of the GPU held by arrays, as far as their owners still exist.

    It is the sum of the arenas' peaks and of what CuPy's pool has given out now. The pool serves
    what primitives keep, and blocks in transfer. Memory that CUDA takes for itself is not counted.
    """
    if not _arenas:
        return 0
    kept = int(cupy().get_default_memory_pool().used_bytes())
    return kept + sum(arena.peak for arena in _arenas)


def allocate(nbytes: int) -> Any:
    """Return memory of the current GPU that goes back to it, not to a pool, when freed."""
    return cupy().cuda.Memory(nbytes)


@contextmanager
def for_now() -> Iterator[None]:
    """Give memory allocated within a ``with`` block back to the GPU as soon as it is dropped.

    Memory in CuPy's pool goes back later: a small array may take a part of a large piece there, and
    then it holds the whole piece.
    """
    with cupy().cuda.using_allocator(lambda n: cupy().cuda.MemoryPointer(allocate(n), 0)):
        yield


def capacity_with_alignment(nbytes: int, spare: int = SPARE) -> int:
    """Return the bytes of an arena for arrays of that many bytes, with what alignment takes."""
    return round_up(nbytes, ALIGNMENT) + spare


class ByteRange:
    """Bytes ``start`` to ``stop`` of the memory, until they are freed."""

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.freed = False


class TwoStacks:
    """Bookkeeping of the bytes taken from a memory: a stack grows from each end.

    Args:
        start: the first byte, a multiple of ``ALIGNMENT``.
        stop: the byte after the last, a multiple of ``ALIGNMENT``.

    Attributes:
        at_high_end: True if the next block is taken at the high end.
        peak: largest number of bytes that the stacks have held.
    """

    def __init__(self, start: int, stop: int) -> None:
        self._start, self._stop = start, stop
        self.at_high_end = True
        self.peak = 0
        self._low: list[ByteRange] = []
        self._high: list[ByteRange] = []

    @property
    def size(self) -> int:
        """Bytes between the two ends."""
        return self._stop - self._start

    def take(self, nbytes: int) -> ByteRange:
        """Return a block at one end of the free memory.

        Raises:
            RuntimeError: the block is too large, because a primitive declares too little memory.
        """
        for stack in (self._low, self._high):
            while stack and stack[-1].freed:
                stack.pop()
        start = self._low[-1].stop if self._low else self._start
        stop = self._high[-1].start if self._high else self._stop
        size = round_up(nbytes, ALIGNMENT)
        if size > stop - start:
            raise RuntimeError(
                f"{nbytes} bytes are taken and {stop - start} of {self.size} are free: a "
                "primitive declares less memory than it takes, or does not free it in order"
            )
        block = ByteRange(stop - size, stop) if self.at_high_end else ByteRange(start, start + size)
        (self._high if self.at_high_end else self._low).append(block)
        self.peak = max(self.peak, self.size - (stop - start) + size)
        return block


class _Owner:
    """Owner of an array's memory: CuPy keeps it as long as any view is alive."""

    def __init__(self, block: ByteRange, memory: Any) -> None:
        self._block = block
        self._memory = memory  # stays allocated until the last array is gone

    def __del__(self) -> None:
        self._block.freed = True


# Bytes for the driver: it rounds allocations up, and it keeps memory for kernels and libraries once
# they are called. All primitives together take 30 MiB (`python -m bench exercise --memory`). With
# recordings of all its blocks, a U-Net took 48.3 MiB on an H100.
DRIVER_BYTES = 56 * 2**20

# GPU bytes that a run takes beside its arrays, whatever its blocks are.
DEVICE_BYTES = capacity_with_alignment(0) + DRIVER_BYTES
