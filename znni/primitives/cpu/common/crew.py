"""Threads that wait for compiled functions and run them without the interpreter.

A thread that returns to Python waits for the interpreter's lock. The thread takes some 50
microseconds to wake up and to take the lock, and the other threads wait meanwhile. So 64 threads
need milliseconds to begin and to end together. The threads of a crew stay in compiled code, where
only the system wakes them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from threading import RLock, Thread
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.system import c_function
from znni.machine.arrays import ALIGNMENT
from znni.primitives.cpu.common.machine_code import Kernel, address_of, yield_address
from znni.primitives.cpu.common.simd import Argument, Emitter, Value

INDICES, INDEX = Argument.INDICES, Argument.INDEX

# Number of arguments of a function that a crew runs.
ARGUMENTS = 4

# Places of a crew's numbers. Numbers that many threads write have cache lines of their own. The
# state is minus the number of threads at work. While threads may begin, it is lower by ``OPEN``.
LINE = ALIGNMENT // np.dtype(np.int64).itemsize
STATE, FUNCTION, TABLE, ENDED, SEMAPHORES = 0, LINE, LINE + 1, LINE + 2, 2 * LINE
OPEN = 2**32


class _Shared(NamedTuple):
    """The memory and the function that the threads of a crew share.

    Attributes:
        numbers: the crew's numbers, at the places above.
        table: the arguments for each thread.
        post: the function that wakes a thread up.
    """

    numbers: NDArray[np.int64]
    table: NDArray[np.int64]
    post: Callable[..., int]


class Crew:
    """The calling thread, and others that wait for functions in compiled code.

    Args:
        threads: number of threads, with the calling one.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._shared: _Shared | None = None
        # A signal may leave the lock with a thread, which can then take it again.
        self._busy = RLock()

    def run(self, kernel: Kernel, arguments: Sequence[Sequence[int]], most: int) -> bool:
        """Run a function in every thread, with arguments of its own, and wait for all.

        A thread that wakes up too late does not begin. So the function has to claim its work. A
        signal takes effect when all have ended.

        Args:
            kernel: function with so many ``ARGUMENTS``.
            arguments: numbers for each thread.
            most: number of threads that can be of use.

        Returns:
            False if nothing was run: the crew runs another function, or the system has no crews.
        """
        try:
            if not self._busy.acquire(blocking=False):
                return False
            if self._shared is None:
                self._shared = self._begin()
            if self._shared is None:
                return False
            numbers, table, post = self._shared
            table[:] = arguments
            numbers[FUNCTION] = kernel.address
            wanted = min(most, self._threads)
            _run_in_all()(numbers.ctypes.data, wanted, address_of(post), yield_address())
            return True
        finally:
            self._release()

    def _release(self) -> None:
        """Give the lock back, if this thread has it, also if a signal comes meanwhile."""
        try:
            with suppress(RuntimeError):  # another thread has it
                self._busy.release()
        except BaseException:
            self._release()
            raise

    def _begin(self) -> _Shared | None:
        """Start the threads, and return what they share; None if the system has no semaphores."""
        semaphores = _semaphores()
        if semaphores is None:
            return None
        begin, wait, post = semaphores
        numbers = np.zeros(SEMAPHORES + self._threads * LINE, np.int64)
        table = np.zeros((self._threads, ARGUMENTS), np.int64)
        numbers[TABLE] = table.ctypes.data
        own = [_semaphore_of(numbers, worker) for worker in range(1, self._threads)]
        if any(begin(place, 0, 0) for place in own):
            return None
        try:
            for worker in range(1, self._threads):
                arguments = _wait_and_run(), numbers, table, worker, address_of(wait)
                Thread(target=_serve, args=arguments, name=f"znni-{worker}", daemon=True).start()
            weakref.finalize(self, _end, numbers, own, post).atexit = False
        except BaseException:  # some threads have started
            _end(numbers, own, post)
            raise
        return _Shared(numbers, table, post)


@cache
def _semaphores() -> tuple[Callable[..., int], ...] | None:
    """Return the functions that make a semaphore, wait for it and post it, if there are any."""
    place = ctypes.c_void_p
    found = (
        c_function("sem_init", place, ctypes.c_int, ctypes.c_uint),
        c_function("sem_wait", place),
        c_function("sem_post", place),
    )
    return tuple(function for function in found if function) if all(found) else None


def _semaphore_of(numbers: NDArray[np.int64], worker: int) -> int:
    place: int = numbers[SEMAPHORES + worker * LINE :].ctypes.data
    return place


def _serve(
    loop: Kernel, numbers: NDArray[np.int64], _table: NDArray[np.int64], worker: int, wait: int
) -> None:
    """Do what a thread of a crew does; it keeps the memory that the others write."""
    loop(numbers.ctypes.data, worker, wait)


def _end(numbers: NDArray[np.int64], semaphores: list[int], post: Callable[..., int]) -> None:
    """Let all threads of a crew end."""
    numbers[ENDED] = 1
    for semaphore in semaphores:
        post(semaphore)


@cache
def _wait_and_run() -> Kernel:
    """Return what a thread does: wait for a function and run it, until the crew ends."""
    emit = Emitter("wait_and_run", numbers=INDICES, worker=INDEX, wait=INDEX)
    state = emit.at(emit["numbers"], STATE)
    with emit.until_set(emit.at(emit["numbers"], ENDED)):
        emit.call(emit["wait"], [_semaphore(emit, emit["worker"])])
        before = emit.added(state, emit.index(-1))
        with emit.when(before, "<=", -OPEN):
            _call(emit, emit["worker"])
        emit.announce(state, emit.index(1))
    return emit.compile()


@cache
def _run_in_all() -> Kernel:
    """Return what the calling thread does: wake the others, take part, and wait for them."""
    emit = Emitter("run_in_all", numbers=INDICES, threads=INDEX, post=INDEX, pause=INDEX)
    state = emit.at(emit["numbers"], STATE)
    emit.announce(state, emit.index(-OPEN))
    with emit.loop(emit["threads"], start=1) as worker:
        emit.call(emit["post"], [_semaphore(emit, worker)])
    _call(emit, emit.index(0))
    emit.announce(state, emit.index(OPEN))
    emit.wait_for(state, emit.index(0), emit["pause"])
    return emit.compile()


def _semaphore(emit: Emitter, worker: Value) -> Value:
    return emit.at(emit["numbers"], emit.plus(emit.times(worker, LINE), SEMAPHORES))


def _call(emit: Emitter, worker: Value) -> None:
    """Call the function with the arguments of a worker."""
    function, table = (emit.index_at(emit["numbers"], emit.index(i)) for i in (FUNCTION, TABLE))
    rows, first = emit.as_argument(table, INDICES), emit.times(worker, ARGUMENTS)
    emit.call(function, [emit.index_at(rows, emit.plus(first, i)) for i in range(ARGUMENTS)])
