"""The threads for all work on the CPU: a pool of Python's, and a crew that compiled phases run on.

Every kernel is single-threaded and releases the interpreter lock: numba with ``nogil``, FFTW with
one thread, BLAS limited to one. All parallelism comes from tasks on these workers, so that thread
pools of different libraries never compete for the cores.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property
from itertools import pairwise
from threading import RLock
from typing import TYPE_CHECKING, Generic, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

from znni.core import system

if TYPE_CHECKING:
    from znni.primitives.cpu.common.crew import Crew
    from znni.primitives.cpu.common.machine_code import Kernel

Item = TypeVar("Item")

# Enough tasks for all workers to end together. More would not help: the interpreter takes some 40
# microseconds to hand out one task, so many small tasks keep few workers busy. Some kernels choose
# other numbers: ``SHARES_PER_WORKER`` of ``winograd`` and ``fft_tiled``, and the slabs of
# ``fft_whole_image/blocking.py``.
TASKS_PER_WORKER = 16


def even_slices(total: int, count: int) -> Iterator[slice]:
    """Return ``range(total)``, which is not empty, as at most ``count`` slices in order.

    No slice is empty, and their lengths differ by at most one.
    """
    count = min(count, total)
    bounds = (total * i // count for i in range(count + 1))
    return (slice(start, stop) for start, stop in pairwise(bounds))


def share_count(threads: int, total: int, most: int | None = None) -> int:
    """Return the number of slices that ``Workers.shares`` makes with that many workers."""
    count = threads * TASKS_PER_WORKER
    if most is not None:
        count = max(threads, min(count, most))
    return min(count, total)


class Workers:
    """A fixed number of threads that share a list of tasks."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(max(threads - 1, 1), thread_name_prefix="znni")

    def shares(self, total: int, most: int | None = None) -> Iterator[slice]:
        """Return nearly equal slices of ``range(total)``, as items for ``for_each``.

        Args:
            total: length of the range; positive.
            most: largest number of slices, or the number of workers if that is larger.
        """
        return even_slices(total, share_count(self.threads, total, most))

    def run(self, kernel: Kernel, arguments: Sequence[Sequence[int]], most: int) -> None:
        """Run a compiled function once in every worker, and wait for all.

        A worker may not come at all. So the function has to claim its work.

        Args:
            kernel: function that claims its work.
            arguments: its arguments for each worker.
            most: number of workers that can be of use.
        """
        if not self._crew.run(kernel, arguments, most):
            self.for_each(lambda worker, _: kernel(*arguments[worker]), range(self.threads))

    @cached_property
    def _crew(self) -> Crew:
        from znni.primitives.cpu.common.crew import Crew

        return Crew(self.threads)

    def for_each(self, task: Callable[[int, Item], None], items: Iterable[Item]) -> None:
        """Call ``task(worker, item)`` for every item, in any order, and wait for all.

        ``worker`` is below ``threads``. No two calls with the same one overlap, so it may index
        scratch memory. The calling thread is worker 0. The first exception stops the others.
        """
        round_ = _Round(task, items, self.threads)
        with serial_blas:
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
    """One list of tasks and the workers that take part in it."""

    def __init__(
        self, task: Callable[[int, Item], None], items: Iterable[Item], threads: int
    ) -> None:
        # None when no worker may begin any more, so that a late worker keeps nothing alive.
        self._task: Callable[[int, Item], None] | None = task
        self._items = deque(items)  # its popleft is atomic
        # A signal may leave a lock with the thread that closes the round. It can take it again.
        self._at_work = [RLock() for _ in range(threads)]
        self._failure: BaseException | None = None

    def take_items(self, worker: int) -> None:
        """Do the remaining tasks until none is left or the round is closed."""
        while task := self._task:
            try:
                item = self._items.popleft()
            except IndexError:
                return
            task(worker, item)

    def take_part(self, worker: int) -> None:
        """Run ``take_items``; a failure closes the round and is kept."""
        if not self._at_work[worker].acquire(blocking=False):
            return  # the round is being closed
        try:
            self.take_items(worker)
        except BaseException as error:
            self._task, self._failure = None, self._failure or error
        finally:
            self._at_work[worker].release()

    def close(self) -> None:
        """Let no worker begin, and wait until those who take part are done.

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
        """Raise the first failure of a worker, if there was one."""
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None  # its frames refer to this round


class _SerialBlas:
    """A limit of one BLAS thread while any caller is within it, such as a round.

    The limit belongs to the process. The first caller sets it, and the last one restores the number
    from before. BLAS builds on OpenMP keep a number for each thread instead. There, the limit holds
    for the thread that set it. That thread keeps it if another thread is the last to leave.
    """

    def __init__(self) -> None:
        self._counting = RLock()
        self._within = 0

    def __enter__(self) -> None:
        try:
            self._counting.acquire()
            if not self._within:
                self._limit = _threadpools("scipy.linalg" in sys.modules).limit(
                    limits=1, user_api="blas"
                )
                _let_any_thread_limit()
            self._within += 1
        finally:
            self._end_counting()

    def __exit__(self, *_: object) -> None:
        try:
            self._counting.acquire()
            self._within -= 1
            if not self._within:
                self._limit.restore_original_limits()
                _let_any_thread_limit()
        finally:
            self._end_counting()

    def _end_counting(self) -> None:
        """Release the lock if this thread has it.

        From Python 3.14 on, a signal may come between a lock and the block of its ``with``. Then
        nothing would release the lock.
        """
        with suppress(RuntimeError):
            self._counting.release()


def _let_any_thread_limit() -> None:
    """Release the control that threadpoolctl 3.8 gives to the first thread that sets a number."""
    if hasattr(OpenBLASController, "clear_controlling_thread"):  # older versions: any thread
        OpenBLASController.clear_controlling_thread()


# The limit that all callers share. BLAS would wake threads for every small matrix. They spin while
# they wait, so that 16 cores are busy with the work of one.
serial_blas = _SerialBlas()


@cache
def workers(threads: int) -> Workers:
    """Return the process's pool of that many threads."""
    return Workers(threads)


system.after_fork(workers.cache_clear)  # a fork has none of the threads


@cache
def _threadpools(_with_scipy: bool) -> ThreadpoolController:
    """Return what limits the threads of the libraries loaded by now.

    These are numpy's BLAS and, if it is loaded, SciPy's. Then they are looked for once more.
    """
    import numpy as np

    np.ones((1, 1)) @ np.ones((1, 1))
    return ThreadpoolController()
