"""One pool of threads for everything that runs on the CPU.

Each kernel below is single-threaded and releases the interpreter lock: numba with ``nogil``,
FFTW with one thread, BLAS held to one. All parallelism is tasks on these workers, so that
no two libraries' pools ever fight over the cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Generic, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

from znni.primitives.cpu.common.even_slices import even_slices

Item = TypeVar("Item")

# Enough that all workers end together. Not more: the interpreter hands out one task at a time,
# which takes it some 40 microseconds, so that many small tasks keep few workers busy.
TASKS_PER_WORKER = 16


def share_count(threads: int, total: int, most: int | None = None) -> int:
    """How many slices ``Workers.shares`` makes, with so many workers."""
    count = threads * TASKS_PER_WORKER
    if most is not None:
        count = max(threads, min(count, most))
    return min(count, total)


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
        return even_slices(total, share_count(self.threads, total, most))

    def for_each(self, task: Callable[[int, Item], None], items: Iterable[Item]) -> None:
        """Call ``task(worker, item)`` for every item, in any order, and wait for all.

        ``worker`` is below ``threads`` and no two calls with the same one overlap: it may index
        scratch memory. The calling thread is worker 0. The first exception stops the others.
        """
        round_ = _Round(task, items, self.threads)
        with _serial_blas:
            try:
                try:
                    for worker in range(1, self.threads):
                        self._pool.submit(round_.take_part, worker)
                    round_.take_items(0)
                finally:
                    round_.close()
            finally:  # a signal may have come before the first line of close
                round_.close()
        round_.raise_failure()


class _Round(Generic[Item]):
    """One list of tasks, and who is at it."""

    def __init__(
        self, task: Callable[[int, Item], None], items: Iterable[Item], threads: int
    ) -> None:
        # None once nobody may begin: a worker that comes later keeps nothing alive.
        self._task: Callable[[int, Item], None] | None = task
        self._items = deque(items)  # whose popleft is atomic
        self._at_work = [Lock() for _ in range(threads)]
        self._failure: BaseException | None = None

    def take_items(self, worker: int) -> None:
        """Do what remains, until nothing does or the round is closed."""
        while task := self._task:
            try:
                item = self._items.popleft()
            except IndexError:
                return
            task(worker, item)

    def take_part(self, worker: int) -> None:
        """``take_items``; a failure closes the round and is kept."""
        with self._at_work[worker]:
            try:
                self.take_items(worker)
            except BaseException as error:
                self._task, self._failure = None, self._failure or error

    def close(self) -> None:
        """Let nobody begin, and wait until those who did take part are done.

        Signals do not end the wait: the memory that the tasks write must outlive them.
        """
        try:
            self._task = None
            for at_work in self._at_work:
                with at_work:
                    pass
        except BaseException:
            self.close()
            raise

    def raise_failure(self) -> None:
        """Raise the first failure of those who took part, if there was one."""
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None  # its frames refer to this round


class _SerialBlas:
    """Holds BLAS to one thread while any caller's round is under way.

    The number is the process's: the first round takes the limit, and the last puts back what was
    before it. Builds of BLAS on OpenMP keep a number for each thread instead: there the limit holds
    for the thread that took it, which keeps it where the last round is another's.
    """

    def __init__(self) -> None:
        self._counting = Lock()
        self._rounds = 0

    def __enter__(self) -> None:
        with self._counting:
            if not self._rounds:
                self._limit = _threadpools().limit(limits=1, user_api="blas")
                _let_any_thread_limit()
            self._rounds += 1

    def __exit__(self, *_: object) -> None:
        with self._counting:
            self._rounds -= 1
            if not self._rounds:
                self._limit.restore_original_limits()
                _let_any_thread_limit()


def _let_any_thread_limit() -> None:
    """Give up the control that threadpoolctl 3.8 gives the first thread that sets a number."""
    if hasattr(OpenBLASController, "clear_controlling_thread"):  # before, every thread has it
        OpenBLASController.clear_controlling_thread()


_serial_blas = _SerialBlas()


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
