"""The schedule: order, depth, failures, walltimes and the end of a run."""

from __future__ import annotations

import heapq
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from znni.cluster.schedule import DEPTH, Schedule


def schedule(blocks: int, *, attempts: int = 5) -> Schedule:
    return Schedule(np.zeros((1, 1, blocks), bool), attempts=attempts)


def taken(plan: Schedule, worker: str, now: float = 0.0) -> list[int]:
    """Take blocks until the worker gets none."""
    return list(iter(lambda: plan.next_for(worker, now), None))


def test_blocks_go_out_in_order_without_those_done_and_three_at_a_time() -> None:
    finished = np.zeros((2, 2, 2), bool)
    finished[0, 0, 1] = finished[1] = True
    finished[1, 1, 1] = False
    plan = Schedule(finished)
    plan.join("a")
    assert (plan.left, plan.in_hand) == (4, 0)
    assert taken(plan, "a") == [0, 2, 3]
    assert (plan.left, plan.in_hand) == (4, DEPTH)
    assert plan.done("a", 2, 1.0)
    assert taken(plan, "a", 1.0) == [7]
    assert (plan.left, plan.in_hand) == (3, DEPTH)


def test_a_worker_gets_the_blocks_of_a_column_one_after_another() -> None:
    finished = np.zeros(24, bool)
    finished[[0, 1, 9]] = True
    plan = Schedule(finished, column=8)
    plan.join("a")
    plan.join("b")
    assert [plan.next_for(worker, 0.0) for worker in "abab"] == [2, 8, 3, 10]
    assert plan.leave("a") == [2, 3]
    assert taken(plan, "b") == [2]
    for block in (8, 10, 2):
        assert plan.done("b", block, 1.0)
    assert taken(plan, "b", 1.0) == [3, 11, 12]
    plan.join("c")
    assert taken(plan, "c", 1.0) == [4, 5, 6], "the rest of the column of one that left"


def test_blocks_of_a_worker_that_left_go_out_first_and_are_read_again() -> None:
    plan = schedule(10)
    plan.join("a")
    plan.join("b")
    assert taken(plan, "a") == [0, 1, 2]
    assert plan.leave("a") == [0, 1, 2]
    assert plan.leave("a") == []
    assert taken(plan, "b") == [0, 1, 2]
    for block in (0, 1, 2):
        assert plan.done("b", block, 1.0)
    assert plan.rewritten == [0, 1, 2]
    assert taken(plan, "b", 1.0) == [3, 4, 5]
    with pytest.raises(KeyError):
        plan.next_for("a", 1.0)


def test_a_block_that_fails_too_often_is_quarantined() -> None:
    plan = schedule(2, attempts=3)
    plan.join("a")
    for block in (0, 1, 0, 1, 0):  # one worker alone tries another block first
        assert plan.next_for("a", 0.0) == block
        plan.failed("a", block)
    assert (plan.quarantined, plan.left, plan.in_hand) == ([0], 1, 0)
    assert plan.next_for("a", 0.0) == 1
    plan.failed("b", 1)  # not its block
    assert plan.done("a", 1, 1.0)
    assert plan.left == 0
    assert plan.next_for("a", 1.0) is None
    assert plan.rewritten == [1]


def test_a_block_that_failed_goes_to_a_worker_whose_last_one_succeeded() -> None:
    plan = schedule(4)
    plan.join("bad")
    plan.join("good")
    assert plan.next_for("bad", 0.0) == 0
    assert plan.failed("bad", 0) == 0.0
    assert plan.next_for("bad", 0.0) == 1
    assert taken(plan, "good") == [0, 2, 3]
    assert plan.failed("bad", 1) == 0.0
    assert plan.next_for("bad", 0.0) is None
    assert plan.leave("good") == [0, 2, 3]
    assert plan.next_for("bad", 0.0) == 1
    assert plan.done("bad", 1, 1.0)
    assert plan.next_for("bad", 1.0) == 0


def test_attempts_are_counted_in_a_byte() -> None:
    with pytest.raises(ValueError, match="attempts is 256; give a number from 1 to 255"):
        schedule(2, attempts=256)


@pytest.mark.parametrize("again", ["waiting", "in hand", "quarantined"])
def test_the_result_of_a_worker_given_up_counts(again: str) -> None:
    plan = schedule(1, attempts=1 if again == "quarantined" else 5)
    plan.join("a")
    plan.join("b")
    assert plan.next_for("a", 0.0) == 0
    plan.leave("a")
    if again == "in hand":
        assert plan.next_for("b", 0.0) == 0
    assert plan.done("a", 0, 1.0)
    assert (plan.left, plan.quarantined, plan.rewritten) == (0, [], [0])
    assert plan.next_for("b", 1.0) is None
    if again == "in hand":
        assert not plan.done("b", 0, 2.0)
    assert plan.in_hand == 0


def test_no_block_goes_beyond_a_workers_walltime() -> None:
    plan = schedule(100)
    plan.join("a", until=27.0, seconds=10.0)
    assert taken(plan, "a") == [0, 1]
    plan.done("a", 0, 10.0)
    assert plan.next_for("a", 10.0) is None
    plan.join("b", until=50.0)  # taken to be as fast as the other
    assert len(taken(plan, "b", 10.0)) == DEPTH
    plan = schedule(100)
    plan.join("c", until=5.0)  # nothing is known of its speed
    assert plan.next_for("c", 4.0) == 0
    assert plan.next_for("c", 5.0) is None


def test_a_slow_worker_gets_none_of_the_last_blocks() -> None:
    plan = schedule(8)
    plan.join("slow", seconds=100.0)
    plan.join("fast", seconds=10.0)
    assert taken(plan, "slow") == []
    assert taken(plan, "fast") == [0, 1, 2]
    plan = schedule(30)
    plan.join("slow", seconds=100.0)
    plan.join("fast", seconds=10.0)
    assert taken(plan, "slow") == [0, 1]  # it ends at 200, and the other one, with 28, at 280
    assert plan.time_left(0.0) == pytest.approx(280.0)


def test_a_slow_worker_gets_the_last_block_if_the_fast_one_hangs_or_leaves() -> None:
    plan = schedule(4)
    plan.join("slow", seconds=100.0)
    plan.join("fast", seconds=10.0)
    assert taken(plan, "fast") == [0, 1, 2]
    assert plan.next_for("slow", 0.0) is None
    assert plan.next_for("slow", 60.0) == 3  # by now the fast one takes 60 seconds a block
    plan = schedule(1)
    plan.join("slow", seconds=100.0)
    plan.join("fast", seconds=10.0)
    assert plan.next_for("slow", 0.0) is None
    plan.leave("fast")
    assert plan.next_for("slow", 0.0) == 0


def test_workers_that_end_soon_do_not_hold_back_others() -> None:
    plan = schedule(8)
    plan.join("slow", seconds=100.0)
    plan.join("fast", seconds=10.0, until=27.0)
    assert taken(plan, "fast") == [0, 1]
    assert taken(plan, "slow") == [2, 3, 4]
    plan = schedule(8)
    plan.join("a", seconds=10.0, until=27.0)
    plan.join("b", seconds=10.0, until=27.0)
    assert len(taken(plan, "a")) == len(taken(plan, "b")) == 2  # no end is in sight


def test_speed_is_measured_while_busy() -> None:
    plan = schedule(100)
    plan.join("a")
    assert (plan.rate(0.0), plan.time_left(0.0)) == (0.0, inf)
    now = 0.0
    for _ in range(10):
        taken(plan, "a", now)
        now += 4.0
        plan.done("a", 100 - plan.left, now)
    assert plan.rate(now) == pytest.approx(1 / 4)
    assert plan.time_left(now) == pytest.approx(90 * 4)
    assert plan.rate(now + 40) == pytest.approx(1 / 40)  # it is late
    for block in (10, 11):
        plan.done("a", block, now)  # at the same time
    now += 1000  # idle
    plan.join("a", seconds=2.0)
    while plan.left:
        taken(plan, "a", now)
        now += 2.0
        plan.done("a", 100 - plan.left, now)
    assert plan.time_left(now) == plan.rate(now) == 0.0


def test_workers_that_hang_are_found() -> None:
    plan = schedule(100)
    plan.join("unknown")
    taken(plan, "unknown")
    assert plan.overdue(1e6) == []
    plan.join("a", seconds=10.0)
    assert plan.next_for("a", 0.0) == 3
    assert plan.next_for("a", 0.0) == 4
    assert plan.overdue(200.0) == []
    assert plan.overdue(201.0) == [("a", 3), ("a", 4)]
    plan.leave("unknown")
    plan.join("quick", seconds=0.01)
    assert plan.next_for("quick", 201.0) == 0
    assert plan.overdue(201.0 + 59) == [("a", 3), ("a", 4)]
    assert ("quick", 0) in plan.overdue(201.0 + 61)


def finish(plan: Schedule, seconds: list[float]) -> tuple[float, list[int]]:
    """Run to the end, with workers of these seconds a block. Return the end and their blocks."""
    names = [str(index) for index in range(len(seconds))]
    for name, each in zip(names, seconds, strict=True):
        plan.join(name, seconds=each)
    hands: list[list[int]] = [[] for _ in names]
    counts = [0] * len(names)
    events: list[tuple[float, int]] = []
    now = 0.0
    while plan.left:
        for index, name in enumerate(names):
            while (block := plan.next_for(name, now)) is not None:
                if not hands[index]:
                    heapq.heappush(events, (now + seconds[index], index))
                hands[index].append(block)
        now, index = heapq.heappop(events)
        assert plan.done(names[index], hands[index].pop(0), now)
        counts[index] += 1
        if hands[index]:
            heapq.heappush(events, (now + seconds[index], index))
    return now, counts


def test_unequal_workers_end_together() -> None:
    seconds = [10.0] * 10 + [100.0] * 10
    end, counts = finish(schedule(20 * 11), seconds)  # 200 s of work for all
    assert sum(counts) == 220
    assert end <= 220
    assert all(counts)


class Fleet:
    """Workers of a schedule, and what is to be expected of it."""

    def __init__(self, finished: list[bool], attempts: int) -> None:
        self.attempts = attempts
        self.plan = Schedule(np.array(finished), attempts=attempts)
        self.done = {block for block, done in enumerate(finished) if done}
        self.spent = [0] * len(finished)
        self.hands: dict[str, list[int]] = {}
        self.late: list[tuple[str, int]] = []  # may still report, though their workers left
        self.now = 0.0

    def take(self, name: str) -> bool:
        block = self.plan.next_for(name, self.now)
        if block is None:
            return False
        assert block not in self.done
        assert not any(block in hand for hand in self.hands.values())
        assert self.spent[block] < self.attempts
        self.hands[name].append(block)
        return True

    def finish(self, name: str, block: int) -> None:
        assert self.plan.done(name, block, self.now) == (block not in self.done)
        self.done.add(block)

    def report_late(self) -> None:
        """Report a block of a worker that left. If it joined again, its two turns look the same."""
        name, block = self.late.pop(0)
        if block in self.hands.get(name, []):
            self.hands[name].remove(block)
            self.late.append((name, block))
        self.finish(name, block)

    def fail(self, name: str) -> None:
        block = self.hands[name].pop(0)
        self.plan.failed(name, block)
        self.spent[block] += 1

    def leave(self, name: str) -> None:
        hand = self.hands.pop(name)
        assert self.plan.leave(name) == hand
        for block in hand:
            self.spent[block] += 1
            self.late.append((name, block))

    def check(self) -> None:
        assert self.plan.in_hand == sum(map(len, self.hands.values()))
        gone = {b for b, spent in enumerate(self.spent) if spent >= self.attempts} - self.done
        assert set(self.plan.quarantined) == gone
        assert self.plan.left == len(self.spent) - len(self.done) - len(gone)
        assert self.plan.rewritten == sorted(block for block in self.done if self.spent[block])
        assert self.plan.time_left(self.now) >= 0


SECONDS = st.none() | st.floats(0, 50)
ACTIONS = ["join", "take", "take", "done", "late", "failed", "leave"]


def test_a_late_report_of_a_worker_that_joined_again() -> None:
    fleet = Fleet([False], attempts=2)
    for _ in range(2):
        fleet.plan.join("a")
        fleet.hands["a"] = []
        assert fleet.take("a")
        if not fleet.late:
            fleet.leave("a")
    for _ in range(2):
        fleet.report_late()
        fleet.check()
    assert fleet.plan.left == 0


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_each_block_is_done_once_or_quarantined(data: st.DataObject) -> None:
    """Whatever workers join, leave, fail and report late, in any order."""
    finished = data.draw(st.lists(st.booleans(), min_size=1, max_size=12))
    fleet = Fleet(finished, data.draw(st.integers(1, 3)))
    for _ in range(data.draw(st.integers(0, 60))):
        fleet.now += data.draw(st.floats(0, 30))
        name = data.draw(st.sampled_from("abc"))
        match data.draw(st.sampled_from(ACTIONS)):
            case "join":
                until = fleet.now + data.draw(st.just(inf) | st.floats(0, 300))
                fleet.plan.join(name, until=until, seconds=data.draw(SECONDS))
                fleet.hands.setdefault(name, [])
            case "take" if name in fleet.hands:
                fleet.take(name)
            case "done" if hand := fleet.hands.get(name):
                fleet.finish(name, hand.pop(0))
            case "late" if fleet.late:
                fleet.report_late()
            case "failed" if fleet.hands.get(name):
                fleet.fail(name)
            case "leave" if name in fleet.hands:
                fleet.leave(name)
        fleet.check()

    for name in list(fleet.hands):
        fleet.leave(name)
    for name in ("a", "b"):
        fleet.plan.join(name, seconds=data.draw(SECONDS))
        fleet.hands[name] = []
    while fleet.plan.left:
        while any([fleet.take("a"), fleet.take("b")]):
            pass
        fleet.now += data.draw(st.floats(0, 30))
        assert any(fleet.hands.values())  # no block ever waits for nobody
        for name, hand in fleet.hands.items():
            while hand:
                fleet.finish(name, hand.pop(0))
        fleet.check()
    assert fleet.done | set(fleet.plan.quarantined) == set(range(len(finished)))
