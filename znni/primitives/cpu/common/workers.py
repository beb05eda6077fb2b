"""One pool of threads for everything that runs on the CPU.

Each kernel below is single-threaded and releases the interpreter lock: numba with ``nogil``,
FFTW with one thread, BLAS held to one. All parallelism is tasks on these workers, so that
no two libraries' pools ever fight over the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Generic, TypeVar

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
        round_ = _Round(task, items)
        with _threadpools().limit(limits=1, user_api="blas"):
            try:
                for worker in range(1, self.threads):
                    self._pool.submit(round_.take_part, worker)
                round_.take_items(0)
                round_.close()
            except BaseException:  # a signal's, too, wherever it arrives
                round_.close()
                raise
        round_.raise_failure()


class _Round(Generic[Item]):
    """One list of tasks, and who is at it."""

    def __init__(self, task: Callable[[int, Item], None], items: Iterable[Item]) -> None:
        self._task = task
        self._remaining = iter(items)
        self._lock = Lock()
        self._closed = False
        self._busy = 0
        self._idle = Lock()  # held by those who are busy
        self._failure: BaseException | None = None

    def take_items(self, worker: int) -> None:
        """Do what remains, until nothing does or the round is closed."""
        while True:
            with self._lock:
                if self._closed:
                    return
                try:
                    item = next(self._remaining)
                except StopIteration:
                    return
            self._task(worker, item)

    def take_part(self, worker: int) -> None:
        """``take_items``, unless it is too late; a failure closes the round and is kept."""
        with self._lock:
            if self._closed:
                return
            if not self._busy:
                self._idle.acquire()
            self._busy += 1
        try:
            self.take_items(worker)
        except BaseException as error:
            self._closed, self._failure = True, self._failure or error
        with self._lock:
            self._busy -= 1
            if not self._busy:
                self._idle.release()

    def close(self) -> None:
        """Let nobody begin, and wait until those who did take part are done.

        Signals do not end the wait: the memory that the tasks write must outlive them.
        """
        try:
            with self._lock:
                self._closed = True
            with self._idle:
                pass
        except BaseException:
            self.close()
            raise

    def raise_failure(self) -> None:
        """Raise the first failure of those who took part, if there was one."""
        failure, self._failure = self._failure, None  # its frames refer to this round
        if failure is not None:
            raise failure


@cache
def workers(threads: int) -> Workers:
    """The process's pool of that many threads."""
    return Workers(threads)


@cache
def _threadpools() -> ThreadpoolController:
    # The controller finds what is loaded by then: numpy's BLAS, and SciPy's, which numba would
    # load with the first kernel that it compiles.
    import numpy as np
    import scipy.linalg  # noqa: F401

    np.ones((1, 1)) @ np.ones((1, 1))
    return ThreadpoolController()
