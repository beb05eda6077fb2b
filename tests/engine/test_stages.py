"""Stages: order, how many items there are, and what ends them."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from typing import Any

import pytest

from znni.engine.stages import run_stages


class Item:
    """Something that is counted as long as anything refers to it."""

    most = 0

    def __init__(self, number: int) -> None:
        self.number = number
        ALIVE.add(self)
        Item.most = max(Item.most, len(ALIVE))


ALIVE: weakref.WeakSet[Item] = weakref.WeakSet()


@pytest.mark.parametrize("here", [0, 1, 3])
def test_all_items_go_through_all_stages_in_order(here: int) -> None:
    done: list[tuple[int, int]] = []

    def stage(index: int) -> Any:
        def work(number: int) -> int:
            done.append((index, number))
            return number

        return work

    run_stages(range(20), [stage(index) for index in range(4)], here)
    for index in range(4):
        assert [number for at, number in done if at == index] == list(range(20))


@pytest.mark.parametrize("slow", range(3))
def test_no_stage_holds_more_than_what_it_takes_and_what_it_makes(slow: int) -> None:
    """However slow another is: an item before it, one in each, and one that each has made."""

    def stage(index: int) -> Any:
        def work(item: Item) -> Item:
            if index == slow:
                time.sleep(0.003)
            return Item(item.number)

        return work

    Item.most = 0
    run_stages(range(12), [Item, stage(0), stage(1), stage(2), lambda _: None], here=1)
    assert Item.most <= 4 + 3
    assert not ALIVE


def test_stages_work_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=10)

    def work(number: int) -> int:
        if number == 2:
            together.wait()
        return number + 1

    run_stages(range(6), [work, work, work], here=1)


def test_a_signal_ends_a_run_whose_own_stage_has_nothing_left_to_do() -> None:
    """The others finish the items that they are at."""
    ended: list[int] = []

    def last(number: int) -> None:
        signal.raise_signal(signal.SIGINT)  # which the main thread gets
        time.sleep(0.05)
        ended.append(number)

    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run_stages(range(1), [lambda x: x, lambda x: x, last], here=0)
    assert ended == [0]
    assert threading.active_count() == threads
