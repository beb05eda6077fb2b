"""Layers on the host that compute on a GPU: their plans, and the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from fake_cupy import CUPY, fake_gpu
from fake_stages import overhead
from fakes import Fake, FakeOnGpu, fake_catalogue, fake_gpu_catalogue, gpu, machine
from random_networks import chain
from random_plans import random_volume, run

from bench import reference
from planner.bare_steps import bare_step
from planner.bounds import NOT_SLOWED, Numbers, Slowed
from planner.cost_model import BUILT_IN
from planner.partition import CutPoint
from planner.search import Search
from planner.step_options import StepOptions
from znni.core.errors import InvalidInput
from znni.core.memory_errors import DoesNotFit
from znni.core.processors import DeviceChoice
from znni.core.shapes import Shape5, Vec3
from znni.engine.patch_runner import PatchRunner
from znni.engine.stopwatch import Stopwatch
from znni.machine.machine import Machine
from znni.network.layers import Activation, Operation
from znni.network.weights import random_weights
from znni.plans.plan import Plan
from znni.plans.plan_text import plan_table
from znni.plans.primitive import Catalogue, Primitive, convolved, convolved_and_pooled
from znni.plans.segments import Step
from znni.primitives.host_and_gpu import cuda_lanes, host_ram
from znni.primitives.host_and_gpu.host_ram import HostRam

NETWORK = chain(("conv", 2), ("pool", (2, 2, 2)), ("conv", 3), ("conv", 2))
OUTPUT = Vec3(6, 8, 10)
KIB = 2**10
HOST = machine(memory=2**21).host
GPU = replace(gpu(memory=64 * KIB), link=1e9)
BASE = FakeOnGpu("gpu_conv", convolved, flops=10.0, workspace=KIB, resident=256, device=GPU)
CATALOGUE = (
    fake_catalogue()
    | fake_gpu_catalogue(workspace=KIB)
    | {found.name: found for found in (HostRam(HOST, GPU, BASE, n) for n in (4, 16))}
)


@pytest.fixture(autouse=True)
def budgets_of_kibibytes() -> Iterator[None]:
    """Make a GiB of a GPU a KiB, so that small layers are divided."""
    host_ram._divided.cache_clear()
    with mock.patch.object(host_ram, "GIB", KIB):
        yield
    host_ram._divided.cache_clear()


def search(
    device: DeviceChoice = "cpu+gpu",
    gpu_memory: int = 64 * KIB,
    catalogue: Catalogue = CATALOGUE,
) -> Search:
    there = Machine(HOST, (replace(GPU, memory=gpu_memory),))
    beside = overhead(1000, 1, 2, cuda=500, gpu=100, gpu_value_in=4, gpu_value_out=8)
    return Search(NETWORK, OUTPUT, there, catalogue, beside, device=device)


def using(on_host: int, gpu_memory: int = 64 * KIB) -> Plan:
    """Return the fastest plan with so many layers on the host, some of which use the GPU."""
    wanted = CutPoint(on_host, host_uses_gpu=True)
    plan = search(gpu_memory=gpu_memory).through([wanted]).fastest()[0]
    assert any(step.uses_gpu for step in plan.steps)
    return plan


@pytest.mark.parametrize("on_host", [1, 3, 4])
def test_the_gpu_s_bytes_of_both_sides_are_promised(on_host: int) -> None:
    plan = using(on_host)
    assert plan.device == "cpu+gpu"
    assert plan.gpu_memory is not None
    memories = [step.cost.memory for step in plan.steps if step.uses_gpu]
    resident, working = sum(m.gpu_resident for m in memories), max(m.gpu_working for m in memories)
    if part := plan.part("gpu"):
        resident, working = resident + part.resident, working + part.working_peak()[0]
    assert (plan.gpu_memory.resident, plan.gpu_memory.working) == (resident, working)
    copied = 0
    if plan.part("gpu"):
        copied = plan.part("cpu").output_shape.nbytes
    tables = -(-(2 * copied + plan.memory.working) // 512)
    assert plan.gpu_memory.process == 100 + tables
    assert plan.gpu_memory.total <= GPU.memory
    assert Plan.from_json(plan.to_json()) == plan
    assert "of the GPU" in plan_table(plan)


def test_the_table_says_which_layers_run_where() -> None:
    plans = {on_host: using(on_host) for on_host in (1, 3, 4)}
    helped = {on_host: sum(it.uses_gpu for it in plans[on_host].steps) for on_host in plans}
    told = {on_host: plan_table(plan) for on_host, plan in plans.items()}
    for on_host, layers in ((1, "first 1 layer"), (3, "first 3 layers")):
        with_help = f"({helped[on_host]} of them with the help of the GPU)"
        line = f" the {layers} on the host {with_help}, the others on fake GPU, 64 KiB allowed\n"
        assert line in told[on_host]
    with_help = f"{helped[4]} of them with the help of fake GPU"
    assert f" all layers on the host, {with_help}, 64 KiB allowed\n" in told[4]
    assert helped[1] < helped[4]
    none = plan_table(search("gpu", 2**30).fastest()[0])
    assert " layers on fake GPU, 1.00 GiB allowed\n" in none
    assert "on the host" not in none


def test_sides_that_share_the_gpu_take_turns() -> None:
    time = using(3).time
    assert time.in_turn
    layers = time.patch.host_layers + time.patch.transfer + time.patch.gpu_layers
    pace = max(layers, time.patch.reading, time.patch.writing)
    assert time.total(5) == pytest.approx(time.once + time.patch.together + 4 * pace)
    within = time.stage_within(time.total(5), 5, "host_layers")
    assert within == pytest.approx(time.patch.host_layers)


def test_less_of_the_gpu_means_smaller_pieces_or_none() -> None:
    roomy, tight = using(4), using(4, gpu_memory=16 * KIB)
    assert roomy.gpu_memory is not None
    assert tight.gpu_memory is not None
    assert tight.gpu_memory.total <= 16 * KIB < roomy.gpu_memory.total
    within = search().within(16 * KIB, "gpu").through([CutPoint(4, True)])
    assert within.fastest()[0].gpu_memory == tight.gpu_memory
    for found in (search("cpu"), search(gpu_memory=KIB).through([CutPoint(4, True)])):
        assert not any(step.uses_gpu for step in found.fastest()[0].steps)
    with pytest.raises(DoesNotFit):
        search("gpu", gpu_memory=KIB).fastest()


@pytest.mark.slow
def test_the_fastest_of_all_is_no_slower_than_any_place() -> None:
    best = search("auto").fastest()[0]
    for place in search("auto").cut_points:
        assert best.seconds <= search("auto").through([place]).fastest()[0].seconds


def test_only_the_host_s_own_are_priced_for_pieces_of_a_batch() -> None:
    """Primitives that compute on the GPU cut the batch themselves."""
    asked: list[tuple[str, int]] = []

    def declining(primitive: Primitive, layer: Operation, shape: Shape5) -> Shape5 | None:
        if shape.size != Vec3(5, 5, 5):  # one of the samples, which tell who applies at all
            return convolved(layer, shape)
        asked.append((primitive.name, shape.n))
        return None

    (conv, *_), host = NETWORK.layers, Fake("host", convolved)
    using = CATALOGUE["host_ram_4GiB_gpu_conv"]
    step = bare_step(conv, Shape5(8, 1, 5, 5, 5), Shape5(8, 2, 4, 4, 4))
    with (
        mock.patch.object(Fake, "out_shape", declining),
        mock.patch.object(HostRam, "out_shape", declining),
    ):
        assert not StepOptions([host, using], BUILT_IN)(step)
    assert sorted(asked) == [*(("host", n) for n in (1, 2, 4, 8)), (using.name, 8)]


class NoBounds:
    """Bounds that rule nothing out."""

    def of_layers(
        self, voxels: Mapping[str, Numbers], slowed: Slowed = NOT_SLOWED
    ) -> dict[str, Numbers]:
        del slowed
        return {node.name: 0.0 * voxels[node.name] for node in NETWORK.nodes}

    def of_step(self, _: Step) -> float:
        return 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flops", "some"),
    [(0.1, "host_ram_16GiB"), (10.0, "host_ram_4GiB"), (100.0, "4 conv beside"), (1000.0, "conv")],
)
def test_bounds_rule_out_nothing_that_is_faster(flops: float, some: str) -> None:
    """Three cases: the GPU waits for its inputs, the host helps it, or the host works alone."""
    using = (HostRam(HOST, GPU, replace(BASE, flops=flops), gib) for gib in (4, 16))
    slow = FakeOnGpu("gpu_conv", convolved, flops=100 * flops)
    catalogue = CATALOGUE | {found.name: found for found in (slow, *using)}
    bounded, unbounded = (search(catalogue=catalogue) for _ in range(2))
    for part in unbounded._searches.values():
        part.bounds = NoBounds()
    chosen = set[str]()
    for patch in bounded.patches():
        found, other = bounded.fastest_for(patch), unbounded.fastest_for(patch)
        assert found is not None
        assert other is not None
        assert (found.seconds, found.segments) == (other.seconds, other.segments)
        chosen |= {str(step.primitive) for step in found.steps}
    assert any(name.startswith(some) for name in chosen)


@pytest.mark.slow
def test_a_pooling_may_be_bound_by_nothing() -> None:
    """A convolution takes no longer with the pooling than alone."""
    fused = fake_catalogue(Fake("fused", convolved_and_pooled, flops=1e-3))
    found = search(catalogue=CATALOGUE | fused)
    shapes = NETWORK.shapes(NETWORK.total_pooling)
    voxels = {name: np.array([shape.n * shape.size.volume]) for name, shape in shapes.items()}
    least = found._searches["cpu"].bounds.of_layers(voxels)
    assert any(seconds[0] == 0.0 for seconds in least.values())
    assert found.fastest()[0].seconds <= using(4).seconds


def adding(activation: Activation) -> Any:
    def add(_blocks: object, _threads: object, arguments: tuple[Any, Any, int]) -> None:
        partial, into, _ = arguments
        into += partial
        if activation != "softmax":
            into[...] = reference.activation(into, activation)

    return add


@pytest.mark.parametrize("on_host", [1, 3, 4])
def test_patches_are_the_reference_in_the_memory_promised(on_host: int) -> None:
    plan, weights = using(on_host), random_weights(NETWORK, 7)
    volume = random_volume(NETWORK, OUTPUT, 3)
    expected = reference.sliding_output(NETWORK, weights, volume)
    locked = CUPY.cuda.runtime.locked
    before = set(locked)  # by what earlier tests made, until that is collected
    with fake_gpu(), mock.patch.object(cuda_lanes, "_adding", adding):
        runner = PatchRunner(plan, CATALOGUE, weights)
        handed = 2 * (on_host < len(NETWORK.layers))
        assert len(set(locked) - before) == 1 + handed
        np.testing.assert_allclose(run(runner, weights, volume), expected, rtol=1e-4, atol=1e-5)
        arena = runner._parts[0]._on_gpu
        declared = max(step.cost.memory.gpu_working for step in plan.steps)
        assert arena.peak <= declared + 8 * 512  # aligned
        assert len(runner.stages(Stopwatch())) == 1


def test_a_plan_that_takes_other_bytes_of_the_gpu_is_refused() -> None:
    plan = using(4)
    assert plan.gpu_memory is not None
    less = replace(plan, gpu_memory=replace(plan.gpu_memory, working=1))
    with pytest.raises(InvalidInput, match="of fake GPU, but its steps take"):
        PatchRunner(less, CATALOGUE, random_weights(NETWORK, 7))
