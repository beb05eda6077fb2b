"""Threads that encode, decode, read and write the chunks of volumes.

They are beside the workers that compute: storage, codecs and copies of memory all let go of the
interpreter's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import TypeVar

from znni.machine.detect import detect_host

Item = TypeVar("Item")
Result = TypeVar("Result")

# Storage and memory are busy long before more threads of one process are.
MOST_THREADS = 16


@cache
def io_threads() -> int:
    """How many there are: one for every core that the process may use, within reason."""
    return min(MOST_THREADS, detect_host().host.threads)


def mapped(
    task: Callable[[Item], Result], items: Iterable[Item], most: int
) -> Generator[Result, None, None]:
    """``task(item)`` of every item, in order, by these threads.

    The first failure is raised as itself, once none is at work any more; no task begins after it.

    Args:
        task: called in any thread; it must not wait for these threads itself.
        items: taken one by one, as there is room for them.
        most: how many may have begun whose results are not yet taken, one at least.
    """
    remaining = iter(items)
    begun: deque[Future[Result]] = deque()
    try:
        for item in islice(remaining, most):
            begun.append(_pool().submit(task, item))
        while begun:
            result = begun.popleft().result()
            for item in islice(remaining, 1):
                begun.append(_pool().submit(task, item))
            yield result
    finally:
        for future in begun:
            if not future.cancel():
                future.exception()  # waits for it


def beside(task: Callable[[], Result]) -> Future[Result]:
    """Begin with a task that goes on beside what its caller does."""
    return _pool().submit(task)


def finish(results: Iterable[None]) -> None:
    """Wait for all of them."""
    for _ in results:
        pass


def at_once(allowed: int, each: int) -> int:
    """How many items of so many bytes may be in memory, where more are of no use to the threads."""
    return max(1, min(allowed // each, 2 * io_threads()))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(io_threads(), thread_name_prefix="znni-io")
