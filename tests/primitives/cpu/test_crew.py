"""A crew: every thread runs a function, and what happens if one cannot begin or must end."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from forks import forked

from znni.primitives.cpu.common import crew
from znni.primitives.cpu.common.crew import Crew
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.simd import Argument, Emitter
from znni.primitives.cpu.common.workers import Workers, workers

THREADS = 5
EACH = 1000


def adding() -> Kernel:
    """Return a function that claims numbers below ``stop``, and adds up the claimed ones."""
    emit = Emitter(
        "adding",
        counter=Argument.INDICES,
        stop=Argument.INDEX,
        total=Argument.INDICES,
        pause=Argument.INDEX,
    )
    with emit.claims(emit["counter"], emit["stop"]) as number:
        emit.announce(emit["total"], number)
        with emit.when(emit["pause"], "!=", 0):
            emit.call(emit["pause"], [])
    return emit.compile()


class Sum:
    """The numbers below ``EACH``, to be added up by the threads."""

    def __init__(self, threads: int, pause: int = 0) -> None:
        self.counter, self.totals = np.zeros(1, np.int64), np.zeros((threads, 8), np.int64)
        counter = self.counter.ctypes.data
        self.arguments = [(counter, EACH, total.ctypes.data, pause) for total in self.totals]

    def check(self) -> None:
        assert self.totals.sum() == sum(range(EACH))


@contextmanager
def threads_meet(count: int) -> Iterator[tuple[int, set[int]]]:
    """Yield the address of a function that waits for so many threads at once, and their names."""
    here, met = threading.Barrier(count), set[int]()

    @ctypes.CFUNCTYPE(None)
    def meet() -> None:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            here.wait(timeout=60)

    yield ctypes.cast(meet, ctypes.c_void_p).value or 0, met


def test_every_thread_runs_the_function_with_its_own_arguments() -> None:
    team, kernel = Crew(THREADS), adding()
    for _ in range(3):
        with threads_meet(THREADS) as (pause, met):
            work = Sum(THREADS, pause)
            assert team.run(kernel, work.arguments, most=THREADS)
        work.check()
        assert len(met) == THREADS
        assert threading.get_ident() in met


def test_no_more_threads_are_woken_than_can_be_of_use() -> None:
    team, kernel = Crew(THREADS), adding()
    with threads_meet(2) as (pause, met):
        work = Sum(THREADS, pause)
        assert team.run(kernel, work.arguments, most=2)
    work.check()
    assert len(met) == 2


def test_many_short_functions_follow_each_other() -> None:
    team, kernel = Crew(THREADS), adding()
    for _ in range(300):
        work = Sum(THREADS)
        assert team.run(kernel, work.arguments, most=THREADS)
        work.check()


def test_a_crew_at_work_runs_nothing_else_and_workers_then_do_it() -> None:
    pool, kernel = Workers(2), adding()
    begun, end = threading.Event(), threading.Event()

    @ctypes.CFUNCTYPE(None)
    def occupy() -> None:
        begun.set()
        end.wait(timeout=60)

    first = Sum(2, ctypes.cast(occupy, ctypes.c_void_p).value or 0)
    other = threading.Thread(target=pool.run, args=(kernel, first.arguments, 2))
    other.start()
    try:
        assert begun.wait(timeout=60)
        second = Sum(2)
        assert not pool._crew.run(kernel, second.arguments, most=2)
        pool.run(kernel, second.arguments, most=2)
        second.check()
    finally:
        end.set()
        other.join()
    first.check()


def test_without_semaphores_the_pool_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_semaphores", lambda: None)
    pool, work = Workers(3), Sum(3)
    assert not pool._crew.run(adding(), work.arguments, most=3)
    pool.run(adding(), work.arguments, most=3)
    work.check()


def test_a_wrong_number_of_arguments_is_an_error_and_the_crew_goes_on() -> None:
    team, kernel = Crew(2), adding()
    with pytest.raises(ValueError, match="shape"):
        team.run(kernel, [(1, 2, 3)] * 2, most=2)
    work = Sum(2)
    assert team.run(kernel, work.arguments, most=2)
    work.check()


def test_if_a_thread_cannot_start_the_next_run_starts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    before, team = set(threading.enumerate()), Crew(THREADS)

    def refuse(_thread: threading.Thread) -> None:
        if len(set(threading.enumerate()) - before) >= 2:
            raise RuntimeError("can't start new thread")
        start(_thread)

    start = threading.Thread.start
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            team.run(adding(), Sum(THREADS).arguments, most=THREADS)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
    with threads_meet(THREADS) as (pause, met):
        work = Sum(THREADS, pause)
        assert team.run(adding(), work.arguments, most=THREADS)
    work.check()
    assert len(met) == THREADS


def test_threads_end_when_nobody_has_the_crew() -> None:
    before = set(threading.enumerate())  # those of earlier crews may still be ending
    team = Crew(THREADS)
    assert team.run(adding(), Sum(THREADS).arguments, most=THREADS)
    begun = set(threading.enumerate()) - before
    assert len(begun) == THREADS - 1
    del team
    gc.collect()
    for thread in begun:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_a_fork_has_a_crew_of_its_own() -> None:
    kernel = adding()
    workers(2).run(kernel, Sum(2).arguments, 2)
    child = forked()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            with threads_meet(2) as (pause, met):
                work = Sum(2, pause)
                workers(2).run(kernel, work.arguments, 2)
            work.check()
            code = 0 if len(met) == 2 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
