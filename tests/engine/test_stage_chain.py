"""Stages: order, how many items there are, and what ends them."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from functools import partial
from typing import Any

import pytest
from left_behind import threads_here

from znni.engine.stage_chain import ChainThreads, StageChain, in_turn, run_stages


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
    together = threading.Barrier(3, timeout=60)

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

    threads = threads_here()
    with pytest.raises(KeyboardInterrupt):
        run_stages(range(1), [lambda x: x, lambda x: x, last], here=0)
    assert ended == [0]
    assert threads_here() <= threads


def test_a_signal_ends_threads_that_have_started_before_all_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise they would wait for ever, and so would the end of the process."""
    before, start = threads_here(), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if threads_here() - before:
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        ChainThreads(range(9), [StageChain([abs, abs])]) as threads,
    ):
        threads.finish()
    assert threads_here() <= before


def test_chains_share_items_and_each_takes_one_when_it_is_free() -> None:
    together = threading.Barrier(3, timeout=60)
    done: list[tuple[int, int]] = []

    def chain(index: int) -> StageChain:
        def first(number: int) -> int:
            if number < 3:
                together.wait()
            return number

        return StageChain([in_turn([first, lambda number: done.append((index, number))])])

    with ChainThreads(range(30), map(chain, range(3))) as threads:
        threads.finish()
    assert sorted(number for _, number in done) == list(range(30))
    assert {index for index, _ in done} == {0, 1, 2}
    for index in range(3):
        taken = [number for at, number in done if at == index]
        assert taken == sorted(taken)


def test_an_error_in_one_chain_ends_all_after_the_items_that_they_are_at() -> None:
    both = threading.Barrier(2, timeout=60)
    ended: list[int] = []

    def work(number: int) -> None:
        both.wait()
        if number == 0:
            raise ValueError("the first")
        time.sleep(0.05)
        ended.append(number)

    with (
        pytest.raises(ValueError, match="the first"),
        ChainThreads(range(9), [StageChain([work])] * 2) as threads,
    ):
        threads.finish()
    assert ended == [1]


def test_what_this_thread_raises_meanwhile_comes_after_an_earlier_error_of_a_chain() -> None:
    threads = threads_here()

    def work(_number: int) -> None:
        raise ValueError("of the chain")

    def wait_and_fail() -> None:
        for thread in threads_here() - threads:  # it ends when its error is noted
            thread.join(60)
        raise RuntimeError("of this thread")

    with (
        pytest.raises(ValueError, match="of the chain"),
        ChainThreads(range(9), [StageChain([work])]) as working,
    ):
        working.meanwhile(wait_and_fail)
    with pytest.raises(RuntimeError, match="of this thread"), ChainThreads([], []) as working:
        working.meanwhile(wait_and_fail)
    assert threads_here() <= threads


@pytest.mark.parametrize("here", [0, 1])
def test_stages_are_let_go_of_without_the_garbage_collector(here: int) -> None:
    """Their runner holds a device's memory, which the next plan is given."""
    gc.collect()
    gc.disable()
    try:
        runner = Item(0)
        held = weakref.ref(runner)
        stages = [partial(max, runner, key=id), partial(max, runner, key=id)]
        del runner
        run_stages(range(3), stages, here)
        del stages
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("chains", [1, 4])
def test_what_stops_the_source_is_called_once(chains: int) -> None:
    """Closing a file descriptor twice could close that of another file."""
    called: list[int] = []
    met = threading.Barrier(chains)

    def fails(_item: int) -> None:
        met.wait()
        raise ValueError("all chains at the same time")

    work = ChainThreads(
        range(chains), [StageChain([fails], None)] * chains, lambda: called.append(1)
    )
    with pytest.raises(ValueError, match="same time"), work:
        work.finish()
    assert called == [1]


def test_later_stages_are_asked_for_while_the_first_ones_work() -> None:
    taken, handed = threading.Event(), threading.Event()
    done: list[int] = []
    main = threading.current_thread()

    def first(number: int) -> int:
        taken.set()
        assert handed.wait(60)
        return number

    def later() -> list[Any]:
        def here(number: int) -> int:
            assert threading.current_thread() is main
            return number + 1

        return [here, done.append]

    with ChainThreads(range(5), [StageChain([first], here=1, later=later)]) as threads:
        assert taken.wait(60)
        threads.meanwhile(handed.set)
        threads.finish()
    assert done == [1, 2, 3, 4, 5]


def test_a_chain_is_over_once_after_its_last_item() -> None:
    done: list[Any] = []
    chains = [
        StageChain([abs, done.append], over=partial(done.append, "one stage after the other")),
        StageChain([abs], later=lambda: [done.append], over=partial(done.append, "later stages")),
    ]
    for chain in chains:
        done.clear()
        with ChainThreads(range(9), [chain]) as work:
            work.finish()
        assert done == [*range(9), chain.over.args[0]]  # type: ignore[attr-defined]


def test_an_error_before_later_stages_begin_is_raised_as_itself() -> None:
    def not_made() -> list[Any]:
        raise MemoryError("no room for the stages")

    made = StageChain([abs], later=lambda: [abs])
    with (
        pytest.raises(MemoryError, match="no room for the stages"),
        ChainThreads(range(5), [made, StageChain([abs], later=not_made)]) as threads,
    ):
        threads.finish()
