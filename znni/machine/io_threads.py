"""Threads that encode, decode, read, write and scale parts of volumes.

They run beside the threads that compute. Storage, codecs and memory copies all release the
interpreter's lock.

Reading and writing share these threads. A thread that waits for a result computes it itself if
nobody has begun it. So writing a block never waits until the threads have read another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from itertools import islice
from threading import Lock, local
from typing import Generic, TypeVar

from znni.machine.detect import detect_host

Item = TypeVar("Item")
Result = TypeVar("Result")

# Knows in each thread whether it is one of these.
_this_thread = local()

# More threads of one process do not help: storage and memory are busy long before.
MOST_THREADS = 16


@cache
def io_threads() -> int:
    """Return the number of these threads: one per core that the process may use, at most 16."""
    return min(MOST_THREADS, detect_host().host.threads)


class _Waiting(Generic[Result]):
    """A task that the first thread to take it computes. It keeps nothing alive after that."""

    def __init__(self, task: Callable[[], Result], future: Future[Result]) -> None:
        self._left = [(task, future)]
        self._taking = Lock()

    def take(self) -> list[tuple[Callable[[], Result], Future[Result]]]:
        """Return the task and the place of its result; nothing if another thread has taken it."""
        with self._taking:
            left, self._left = self._left, []
        return left

    def compute(self) -> None:
        """Compute the task in this thread, unless another thread has taken it."""
        before, _this_thread.is_one = getattr(_this_thread, "is_one", False), True
        try:
            for task, future in self.take():
                try:
                    future.set_result(task())
                except BaseException as error:
                    future.set_exception(error)
                del task, future  # an error keeps this frame, and would be kept by it
        finally:
            _this_thread.is_one = before


class Begun(Generic[Result]):
    """A task that these threads compute, or the thread that first asks for its result.

    Args:
        task: the task; it must not wait for these threads but by ``mapped``.
    """

    def __init__(self, task: Callable[[], Result]) -> None:
        self._future: Future[Result] = Future()
        self._waiting = _Waiting(task, self._future)
        _pool().submit(self._waiting.compute)

    def result(self) -> Result:
        """Return the result, and raise what the task raises."""
        self._waiting.compute()
        try:
            return self._future.result()
        finally:
            del self  # as above

    def drop(self) -> None:
        """Wait for the task if a thread is at it. Else nobody ever computes it."""
        if not self._waiting.take():
            self._future.exception()


def mapped(
    task: Callable[[Item], Result], items: Iterable[Item], most: int
) -> Generator[Result, None, None]:
    """Yield ``task(item)`` for every item, in order, computed by these threads and the caller.

    The first failure is raised unchanged, after all running tasks have ended. No task begins after
    a failure. If one of these threads calls this, it computes all results itself.

    Args:
        task: function called in any thread; it must not wait for these threads in another way.
        items: items, taken one by one as there is room for them.
        most: largest number of begun tasks whose results are not yet taken; at least one.
    """
    if getattr(_this_thread, "is_one", False):
        yield from map(task, items)
        return
    remaining = iter(items)
    begun: deque[Begun[Result]] = deque()
    try:
        for item in islice(remaining, most):
            begun.append(beside(partial(task, item)))
        while begun:
            result = begun.popleft().result()
            for item in islice(remaining, 1):
                begun.append(beside(partial(task, item)))
            yield result
    finally:
        for one in begun:
            one.drop()


def beside(task: Callable[[], Result]) -> Begun[Result]:
    """Begin a task beside the caller."""
    return Begun(task)


def finish(results: Iterable[None]) -> None:
    """Wait for all results."""
    for _ in results:
        pass


def finish_all(task: Callable[[Item], None], items: Iterable[Item], most: int) -> None:
    """Call ``task(item)`` for every item, as ``mapped``.

    If it is one at a time, the caller's thread does that. Each thread may keep some of the memory
    that it gives back, so several threads would keep more.
    """
    finish(map(task, items) if most == 1 else mapped(task, items, most))


def at_once(allowed: int, each: int) -> int:
    """Return how many items may be in memory at once, but no more than the threads can use.

    Args:
        allowed: bytes for all items together.
        each: bytes of one item.
    """
    return max(1, min(allowed // each, 2 * io_threads()))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(io_threads(), "znni-io")
