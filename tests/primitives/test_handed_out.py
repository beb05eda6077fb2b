"""What Python hands out to workers: as declared, and as the model of times prices it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from fakes import Fake, machine
from layers import LOCAL, PAIR, POOLING, suited

from planner.cost_model import BUILT_IN, CALL_SECONDS
from znni.calibration.measure import inputs_in, some_weights
from znni.core.shapes import Shape5, Vec3
from znni.machine.detect import detect_host
from znni.network.layers import Activation, Conv, Operation, Pool, PooledConv
from znni.plans.cost import NOTHING, Cost, HandedOut, Memory
from znni.plans.micro_batches import cost_of_pieces
from znni.plans.nominal_time import ROUND_SECONDS, nominal_seconds, nominal_time, task_seconds
from znni.plans.primitive import convolved
from znni.primitives.catalogue import catalogue
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.workers import Item, Workers
from znni.primitives.cpu.fft_whole_image import fft_layer
from znni.primitives.cpu.fft_whole_image.fft_layer import FftLayer
from znni.primitives.cpu.lowered.lowering import LoweredLayer

# The calls that a task of several makes.
STEPS: tuple[tuple[Any, str], ...] = (
    (LoweredLayer, "lower"),
    (LoweredLayer, "multiply"),
    (LoweredLayer, "lift"),
    (LoweredLayer, "activate"),
    (FftLayer, "forward_planes"),
    (FftLayer, "inverse_planes"),
    (FftLayer, "products"),
    (fft_layer, "pack"),
    (fft_layer, "unpack"),
)

THREADS = (1, 3)
ON_CPU = {threads: catalogue(detect_host(threads=threads), "cpu") for threads in THREADS}


def conv(features: int, out_features: int, kernel: Vec3, activation: Activation = "relu") -> Conv:
    return Conv("conv", features, out_features, kernel, activation)


CASES: tuple[tuple[Operation, Shape5], ...] = (
    (conv(1, 1, Vec3(2, 3, 2)), Shape5(1, 1, 7, 8, 9)),
    (conv(5, 19, Vec3(2, 1, 3)), Shape5(3, 5, 9, 7, 12)),
    (conv(5, 19, Vec3(2, 1, 3), "softmax"), Shape5(2, 5, 9, 7, 12)),
    (conv(2, 18, Vec3(3, 3, 3), "tanh"), Shape5(2, 2, 20, 21, 22)),
    (conv(3, 3, Vec3(2, 2, 2), "elu"), Shape5(130, 3, 6, 6, 6)),
    (conv(17, 40, Vec3(5, 5, 5)), Shape5(1, 17, 18, 12, 16)),
    POOLING,
    (Pool("pool", Vec3(3, 2, 1)), Shape5(9, 7, 29, 31, 33)),
    (PooledConv(conv(1, 20, Vec3(2, 2, 2)), POOLING[0]), Shape5(1, 1, 24, 26, 28)),
    (PooledConv(conv(2, 3, Vec3(3, 2, 2), "sigmoid"), POOLING[0]), Shape5(2, 2, 36, 25, 29)),
    PAIR,
    (PAIR[0], PAIR[1]._replace(n=3, z=31, y=47, x=59)),
    *LOCAL.values(),
    *((layer, shape._replace(n=3, z=31, y=47, x=59)) for layer, shape in LOCAL.values()),
)


class Counter:
    """Counts the rounds that workers are asked for, and the calls that Python makes in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handed = HandedOut()
        self._steps: list[None] = []  # of any thread
        for owner, name in STEPS:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        monkeypatch.setattr(Workers, "run", self._run)
        monkeypatch.setattr(Workers, "for_each", self._asked(Workers.for_each))

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self._steps.append(None)
            return step(*arguments)

        return counted

    def _run(self, kernel: Kernel, arguments: Sequence[Sequence[int]], _most: int) -> None:
        """Have one worker go through the phases, which needs no task."""
        _, count, *_ = arguments[0]
        kernel(*arguments[0])
        self.handed = self.handed.plus(HandedOut(count))

    def _asked(self, for_each: Callable[..., None]) -> Callable[..., None]:
        def asked(pool: Workers, task: Callable[[int, Item], None], items: Iterable[Item]) -> None:
            listed, before = list(items), len(self._steps)
            for_each(pool, task, listed)
            tasks = len(self._steps) - before or len(listed)
            self.handed = self.handed.plus(HandedOut(1, tasks))

        return asked


@pytest.mark.slow_cases
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("name", ON_CPU[1])
def test_what_is_handed_out_is_declared(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    primitive = ON_CPU[threads][name]
    fitted = [(operation, suited(primitive, operation, shape)) for operation, shape in CASES]
    cases = [(operation, shape) for operation, shape in fitted if shape is not None]
    assert cases
    for operation, shape in cases:
        run = primitive.build(operation, shape, some_weights(operation))
        inputs = inputs_in(operation, np.zeros(shape, np.float32))
        with monkeypatch.context() as patched:
            counter = Counter(patched)
            run(*inputs)
        assert counter.handed == primitive.cost(operation, shape).handed, (operation, shape)


def seconds(handed: HandedOut, flops: float, threads: int) -> float:
    """The built-in model's, of a call with so much work."""
    fake = Fake("fake", convolved, device=machine(threads=threads).host)
    cost = Cost(flops, 0.0, Memory(0, 0, 0), 1.0, handed)
    return BUILT_IN.estimate(fake, CASES[0][0], CASES[0][1], cost).seconds


@pytest.mark.parametrize("threads", [1, 16])
def test_tasks_are_shared_out_beside_work_and_rounds_are_not(threads: int) -> None:
    a_second = machine().host.flops
    added = seconds(HandedOut(40, 1600), a_second, threads) - seconds(NOTHING, a_second, threads)
    assert added == pytest.approx(40 * ROUND_SECONDS + 1600 * task_seconds(threads) / threads)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_no_number_of_threads_is_handed_tasks_faster_than_one(threads: int) -> None:
    assert seconds(NOTHING, 1.0, threads) == pytest.approx(CALL_SECONDS, rel=1e-3)
    handed = seconds(HandedOut(3, 10_000), 1.0, threads)
    assert handed == pytest.approx(
        CALL_SECONDS + 3 * ROUND_SECONDS + 10_000 * task_seconds(threads), rel=1e-3
    )


def test_a_time_that_is_declared_stays() -> None:
    fake = Fake("fake", convolved)
    cost = Cost(1.0, 1.0, Memory(0, 0, 0), 1.0, HandedOut(9, 9), seconds=3.0)
    assert nominal_time(fake, cost) == 3.0


def test_pieces_and_more_work_hand_out_all_that_they_are_made_of() -> None:
    memory = Memory.beside(50, workspace=30)
    one = Cost(1.0, 1.0, memory, 1.0, HandedOut(1, 5))
    other = Cost(1.0, 1.0, memory, 1.0, HandedOut(2, 7))
    assert cost_of_pieces([(3, one), (2, other)], arrays=190).handed == HandedOut(7, 29)
    assert one.plus(1.0, 1.0, 1.0, HandedOut(2, 3)).handed == HandedOut(3, 8)


def test_many_small_images_are_not_taken_for_a_large_one() -> None:
    """What a convolution by whole-image FFT or a product for each image takes is Python's time."""
    operation, small = conv(80, 3, Vec3(3, 3, 3)), Shape5(64, 80, 5, 5, 5)
    for name in ("fft_task_parallel", "fft_data_parallel", "lowered_balanced"):
        for threads in THREADS:
            primitive = ON_CPU[threads][name]
            cost = primitive.cost(operation, small)
            computing = sum(nominal_seconds(primitive, cost))
            predicted = BUILT_IN.estimate(primitive, operation, small, cost).seconds
            assert predicted > 2 * computing
