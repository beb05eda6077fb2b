"""One pool of threads for everything that runs on the CPU.

Each kernel below is single-threaded and releases the interpreter lock: numba with ``nogil``,
FFTW with one thread, BLAS held to one. All parallelism is tasks on these workers, so that
no two libraries' pools ever fight over the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from threading import Lock
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from znni.primitives.cpu.common.even_slices import even_slices

Item = TypeVar("Item")

# Enough that all workers end together. Not more: the interpreter hands out one task at a time,
# which takes it some 40 microseconds, so that many small tasks keep few workers busy.
TASKS_PER_WORKER = 16


class Workers:
    """A fixed number of threads that share out a list of tasks."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(max(threads - 1, 1), thread_name_prefix="znni")

    def shares(self, total: int, most: int | None = None) -> Iterator[slice]:
        """Nearly equal slices of ``range(total)``, as items for ``for_each``.

        Args:
            total: positive.
            most: slices, where a worker has one at least.
        """
        count = self.threads * TASKS_PER_WORKER
        if most is not None:
            count = max(self.threads, min(count, most))
        return even_slices(total, count)

    def for_each(self, task: Callable[[int, Item], None], items: Iterable[Item]) -> None:
        """Call ``task(worker, item)`` for every item, in any order, and wait for all.

        ``worker`` is below ``threads`` and no two calls with the same one overlap: it may index
        scratch memory. The calling thread is worker 0. The first exception stops the others.
        """
        remaining = iter(items)
        lock = Lock()
        stop = False

        def work(worker: int) -> None:
            nonlocal stop
            try:
                while not stop:
                    with lock:
                        try:
                            item = next(remaining)
                        except StopIteration:
                            return
                    task(worker, item)
            except BaseException:
                stop = True
                raise

        others: list[Future[None]] = []
        with _threadpools().limit(limits=1, user_api="blas"):
            try:
                others.extend(self._pool.submit(work, i) for i in range(1, self.threads))
                work(0)
                wait(others)
            except BaseException:  # a signal's, too, wherever it arrives
                stop = True
                _outwait(others)
                raise
            for other in others:
                other.result()


def _outwait(others: Iterable[Future[None]]) -> None:
    """Wait until none runs, signals or not: the memory that they write must outlive them."""
    try:
        wait(others)
    except BaseException:
        _outwait(others)
        raise


@cache
def workers(threads: int) -> Workers:
    """The process's pool of that many threads."""
    return Workers(threads)


@cache
def _threadpools() -> ThreadpoolController:
    import numpy as np  # loads the BLAS that the controller then finds

    np.ones((1, 1)) @ np.ones((1, 1))
    return ThreadpoolController()
