"""Tasks of the threads that read and write: who computes them, and what they leave."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Barrier, Event, get_ident
from weakref import ref

import numpy as np
import pytest

from znni.machine.io_threads import beside, io_threads, mapped

SECONDS = 30


@contextmanager
def all_busy() -> Iterator[None]:
    """Keep all of these threads busy within a ``with`` block."""
    go_on, begun = Event(), Barrier(io_threads() + 1)

    def read() -> bool:
        begun.wait(SECONDS)
        return go_on.wait(SECONDS)

    reading = [beside(read) for _ in range(io_threads())]
    try:
        begun.wait(SECONDS)
        yield
    finally:
        go_on.set()
    assert all(one.result() for one in reading)


def test_writing_does_not_wait_while_all_threads_read() -> None:
    with all_busy():
        here = [get_ident()] * 5
        assert list(mapped(lambda _: get_ident(), range(5), most=3)) == here
        assert beside(get_ident).result() == here[0]


def test_a_task_that_another_thread_took_keeps_nothing_alive() -> None:
    with all_busy():
        values = np.ones(10)
        gone, result = ref(values), beside(values.copy).result()
        del values
        assert gone() is None
        gone = ref(result)
        del result
        assert gone() is None


def test_nothing_keeps_a_failure_alive() -> None:
    class Failure(Exception):
        """A failure that can be watched."""

    def fail() -> None:
        raise Failure

    gc.disable()
    try:
        for ask in (lambda: beside(fail).result(), lambda: list(mapped(lambda _: fail(), [0], 1))):
            with pytest.raises(Failure) as raised:
                ask()
            gone = ref(raised.value)
            del raised
            assert gone() is None
    finally:
        gc.enable()


def test_results_are_in_order_and_few_are_ahead() -> None:
    taken, ahead = 0, []

    def items() -> Iterator[int]:
        for number in range(40):
            ahead.append(number - taken)
            yield number

    for result in mapped(lambda number: number**2, items(), most=3):
        assert result == taken**2
        taken += 1
    assert taken == 40
    assert max(ahead) <= 3


def test_the_first_failure_is_raised_and_no_task_begins_after_it() -> None:
    done: list[int] = []

    def task(number: int) -> None:
        if number == 3:
            raise ValueError(number)
        done.append(number)

    with pytest.raises(ValueError, match="3"):
        list(mapped(task, range(100), most=2))
    assert set(done) <= {0, 1, 2, 4}


def test_a_task_of_these_threads_computes_its_own_tasks() -> None:
    def outer(_: int) -> set[int]:
        return set(mapped(lambda _: get_ident(), range(4), most=2)) ^ {get_ident()}

    assert list(mapped(outer, range(2 * io_threads()), most=io_threads())) == [set()] * 2 * (
        io_threads()
    )
