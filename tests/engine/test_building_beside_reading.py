"""Tests of a run in one process whose layers are made while the first block is read."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any
from weakref import ref

import numpy as np
import pytest
from left_behind import threads_here
from numpy.typing import NDArray
from worker_runners import NETWORK, Sums, SumsPlan, sums

from znni.core.errors import Unreadable
from znni.core.memory_errors import OutOfDeviceMemory
from znni.core.plan_options import Choices
from znni.core.shapes import Box, Vec3
from znni.engine.block_reader import BlockReader
from znni.engine.pipeline import ALONE, PreparedHere, Turn, run_volume
from znni.engine.run_state import RunState
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Remaining, make_job
from znni.inference.prepared_plans import PreparedPlans
from znni.network.weights import random_weights
from znni.volumes.array import ArrayOutput, ArrayVolume

PATCH = Vec3(5, 4, 3)
PLAN: Any = SumsPlan(PATCH)


class Steps:
    """Says when the first block is read and when the layers are made, and lets each wait."""

    def __init__(self) -> None:
        self.reading, self.building, self.go_on = (threading.Event() for _ in range(3))


class Seen(ArrayVolume):
    """A volume whose reading does something before."""

    def __init__(self, values: NDArray[Any], before: Callable[[], object]) -> None:
        super().__init__(values)
        self._before = before

    def read(self, box: Box, maps: slice = slice(None)) -> NDArray[Any]:
        self._before()
        return super().read(box, maps)


class Case:
    """A run, and what it gives."""

    def __init__(self, before: Callable[[], object], seed: int = 0) -> None:
        x = np.random.default_rng(seed).random((22, 14, 13), np.float32)
        self.volume = Seen(x, before)
        self.job = make_job(NETWORK, self.volume.size, "valid", "reflect", None)
        self.remaining = Remaining(self.job)
        self.expected = np.stack([sums(x), -sums(x)])
        self.found = np.zeros_like(self.expected)

    def run(self, processes: PreparedHere, turn: Turn = ALONE) -> Stopwatch:
        watch = Stopwatch()
        reader = BlockReader(self.volume, self.job, NETWORK, random_weights(NETWORK, 0))
        output = ArrayOutput(self.found, 2, self.job.output)
        state = RunState(reader, output, "float32", self.remaining)
        run_volume(state, processes, watch, turn=turn)
        return watch


def wait(event: threading.Event) -> None:
    assert event.wait(60)


def test_the_first_block_is_read_while_the_layers_are_made() -> None:
    steps = Steps()

    def before_reading() -> None:
        steps.reading.set()
        wait(steps.building)

    def made() -> Sums:
        steps.building.set()
        wait(steps.reading)
        built.append(threading.current_thread())
        return Sums(PLAN)

    built: list[threading.Thread] = []
    case, processes = Case(before_reading), PreparedHere(PLAN, made)
    watch = case.run(processes)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)
    assert built == [threading.main_thread()]
    assert watch.seconds.building > 0
    case.found[...], case.remaining = 0, Remaining(case.job)
    case.run(processes)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)
    assert len(built) == 1, "a later run uses the same layers"


@pytest.mark.parametrize(
    "error", [OSError("as it is"), MemoryError(), OutOfDeviceMemory("full"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("while_read", [True, False])
def test_layers_that_cannot_be_made_end_the_run_though_a_block_is_read(
    error: BaseException, *, while_read: bool
) -> None:
    """It is being read, or it waits for the layers."""
    steps, threads = Steps(), threads_here()

    def before_reading() -> None:
        steps.reading.set()
        if while_read:
            wait(steps.building)

    def not_made() -> Sums:
        wait(steps.reading)
        if not while_read:
            steps.go_on.wait(0.1)
        steps.building.set()
        raise error

    case = Case(before_reading)
    with pytest.raises(type(error)) as raised:
        case.run(PreparedHere(PLAN, not_made))
    assert raised.value is error
    assert threads_here() <= threads
    assert case.remaining.voxels == case.job.output.volume
    assert not case.found.any()


def test_a_block_that_cannot_be_read_ends_the_run_when_the_layers_are_made() -> None:
    steps = Steps()

    def torn() -> None:
        steps.reading.set()
        raise Unreadable("the disk is torn")

    def made() -> Sums:
        wait(steps.reading)
        return Sums(PLAN)

    with pytest.raises(Unreadable, match="the disk is torn"):
        Case(torn).run(PreparedHere(PLAN, made))


def test_what_failed_first_is_raised_if_both_fail() -> None:
    steps = Steps()

    def torn() -> None:
        try:
            raise Unreadable("the disk is torn")
        finally:
            steps.reading.set()

    def not_made() -> Sums:
        wait(steps.reading)
        steps.go_on.wait(0.1)
        raise OSError("no kernel")

    with pytest.raises(Unreadable, match="the disk is torn"):
        Case(torn).run(PreparedHere(PLAN, not_made))


def test_layers_that_could_not_be_made_are_made_by_the_next_run() -> None:
    failures = [OSError("once")]

    def made() -> Sums:
        if failures:
            raise failures.pop()
        return Sums(PLAN)

    case, processes = Case(lambda: None), PreparedHere(PLAN, made)
    with pytest.raises(OSError, match="once"):
        case.run(processes)
    case.run(processes)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)


def test_layers_are_released_if_memory_runs_out_though_another_run_holds_the_plan() -> None:
    made: list[ref[Sums]] = []

    class Full(Sums):
        def stages(self, *_: Any) -> list[Any]:
            raise OutOfDeviceMemory("full")

    def make() -> Sums:
        layers = Full(PLAN)
        made.append(ref(layers))
        return layers

    processes = PreparedHere(PLAN, make)
    with pytest.raises(OutOfDeviceMemory):
        Case(lambda: None).run(processes)
    gc.collect()
    assert made[0]() is None
    processes.wait_until_ready()
    assert len(made) == 2


class TwoBuffers:
    """Computes blocks in two stages, with a buffer for every second block, as on a GPU.

    The last block of a run is not finished until the next run takes its buffer, or a while passes.
    """

    def __init__(self, plan: SumsPlan) -> None:
        self.plan = plan
        self._buffers = cycle(np.zeros((2, *plan.patch), np.float32) for _ in range(2))
        self._launched = 0
        self._next = threading.Event()  # the second block of the next run is in a buffer

    def stages(self, *_: object) -> list[Callable[[Any], Any]]:
        def launch(block: Any) -> Any:
            self._launched += 1
            buffer = next(self._buffers)
            total = sums(block.values[0])
            buffer[...] = np.stack([total, -total])
            if self._launched == 4:
                self._next.set()
            return buffer

        def finish(block: Any) -> Any:
            if self._launched >= 2:
                self._next.wait(0.3)
            return block.values.copy()

        return [launch, finish]


def test_the_next_run_takes_no_buffer_of_a_block_that_is_not_finished() -> None:
    kept = PreparedPlans(Choices())
    cases = [Case(lambda: None, seed) for seed in range(2)]
    whole = cases[0].job.output
    plan = SumsPlan(whole._replace(z=-(-whole.z // 2)))  # two blocks
    prepared = PreparedHere(plan, partial(TwoBuffers, plan))  # type: ignore[arg-type]

    def run(case: Case) -> None:
        with kept.running() as turn:
            case.run(prepared, turn)

    threads = [threading.Thread(target=run, args=(case,), daemon=True) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for case in cases:
        np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)


@pytest.mark.parametrize("patches", [1, 2])
def test_the_first_block_is_read_before_the_turn_to_compute(patches: int) -> None:
    """Another run reads after the last block is read, and computes after it is computed."""
    order: list[str] = []
    reading = threading.Event()

    def compute() -> None:
        wait(reading)
        order.append("compute")

    case = Case(lambda: (order.append("reading"), reading.set()))
    plan: Any = SumsPlan(Vec3(-(-case.job.output.z // patches), *case.job.output[1:]))
    turn = Turn(
        compute,
        all_read=lambda: order.append("read"),
        finishing=lambda: order.append("finishing"),
        computed=lambda: order.append("computed"),
    )
    case.run(PreparedHere(plan, lambda: Sums(plan)), turn)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)
    assert order[:2] == ["reading", "compute"]
    assert order.count("reading") == patches
    assert set(order[2 + (patches > 1) :]) == {"read", "finishing", "computed"}
    assert order.index("finishing") < order.index("computed")
