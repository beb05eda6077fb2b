"""The one thread pool of the CPU primitives."""

from __future__ import annotations

import ctypes
import gc
import signal
import threading
import time
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
from blas_threads import blas_threads
from hypothesis import given
from hypothesis import strategies as st

from znni.primitives.cpu.common.workers import Workers, even_slices, workers


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_is_done_once(threads: int) -> None:
    done: list[int] = []
    workers(threads).for_each(lambda _worker, item: done.append(item), range(100))
    assert Counter(done) == Counter(range(100))


def test_no_items_are_no_work() -> None:
    workers(2).for_each(lambda _worker, _item: pytest.fail("called"), [])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_worker_does_one_task_at_a_time(threads: int) -> None:
    busy = [threading.Lock() for _ in range(threads)]

    def task(worker: int, _item: int) -> None:
        assert busy[worker].acquire(blocking=False)
        time.sleep(0.001)
        busy[worker].release()

    workers(threads).for_each(task, range(30))


def test_all_threads_take_part_and_the_caller_is_worker_0() -> None:
    together = threading.Barrier(3, timeout=60)
    names: dict[int, str] = {}

    def task(worker: int, _item: int) -> None:
        together.wait()  # passes only if three tasks run at the same time
        names[worker] = threading.current_thread().name

    workers(3).for_each(task, range(3))
    assert set(names) == {0, 1, 2}
    assert names[0] == threading.current_thread().name


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_reaches_the_caller_and_stops_the_rest(threads: int) -> None:
    done: list[int] = []

    def task(_worker: int, item: int) -> None:
        if item == 5:
            raise ValueError("item 5")
        done.append(item)
        time.sleep(0.001)

    with pytest.raises(ValueError, match="item 5"):
        workers(threads).for_each(task, range(10_000))
    assert len(done) < 10_000
    again: list[int] = []
    workers(threads).for_each(lambda _worker, item: again.append(item), range(10))
    assert sorted(again) == list(range(10))


def check_that_nothing_goes_on(done: list[int]) -> None:
    finished = len(done)
    assert 0 < finished < 1000
    time.sleep(0.05)
    assert len(done) == finished


def test_an_exception_of_the_caller_is_raised_when_the_others_are_done() -> None:
    done: list[int] = []
    other_works = threading.Event()

    def task(worker: int, item: int) -> None:
        if worker == 0:
            assert other_works.wait(60)
            raise ValueError("worker 0")
        other_works.set()
        time.sleep(0.01)
        done.append(item)

    with pytest.raises(ValueError, match="worker 0"):
        workers(2).for_each(task, range(1000))
    check_that_nothing_goes_on(done)


def test_signals_while_waiting_stop_the_rest_and_are_raised_after_it() -> None:
    done: list[int] = []
    other_works, waiting = threading.Event(), threading.Event()

    def task(worker: int, item: int) -> None:
        if worker == 0:
            assert other_works.wait(60)
            waiting.set()
            raise KeyboardInterrupt
        other_works.set()
        assert waiting.wait(60)
        for _ in range(3):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.01)
        done.append(item)

    with pytest.raises(KeyboardInterrupt):
        workers(2).for_each(task, range(1000))
    check_that_nothing_goes_on(done)


def test_signals_of_two_kinds_at_once_do_not_end_the_wait() -> None:
    """The second signal's exception is raised at the next call of any function."""
    done: list[int] = []
    main, other_works = threading.main_thread().ident or 0, threading.Event()

    def task(worker: int, item: int) -> None:
        if worker == 0:
            assert other_works.wait(60)
            ctypes.CDLL(None).sleep(60)  # a signal ends it
            pytest.fail("no signal came")
        other_works.set()
        time.sleep(0.05)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.pthread_kill(main, number)
        time.sleep(0.2)
        done.append(item)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            workers(2).for_each(task, range(1000))
        assert len(done) == 1
        check_that_nothing_goes_on(done)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_worker_that_is_late_keeps_nothing_alive() -> None:
    pool, occupied = Workers(2), threading.Event()
    pool._pool.submit(occupied.wait, 10)
    array = np.zeros(3)
    kept = weakref.ref(array)
    pool.for_each(lambda _worker, item, array=array: array.fill(item), range(5))
    del array
    assert kept() is None
    occupied.set()


def test_a_failure_that_was_caught_keeps_nothing_alive() -> None:
    kept: list[weakref.ref[np.ndarray]] = []

    def fail(worker: int, _item: int) -> None:
        array = np.zeros(3)
        kept.append(weakref.ref(array))
        time.sleep(0.01)
        raise ValueError(f"worker {worker}")

    gc.disable()
    try:
        for _ in range(10):
            with pytest.raises(ValueError, match="worker"):
                workers(1).for_each(fail, range(3))
        assert not [ref for ref in kept if ref() is not None]
    finally:
        gc.enable()


def test_a_signal_while_work_is_handed_out_leaves_nobody_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []
    begun, pool = threading.Event(), Workers(2)
    submit = pool._pool.submit

    def interrupted_submit(*arguments: Any) -> None:
        submit(*arguments)
        assert begun.wait(60)
        raise KeyboardInterrupt

    def task(_worker: int, item: int) -> None:
        begun.set()
        time.sleep(0.01)
        done.append(item)

    monkeypatch.setattr(pool._pool, "submit", interrupted_submit)
    with pytest.raises(KeyboardInterrupt):
        pool.for_each(task, range(1000))
    check_that_nothing_goes_on(done)


def test_a_worker_that_comes_when_all_is_done_is_not_waited_for() -> None:
    pool, occupied = Workers(2), threading.Event()
    pool._pool.submit(occupied.wait, 10)
    done: list[int] = []
    pool.for_each(lambda _worker, item: done.append(item), range(5))
    assert done == list(range(5))
    occupied.set()


@pytest.mark.usefixtures("several_blas_threads")
def test_blas_has_one_thread_inside_and_its_own_number_again_outside() -> None:
    np.ones((2, 2)) @ np.ones((2, 2))
    before, inside = blas_threads(), list[int]()
    workers(2).for_each(lambda _worker, _item: inside.extend(blas_threads()), range(4))
    assert set(inside) == {1}
    assert blas_threads() == before


@pytest.mark.usefixtures("several_blas_threads")
def test_rounds_that_overlap_have_one_thread_of_blas_and_leave_it_as_it_was() -> None:
    begun, first_ended = threading.Event(), threading.Event()

    def outlast(_worker: int, _item: int) -> None:
        inside.extend(blas_threads())
        begun.set()
        assert first_ended.wait(60)
        inside.extend(blas_threads())

    before, inside = blas_threads(), list[int]()
    last = threading.Thread(target=lambda: workers(1).for_each(outlast, range(1)))
    workers(1).for_each(lambda _worker, _item: (last.start(), begun.wait(60)), range(1))
    first_ended.set()
    last.join()
    assert set(inside) == {1}
    assert len(inside) == 2 * len(before)
    assert blas_threads() == before


def test_a_process_has_one_pool_of_each_size() -> None:
    assert workers(2) is workers(2)
    assert isinstance(workers(2), Workers)
    assert workers(2).threads == 2


@given(total=st.integers(1, 200), count=st.integers(1, 50))
def test_even_slices_make_up_the_range(total: int, count: int) -> None:
    slices = list(even_slices(total, count))
    assert [i for part in slices for i in range(total)[part]] == list(range(total))
    lengths = {part.stop - part.start for part in slices}
    assert len(slices) == min(count, total)
    assert max(lengths) - min(lengths) <= 1
