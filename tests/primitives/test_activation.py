"""Activations that follow a convolution: right, shared out well, and paid for."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from counting_workers import CountingWorkers
from gpu_layers import DEVICE
from layers import (
    CONVOLUTION,
    MACHINE,
    POOLED_CONVOLUTION,
    UNORDERED,
    does,
    random_input,
    suited,
)

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Machine
from znni.network.activations import TRAITS
from znni.network.layers import Activation, Conv, Operation, PooledConv
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Primitive, UsesGpu
from znni.primitives import reference
from znni.primitives.catalogue import catalogue
from znni.primitives.cpu.common.activation import (
    FEWEST_VALUES,
    FLOPS,
    FUSED,
    activate_further,
)
from znni.primitives.cpu.common.workers import TASKS_PER_WORKER, workers
from znni.primitives.gpu.common.activation import SOFTMAX_FLOPS, SOFTMAX_PASSES

SHAPE = Shape5(3, 5, 4, 7, 6)
FURTHER: list[Activation] = [a for a in get_args(Activation) if a not in FUSED]


def layer_with(activation: Activation) -> Conv:
    return Conv("layer", 1, 1, Vec3(1, 1, 1), activation)


further = pytest.mark.parametrize("activation", FURTHER)

# Those of this machine and of an H200, which need not be there to be priced; not the host's that
# have a GPU compute, which pays.
H200 = replace(DEVICE, capability=90, cudnn=True)
CONVOLUTIONS = [
    primitive
    for primitive in catalogue(Machine(MACHINE.host, (H200,))).values()
    if not isinstance(primitive, UsesGpu)
    and any(suited(primitive, *example) for example in (CONVOLUTION, POOLED_CONVOLUTION))
]


@further
@pytest.mark.parametrize("threads", [1, 3])
def test_a_pass_of_its_own_is_the_reference(activation: Activation, threads: int) -> None:
    y = 4 * random_input(SHAPE)
    expected = reference.activation(y.astype(np.float64), activation)
    activate_further(y, layer_with(activation), workers(threads))
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=2e-6)


@further
def test_passes_over_many_shares_are_the_reference(activation: Activation) -> None:
    y = 4 * random_input(Shape5(2, 3, 41, 29, 37))
    expected = reference.activation(y.astype(np.float64), activation)
    pool = CountingWorkers(2)
    activate_further(y, layer_with(activation), pool)
    assert pool.tasks == [y.size // FEWEST_VALUES]
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("activation", sorted(FUSED))
def test_what_is_done_already_is_not_done_again(activation: Activation) -> None:
    y = random_input(SHAPE)
    before, pool = y.copy(), CountingWorkers(2)
    activate_further(y, layer_with(activation), pool)
    np.testing.assert_array_equal(y, before)
    assert pool.tasks == []


@further
def test_many_small_maps_are_few_tasks(activation: Activation) -> None:
    pool = CountingWorkers(2)
    activate_further(random_input(Shape5(512, 80, 2, 3, 4)), layer_with(activation), pool)
    (tasks,) = pool.tasks
    assert tasks <= 2 * TASKS_PER_WORKER


@further
def test_one_large_plane_is_work_for_all_threads(activation: Activation) -> None:
    pool = CountingWorkers(4)
    activate_further(random_input(Shape5(1, 1, 1, 300, 301)), layer_with(activation), pool)
    (tasks,) = pool.tasks
    assert tasks >= 4


def test_softmax_does_not_overflow() -> None:
    y = 1e4 * random_input(SHAPE)
    activate_further(y, layer_with("softmax"), workers(2))
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-6)


def with_activation(layer: Operation, activation: Activation) -> Operation:
    if isinstance(layer, PooledConv):
        conv = with_activation(layer.conv, activation)
        assert isinstance(conv, Conv)
        return PooledConv(conv, layer.pool)
    assert isinstance(layer, Conv)
    return replace(layer, activation=activation)


@pytest.mark.slow_cases
@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("primitive", CONVOLUTIONS, ids=lambda primitive: primitive.name)
def test_an_activation_is_paid_for(primitive: Primitive, activation: Activation) -> None:
    layer, shape = does(primitive)
    layer = with_activation(layer, activation)
    out = primitive.out_shape(layer, shape)
    if out is None:
        assert activation in UNORDERED or primitive.device.kind == "gpu"
        return
    without = primitive.cost(with_activation(layer, "identity"), shape)
    cost = primitive.cost(layer, shape)
    passes, flops = price_on_gpu(primitive, activation)
    if primitive.device.kind == "cpu":
        passes, flops = 0 if activation in FUSED else 2, FLOPS[TRAITS[activation].kind]
    assert cost.bytes_moved - without.bytes_moved == pytest.approx(passes * out.nbytes)
    assert cost.flops - without.flops == pytest.approx(out.elements * flops)
    assert cost.memory == without.memory


def price_on_gpu(primitive: Primitive, activation: Activation) -> tuple[int, float]:
    """Passes over the output, and operations for a value.

    Stores activate, and softmax follows, but where all maps of a voxel are in the same thread.
    """
    together = primitive.name.startswith("gpu_lowered_tensor")
    follows = activation == "softmax" and not together
    return (SOFTMAX_PASSES, SOFTMAX_FLOPS) if follows else (0, 0)


def test_more_work_takes_the_time_of_both() -> None:
    memory = Memory(3, 7, 2)
    cost = Cost(100.0, 10.0, memory, efficiency=0.5)
    cost = cost.plus(50.0, efficiency=0.1, bytes_moved=4.0)
    assert (cost.flops, cost.bytes_moved, cost.memory) == (150.0, 14.0, memory)
    assert cost.flops / cost.efficiency == pytest.approx(100 / 0.5 + 50 / 0.1)
