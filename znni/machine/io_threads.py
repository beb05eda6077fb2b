"""Threads that encode, decode, read, write and scale parts of volumes.

They run beside the threads that compute. Storage, codecs and memory copies all release the
interpreter's lock.

Each purpose has threads of its own. Reading hands in the tasks of a whole block, or of a block for
each GPU. If writing waited behind these tasks, the written block would keep its memory, and the
next block would have none. Layers are built while the first block is read, and their tasks
do not wait either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from operator import length_hint
from threading import local
from typing import Literal, TypeAlias, TypeVar

from znni.core import system
from znni.machine.detect import detect_host

Item = TypeVar("Item")
Result = TypeVar("Result")

Purpose: TypeAlias = Literal["reading", "writing", "building"]

# Knows in each thread whether it is one of these.
_this_thread = local()

# More threads of one process do not help: storage and memory are busy long before.
MOST_THREADS = 16


def io_threads_on(cores: int) -> int:
    """Return the number of threads for each purpose on so many cores: one per core, at most 16."""
    return min(MOST_THREADS, cores)


@cache
def io_threads() -> int:
    """Return the number of threads for each purpose in this process."""
    return io_threads_on(detect_host().host.threads)


def mapped(
    task: Callable[[Item], Result], items: Iterable[Item], most: int, purpose: Purpose = "reading"
) -> Generator[Result, None, None]:
    """Yield ``task(item)`` for every item, in order, computed by these threads.

    The first failure is raised unchanged, after all running tasks have ended. No task begins after
    a failure. If one of these threads calls this, it computes all results itself. So does any
    caller if there is one item, and ``items`` knows that.

    Args:
        task: function called in any thread; it must not wait for these threads in another way.
        items: items, taken one by one as there is room for them.
        most: largest number of begun tasks whose results are not yet taken; at least one.
        purpose: which of the threads.
    """
    if getattr(_this_thread, "is_one", False) or length_hint(items) == 1:
        yield from map(task, items)
        return
    remaining, submit = iter(items), _pool(purpose).submit
    begun: deque[Future[Result]] = deque()
    try:
        for item in islice(remaining, most):
            begun.append(submit(task, item))
        while begun:
            result = begun.popleft().result()
            for item in islice(remaining, 1):
                begun.append(submit(task, item))
            yield result
    finally:
        for future in begun:
            if not future.cancel():
                future.exception()  # waits for it


def begin_task(task: Callable[[], Result], purpose: Purpose = "reading") -> Future[Result]:
    """Begin a task that runs beside the caller, in one of the threads for a purpose."""
    return _pool(purpose).submit(task)


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


def _note_thread() -> None:
    _this_thread.is_one = True


@cache
def _pool(purpose: Purpose) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(io_threads(), f"znni-{purpose}", _note_thread)


system.after_fork(_pool.cache_clear)  # a fork has none of the threads
