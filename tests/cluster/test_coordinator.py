"""The coordinator, with workers that are scripted and a clock that the test moves."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("distributed")

from znni.cluster.calls import (
    Answer,
    Answered,
    Call,
    Compute,
    Describe,
    Description,
    EngineGone,
    GetReady,
    Machinery,
    MakePlan,
    Probe,
    Probed,
    Restart,
)
from znni.cluster.cluster_file import WALLTIME_MARGIN
from znni.cluster.coordinator import Coordinator
from znni.cluster.schedule import DEPTH, OVERDUE_SECONDS
from znni.cluster.workers import FAILURES, REPLACE_EVERY
from znni.core.errors import InvalidInput, RunFailed, UnusableValues
from znni.core.option_types import Bits
from znni.core.shapes import Box, Vec3
from znni.engine.tile_grid import TileGrid
from znni.engine.tiles import Job
from znni.volumes.ledger_entries import block_entry, box_of

EXTENTS = Vec3(2, 2, 24)
GRID = TileGrid(Job(EXTENTS, Vec3(0, 0, 0), EXTENTS, Vec3(0, 0, 0), "constant"), Vec3(2, 2, 1))
BLOCKS = len(GRID)
CHECKSUM = "0000abcd"

# Returns the answer to a call, or raises it as an error. None: there will be no answer.
Worker = Callable[[Call], object]


def good(call: Call) -> object:
    """Answer as a worker that computes everything."""
    if isinstance(call, Describe):
        return Description("host", Machinery("machine", {"znni": "1"}), None)
    if isinstance(call, MakePlan):
        return "plan"
    if isinstance(call, GetReady):
        return 1.0
    if isinstance(call, Probe):
        return Probed(same=True, apart=0.0, allowed=0.0)
    if isinstance(call, Restart):
        return "ended"
    assert isinstance(call, Compute)
    return block_entry(call.tile.written, CHECKSUM)


class Scripted:
    """An engine whose workers answer one call a second.

    Attributes:
        now: the clock.
        there: what each worker does, by address.
        wanted: number of workers that should be there.
        handed: blocks that each worker was given, in order.
        replaced: times at which lost workers were to be started again.
        each_second: called whenever a second has passed.
    """

    def __init__(self, **workers: Worker) -> None:
        self.now = 0.0
        self.there = dict(workers)
        self.wanted = 0
        self.handed: list[tuple[str, Box]] = []
        self.replaced: list[float] = []
        self.each_second: Callable[[], None] = lambda: None
        self._asked: defaultdict[str, deque[Call]] = defaultdict(deque)

    def workers(self) -> Mapping[str, str]:
        return {address: address for address in self.there}

    def replace_lost(self) -> None:
        self.replaced.append(self.now)

    def submit(self, worker: str, call: Call) -> None:
        if isinstance(call, Compute):
            self.handed.append((worker, call.tile.written))
        self._asked[worker].append(call)

    def completed(self, _timeout: float) -> Iterator[Answered]:
        self.now += 1.0
        assert self.now < 10_000, "the run does not end"
        for worker, asked in self._asked.items():
            if not asked or worker not in self.there:
                continue
            call = asked.popleft()
            try:
                value = self.there[worker](call)
            except Exception as error:
                yield Answered(worker, call, Answer(error=error))
                continue
            if value is not None:
                yield Answered(worker, call, Answer(value))
        self.each_second()


class Kept:
    """A record in memory.

    Attributes:
        entries: what was noted of blocks.
        struck: blocks that are not as they were written.
        damaged: blocks that read otherwise than they were written.
    """

    def __init__(self) -> None:
        self.entries: list[Box] = []
        self.struck: list[Box] = []
        self.damaged: set[Box] = set()

    def note(self, entry: Mapping[str, Any], /) -> None:
        box = box_of(entry["block"])
        self.entries.append(box)
        if box in self.struck:
            self.damaged.discard(box)

    def checksum(self, box: Box, /) -> str | None:
        return None if box in self.damaged else CHECKSUM

    def strike_off(self, box: Box, /) -> None:
        self.struck.append(box)


def run(engine: Scripted, bits: Bits = "same", record: Kept | None = None) -> Coordinator:
    """Have all blocks computed, and check that each of them was counted once."""
    record = record or Kept()
    coordinator = Coordinator(engine, bits, lambda: engine.now)
    told: list[int] = []
    plan = coordinator.make_plan()
    coordinator.compute(
        plan, GRID, np.zeros(BLOCKS, bool), None, record, lambda done, *_: told.append(done)
    )
    assert told == list(range(BLOCKS + 1))
    assert {GRID.number(box) for box in record.entries} == set(range(BLOCKS))
    return coordinator


def test_the_first_block_is_computed_alone_and_every_other_worker_repeats_it() -> None:
    probed: list[Box] = []

    def other(call: Call) -> object:
        if isinstance(call, Probe):
            assert len(engine.handed) >= 1
            probed.append(call.block)
        return good(call)

    engine = Scripted(a=good, b=other)
    tally = run(engine).tally
    first = GRID.tile(0).written
    assert engine.handed[0] == ("a", first)
    assert probed == [first]
    assert {worker for worker, _ in engine.handed} == {"a", "b"}
    assert len(engine.handed) == BLOCKS
    assert (tally.most, tally.lost, tally.failures, tally.refused) == (2, 0, 0, 0)


@pytest.mark.parametrize(
    ("bits", "apart", "refused"), [("same", 1e-7, 1), ("class", 1e-7, 0), ("class", 1e-3, 1)]
)
def test_a_worker_whose_probe_differs_gets_no_block(bits: Bits, apart: float, refused: int) -> None:
    def differing(call: Call) -> object:
        if isinstance(call, Probe):
            return Probed(same=False, apart=apart, allowed=1e-5)
        return good(call)

    engine = Scripted(a=good, b=differing)
    assert run(engine, bits).tally.refused == refused
    assert ("b" in {worker for worker, _ in engine.handed}) is not bool(refused)


def another(call: Call) -> object:
    """Answer as a worker on another machine."""
    if isinstance(call, Describe):
        return Description("host", Machinery("another", {"znni": "1"}), None)
    return good(call)


def test_machines_that_differ_compute_bits_of_a_class_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert run(Scripted(a=good, b=another)).tally.refused == 1
    assert "the same bits as the others: another, not machine" in caplog.text
    assert run(Scripted(a=good, b=another), "class").tally.most == 2


def failing_blocks(call: Call) -> object:
    """Answer as a worker that cannot write."""
    if isinstance(call, Compute):
        raise OSError("disk is full")
    return good(call)


def test_a_worker_that_fails_in_a_row_is_shut_out() -> None:
    engine = Scripted(a=good, b=failing_blocks)
    tally = run(engine).tally
    assert tally.refused == 1
    assert FAILURES <= tally.failures <= FAILURES * DEPTH + 1


def test_when_every_worker_is_shut_out_the_last_error_is_raised() -> None:
    engine = Scripted(a=failing_blocks)
    with pytest.raises(OSError, match="disk is full") as raised:
        run(engine)
    assert raised.value.__notes__ == ["no worker is left that can compute"]


def test_a_block_that_fails_everywhere_is_named_and_the_others_are_computed() -> None:
    poison = GRID.tile(5).written

    def stumbling(call: Call) -> object:
        if isinstance(call, Compute) and call.tile.written == poison:
            raise RuntimeError("a kernel gave up")
        return good(call)

    record = Kept()
    with pytest.raises(RunFailed, match=f"the first at {poison}: a kernel gave up"):
        run(Scripted(a=stumbling, b=stumbling), record=record)
    assert len(set(record.entries)) == BLOCKS - 1


def test_values_that_no_worker_can_take_end_the_run() -> None:
    def strict(call: Call) -> object:
        if isinstance(call, Compute):
            raise UnusableValues("the input has NaN", Vec3(0, 0, 0))
        return good(call)

    engine = Scripted(a=strict, b=good)
    with pytest.raises(UnusableValues):
        run(engine)


def test_a_process_that_ends_is_asked_again_at_most_three_times() -> None:
    asked: list[Call] = []

    def dying(call: Call) -> object:
        if isinstance(call, GetReady):
            asked.append(call)
            raise EngineGone("the process was killed")
        return good(call)

    assert run(Scripted(a=good, b=dying)).tally.refused == 1
    assert len(asked) == FAILURES


@pytest.mark.parametrize("damaged", [False, True])
def test_a_worker_that_hangs_and_comes_back_does_no_harm(damaged: bool) -> None:
    """Its blocks go to others, and are read again when both may have written them."""
    withheld: list[Call] = []
    record = Kept()

    def hanging(call: Call) -> object:
        if isinstance(call, Compute | Restart):
            withheld.append(call)
            return None
        return good(call)

    def slow(call: Call) -> object:
        if isinstance(call, Compute) and len(engine.handed) > BLOCKS:
            engine.now += 2 * OVERDUE_SECONDS
        return good(call)

    def come_back() -> None:
        if engine.now > OVERDUE_SECONDS + 20 and withheld:
            engine.there["b"] = good
            if damaged:
                assert isinstance(withheld[0], Compute)
                record.damaged.add(withheld[0].tile.written)
            for call in withheld:
                engine.submit("b", call)
            withheld.clear()

    engine = Scripted(a=slow, b=hanging)
    engine.each_second = come_back
    coordinator = Coordinator(engine, "same", lambda: engine.now)
    done: list[int] = []
    coordinator.compute(
        coordinator.make_plan(), GRID, np.zeros(BLOCKS, bool), None, record,
        lambda number, *_: done.append(number),
    )  # fmt: skip
    assert done[-1] == BLOCKS
    assert len(record.struck) == damaged
    assert record.damaged == set()


def hanging_blocks(call: Call) -> object:
    """Answer as a worker whose process hangs whenever it computes."""
    return None if isinstance(call, Compute) else good(call)


def test_a_process_that_hangs_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    def hang_once(call: Call) -> object:
        if isinstance(call, Restart):
            engine.there["a"] = good
        return hanging_blocks(call)

    engine = Scripted(a=hang_once)
    tally = run(engine).tally
    assert (tally.most, tally.lost, tally.refused) == (1, 0, 0)
    assert "worker a on host does not answer" in caplog.text


def test_a_process_that_always_hangs_ends_the_run() -> None:
    with pytest.raises(RunFailed, match="it did not answer for 1 block") as raised:
        run(Scripted(a=hanging_blocks))
    assert raised.value.__notes__ == ["no worker is left that can compute"]


QUESTIONS = (Describe, MakePlan, GetReady, Probe)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_worker_that_does_not_answer_keeps_no_other_waiting(question: type[Call]) -> None:
    def silent(call: Call) -> object:
        return None if isinstance(call, question) else good(call)

    engine = Scripted(a=silent, b=good)
    run(engine)
    assert "b" in {worker for worker, _ in engine.handed}


@pytest.mark.parametrize("question", QUESTIONS[:3])
def test_a_question_that_nobody_answers_ends_the_run(question: type[Call]) -> None:
    def silent(call: Call) -> object:
        return None if isinstance(call, question) else good(call)

    said = f"it did not answer {question.__name__} for 30 min"
    with pytest.raises(RunFailed, match=said) as raised:
        run(Scripted(a=silent))
    assert raised.value.__notes__ == ["no worker is left that can compute"]


@pytest.mark.parametrize("question", QUESTIONS[:3])
def test_a_process_that_did_not_answer_is_started_again(question: type[Call]) -> None:
    def silent(call: Call) -> object:
        if isinstance(call, Restart):
            engine.there["a"] = good
        return None if isinstance(call, question) else good(call)

    engine = Scripted(a=silent)
    assert run(engine).tally.refused == 0


def test_a_worker_that_is_lost_and_found_again_gets_blocks() -> None:
    """It is asked anew, and answers to what it was asked before are of no use."""
    lost: list[Worker] = []

    def lose() -> None:
        if lost:
            engine.there.setdefault("a", lost[0])
        elif len(engine.handed) > 3:
            lost.append(engine.there.pop("a"))

    engine = Scripted(a=good)
    engine.each_second = lose
    tally = run(engine).tally
    assert (tally.lost, tally.refused) == (1, 0)


def test_errors_of_blocks_that_were_taken_back_do_not_count() -> None:
    late: list[Call] = []

    def hanging(call: Call) -> object:
        if isinstance(call, Compute):
            late.append(call)
            return None
        return good(call)

    def slow(call: Call) -> object:
        if isinstance(call, Compute) and len(engine.handed) > BLOCKS - 2:
            engine.now += 2 * OVERDUE_SECONDS
        return good(call)

    def gone(call: Call) -> object:
        if isinstance(call, Compute):
            raise EngineGone("its process was ended")
        return good(call)

    def answer_late() -> None:
        if engine.now > 2 * OVERDUE_SECONDS and late:
            engine.there["b"] = gone
            for call in late:
                engine.submit("b", call)
            late.clear()

    engine = Scripted(a=slow, b=hanging)
    engine.each_second = answer_late
    tally = run(engine).tally
    assert (tally.failures, tally.refused) == (0, 0)


def test_an_odd_worker_that_answers_first_does_not_shut_out_the_others() -> None:
    """A run that goes on has a block to compare with, so that block decides."""

    def odd(call: Call) -> object:
        if isinstance(call, Probe):
            return Probed(same=False, apart=0.5, allowed=1e-5)
        return another(call)

    engine = Scripted(odd=odd, a=good, b=good)
    coordinator = Coordinator(engine, "same", lambda: engine.now)
    finished = np.zeros(BLOCKS, bool)
    finished[0] = True
    coordinator.compute("plan", GRID, finished, GRID.tile(0).written, Kept(), lambda *_: None)
    assert {worker for worker, _ in engine.handed} == {"a", "b"}
    assert coordinator.tally.refused == 1


def test_a_worker_that_is_lost_is_replaced_and_its_blocks_are_computed() -> None:
    def lose() -> None:
        if len(engine.handed) >= 5 and "b" in engine.there:
            del engine.there["b"]
        if engine.replaced and "c" not in engine.there:
            engine.there["c"] = good

    engine = Scripted(a=good, b=good)
    engine.wanted = 2
    engine.each_second = lose
    tally = run(engine).tally
    assert tally.lost == 1
    assert "c" in {worker for worker, _ in engine.handed}


def test_workers_that_are_missing_are_asked_for_now_and_then() -> None:
    engine = Scripted(a=good)
    engine.wanted = 2
    run(engine)
    assert engine.replaced
    assert all(np.diff(engine.replaced) >= REPLACE_EVERY)


def test_a_walltime_shorter_than_a_block_is_an_error() -> None:
    def short_lived(call: Call) -> object:
        if isinstance(call, Describe):
            until = time.time() + WALLTIME_MARGIN + 30
            return Description("host", Machinery("machine", {"znni": "1"}), until)
        return 100.0 if isinstance(call, GetReady) else good(call)

    with pytest.raises(InvalidInput, match=r"a block takes it .* give more walltime"):
        run(Scripted(a=short_lived))


def test_a_walltime_that_a_late_block_would_not_meet_is_an_error_too() -> None:
    def short_lived(call: Call) -> object:
        if isinstance(call, Describe):
            until = time.time() + WALLTIME_MARGIN + 120
            return Description("host", Machinery("machine", {"znni": "1"}), until)
        return 100.0 if isinstance(call, GetReady) else good(call)

    with pytest.raises(InvalidInput, match=r"a block takes it up to 2 min 20 s, "):
        run(Scripted(a=short_lived))


FAULTS = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.sampled_from(["b", "c", "d"]),
        st.sampled_from(["fail", "gone", "hang", "lose", "join"]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(FAULTS)
def test_with_one_good_worker_every_run_ends_whatever_the_others_do(
    faults: list[tuple[int, str, str]],
) -> None:
    def fail(call: Call) -> object:
        raise OSError(f"no {type(call).__name__}")

    def gone(call: Call) -> object:
        raise EngineGone(f"no {type(call).__name__}")

    behaviours: dict[str, Worker] = {
        "fail": fail, "gone": gone, "hang": lambda _call: None, "join": good
    }  # fmt: skip

    def befall() -> None:
        for second, worker, what in faults:
            if second == engine.now:
                if what == "lose":
                    engine.there.pop(worker, None)
                else:
                    engine.there[worker] = behaviours[what]

    engine = Scripted(a=good, b=good, c=good)
    engine.each_second = befall
    run(engine)
