"""Tasks that these threads and their caller share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Lock, get_ident

import pytest

from znni.machine import io_threads
from znni.machine.io_threads import beside, for_each


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_threads, "io_threads", lambda: 4)


@pytest.mark.parametrize("most", [1, 2, 9])
def test_each_item_has_its_turn_and_no_more_at_a_time_than_allowed(most: int) -> None:
    counting, begun, done = Lock(), [], []
    at_work = highest = 0

    def task(item: int) -> None:
        nonlocal at_work, highest
        with counting:
            begun.append(item)
            at_work += 1
            highest = max(highest, at_work)
        time.sleep(0.001)
        with counting:
            at_work -= 1
            done.append(item)

    for_each(task, iter(range(50)), most)
    assert sorted(done) == list(range(50))
    assert highest <= min(most, 4)


def test_the_caller_does_what_busy_threads_do_not() -> None:
    """No task waits for threads that others keep."""
    release, callers = Lock(), set()
    with release:
        held = [beside(release.acquire) for _ in range(64)]
        for_each(lambda _: callers.add(get_ident()), range(20), 4)
        assert callers == {get_ident()}
        for one in held:
            one.cancel()
    for one in held:
        if not one.cancelled():
            one.result()
            release.release()


def test_the_first_failure_ends_it_and_is_raised() -> None:
    begun = []

    def task(item: int) -> None:
        begun.append(item)
        if item == 3:
            raise OSError(f"{item} failed")
        time.sleep(0.001)

    with pytest.raises(OSError, match="3 failed"):
        for_each(task, range(1000), 2)
    assert len(begun) < 10


def test_a_failure_of_the_items_is_raised() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        for_each(lambda _: None, items(), 3)
