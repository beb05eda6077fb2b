"""Memory of a GPU that a patch's arrays share: one allocation, of the size that a plan promises.

A GPU has no pages to fall back on, so free memory must never be in pieces. Arrays of a patch nest:
each layer's output goes to the other end of the memory than its input, workspace next to what was
there last, and what is taken last at an end is freed first there. So a stack at each end holds
them all, and the free memory is what lies between the two.
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

from znni.machine.arena import given_output
from znni.machine.cuda import cupy

ALIGNMENT = 512  # bytes: as CuPy's own pool aligns, which is enough for any access
MOST_ARRAYS = 2048  # that are alive at a time and lose less than ALIGNMENT each

_current: ContextVar[DeviceArena | None] = ContextVar("_current", default=None)
_arenas: WeakSet[DeviceArena] = WeakSet()


def new_device_output(shape: tuple[int, ...]) -> Any:
    """An uninitialised float32 ``cupy.ndarray`` for a layer's output, or the one given for it.

    Raises:
        ValueError: the one given has another shape.
    """
    given = given_output(shape)
    if given is not None:
        return given
    arena = _current.get()
    if arena:
        arena.change_ends()
    return _allocate(arena, shape, np.float32)


def device_workspace(shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """An uninitialised ``cupy.ndarray`` that lives no longer than the call that takes it.

    Of several that a call takes, those taken last should be freed first: others are free only
    when all that were taken after them, at the same end, are.
    """
    return _allocate(_current.get(), shape, dtype)


def _allocate(arena: DeviceArena | None, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    memory = arena.take(prod(shape) * np.dtype(dtype).itemsize) if arena else None
    return cupy().ndarray(shape, dtype, memptr=memory)


class DeviceArena:
    """A fixed amount of memory of the current GPU, for the arrays of one thread and one stream.

    Memory is free for the next array as soon as nothing in Python refers to the last one: work on
    one stream is done in the order in which it was asked for.

    Args:
        capacity: bytes of the arrays alive at a time.

    Raises:
        cupy.cuda.runtime.CUDARuntimeError: the GPU does not have them.
    """

    def __init__(self, capacity: int) -> None:
        self._ends = TwoStacks(capacity_with_alignment(capacity))
        self._memory = allocate(self._ends.capacity)
        _arenas.add(self)

    @property
    def capacity(self) -> int:
        """Bytes of the memory, with what alignment takes."""
        return self._ends.capacity

    @property
    def peak(self) -> int:
        """The most bytes that were taken at a time."""
        return self._ends.peak

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Serve the arrays of this thread within a ``with`` block.

        Each begins at the same end, so that patch after patch is laid out alike.
        """
        self._ends.at_high_end = True
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def change_ends(self) -> None:
        """Allocate at the other end from now on."""
        self._ends.at_high_end = not self._ends.at_high_end

    def take(self, nbytes: int) -> Any:
        """A ``cupy.cuda.MemoryPointer``; its memory is free when nothing refers to it."""
        block = self._ends.take(nbytes)
        owner = _Owner(block, self._memory)
        address = self._memory.ptr + block.start
        memory = cupy().cuda.UnownedMemory(address, nbytes, owner, self._memory.device_id)
        return cupy().cuda.MemoryPointer(memory, 0)


def device_peak() -> int:
    """Bytes of the GPU held by arrays at their highest, as far as what holds them is still there.

    Those are the arenas' at their peaks, and what CuPy's pool has given out now: what primitives
    keep, and blocks on their way. What CUDA takes for itself is not among them.
    """
    if not _arenas:
        return 0
    kept = int(cupy().get_default_memory_pool().used_bytes())
    return kept + sum(arena.peak for arena in _arenas)


def allocate(nbytes: int) -> Any:
    """Memory of the current GPU that goes back to it, and not to a pool, when it is freed."""
    return cupy().cuda.Memory(nbytes)


@contextmanager
def for_now() -> Iterator[None]:
    """Give the GPU what is allocated within a ``with`` block back as soon as it is dropped.

    Of memory that goes back to CuPy's pool a small array may take a part, and then holds it all.
    """
    with cupy().cuda.using_allocator(lambda n: cupy().cuda.MemoryPointer(allocate(n), 0)):
        yield


def capacity_with_alignment(nbytes: int) -> int:
    """Bytes of an arena for arrays of so many bytes, with what alignment takes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT + MOST_ARRAYS * ALIGNMENT


class Block:
    """Bytes ``start`` to ``stop`` of the memory, until they are freed."""

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.freed = False


class TwoStacks:
    """Which bytes of a memory are taken: a stack that grows from each of its ends.

    Args:
        capacity: of the memory, in bytes, a multiple of ``ALIGNMENT``.

    Attributes:
        at_high_end: where the next block is taken.
        peak: the most bytes that the stacks have held.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.at_high_end = True
        self.peak = 0
        self._low: list[Block] = []
        self._high: list[Block] = []

    def take(self, nbytes: int) -> Block:
        """A block at one end of what is free.

        Raises:
            RuntimeError: it is too large: what takes it declares less memory than it takes.
        """
        for stack in (self._low, self._high):
            while stack and stack[-1].freed:
                stack.pop()
        start = self._low[-1].stop if self._low else 0
        stop = self._high[-1].start if self._high else self.capacity
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if size > stop - start:
            raise RuntimeError(
                f"{nbytes} bytes are taken and {stop - start} of {self.capacity} are free: a "
                "primitive declares less memory than it takes, or does not free it in order"
            )
        block = Block(stop - size, stop) if self.at_high_end else Block(start, start + size)
        (self._high if self.at_high_end else self._low).append(block)
        self.peak = max(self.peak, self.capacity - (stop - start) + size)
        return block


class _Owner:
    """What an array's memory belongs to: CuPy keeps it as long as any view is alive."""

    def __init__(self, block: Block, memory: Any) -> None:
        self._block = block
        self._memory = memory  # stays allocated until the last array is gone

    def __del__(self) -> None:
        self._block.freed = True
