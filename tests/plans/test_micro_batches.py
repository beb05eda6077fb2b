"""A batch in pieces gives the same result as the whole batch, in the memory that it declares."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from fake_stages import overhead
from fakes import Fake, fake_catalogue, machine
from layers import CONVOLUTION, POOLING, case_for, primitives_for
from planner_cases import by_brute_force

from bench.reference import sliding_output
from planner.bare_steps import bare_step
from planner.choices import Slot
from planner.cost_model import BUILT_IN
from planner.micro_batches import listings
from planner.patch_sizes import patch_sizes
from planner.search import Search
from planner.segmentations import segmentations
from planner.step_options import StepOptions
from znni.core.option_types import Division
from znni.core.shapes import Shape5, Vec3
from znni.engine.patch_runner import PatchRunner
from znni.machine.arena import new_output, output_into
from znni.network.layers import Conv, Operation, Pool
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.plans.composition import InTurn
from znni.plans.cost import Cost, Memory
from znni.plans.device_partition import DevicePart
from znni.plans.micro_batches import (
    MicroBatches,
    Piece,
    cost_of_pieces,
)
from znni.plans.plan import Plan
from znni.plans.primitive import Primitive, convolved, fragmented

CONV_OF_ONE = Conv("conv1", 1, 2, Vec3(2, 2, 2), "relu")
CONV_OF_FRAGMENTS = Conv("conv2", 2, 1, Vec3(3, 3, 3), "identity")
POOLED = Network.chain("net", 1, (CONV_OF_ONE, Pool("pool1", Vec3(2, 2, 2)), CONV_OF_FRAGMENTS))
DIVISIONS: tuple[Division, ...] = ("none", "power-of-two")
CONV = Conv("hidden", 5, 7, Vec3(3, 2, 4), "relu")
POOL = Pool("pool", Vec3(2, 1, 3))


def pieces(primitive: Primitive) -> MicroBatches:
    return MicroBatches((Piece(2, 2, primitive), Piece(1, 1, primitive)))


def check(primitive: Primitive, layer: Operation, shape: Shape5) -> None:
    case = case_for(primitive, layer, shape)
    whole = case.run(primitive)
    assert pieces(primitive).out_shape(layer, case.shape) == whole.shape
    divided = case.run(pieces(primitive))
    tolerance = max(1e-4, primitive.accuracy)
    np.testing.assert_allclose(divided, whole, rtol=tolerance, atol=tolerance * abs(whole).max())


@pytest.mark.slow_cases
@pytest.mark.parametrize("primitive", primitives_for(*CONVOLUTION))
def test_convolution_in_pieces(primitive: Primitive) -> None:
    check(primitive, CONV, Shape5(5, 5, 19, 23, 21))


@pytest.mark.parametrize("primitive", primitives_for(*POOLING))
def test_pooling_in_pieces(primitive: Primitive) -> None:
    check(primitive, POOL, Shape5(5, 3, 11, 7, 14))


def test_another_batch_or_layer_is_refused() -> None:
    divided = pieces(fake_catalogue()["conv"])
    shape = Shape5(5, 5, 9, 9, 9)
    assert divided.out_shape(CONV, shape) == Shape5(5, 7, 7, 8, 6)
    for layer, other in ((CONV, shape._replace(n=4)), (POOL, shape)):
        assert divided.out_shape(layer, other) is None
        with pytest.raises(ValueError, match="does not apply"):
            divided.cost(layer, other)
        with pytest.raises(ValueError, match="does not apply"):
            divided.build(layer, other, None)


def test_pieces_take_the_time_of_all_and_the_workspace_of_the_largest() -> None:
    one = Cost(100.0, 10.0, Memory.beside(50, workspace=30, resident=3), efficiency=0.5)
    other = Cost(60.0, 7.0, Memory.beside(20, workspace=9, resident=4), efficiency=0.1)
    cost = cost_of_pieces([(3, one), (2, other)], arrays=190)
    assert (cost.flops, cost.bytes_moved) == (420.0, 44.0)
    assert cost.memory == Memory(resident=7, working=220, workspace=30)
    assert cost.flops / cost.efficiency == pytest.approx(300 / 0.5 + 120 / 0.1)


def test_an_output_that_is_there_is_taken_if_it_has_the_shape() -> None:
    given = np.zeros((2, 3), np.float32)
    with output_into(given):
        assert new_output((2, 3)) is given
        with pytest.raises(ValueError, match=r"\(2, 3\).*\(3, 2\)"):
            new_output((3, 2))
    assert new_output((2, 3)) is not given


class Growing(Fake):
    """A primitive that takes workspace for every item of the batch."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        cost = super().cost(layer, shape)
        memory = cost.memory
        workspace = shape.n * memory.workspace
        arrays = memory.working - memory.workspace
        return replace(cost, memory=Memory.beside(arrays, workspace, memory.resident))


def test_where_memory_is_short_a_plan_in_pieces_is_faster_and_gives_the_same() -> None:
    catalogue: dict[str, Primitive] = {
        "quick": Growing("quick", convolved, flops=1e5, workspace=2_000),
        "slow": Fake("slow", convolved, flops=3e5),
        "fragments": Fake("fragments", fragmented),
    }
    output = Vec3(8, 8, 8)
    weights = random_weights(POOLED, 3)
    volume = np.random.default_rng(0).random((1, *(output + POOLED.field_of_view - 1)), np.float32)
    faster = 0
    for memory in range(30_000, 60_000, 1_000):
        whole, divided = (
            Search(
                POOLED, output, machine(memory), catalogue, overhead(), division=division
            ).fastest()[0]
            for division in DIVISIONS
        )
        assert divided.seconds <= whole.seconds
        assert divided.memory.total <= memory
        faster += divided.seconds < whole.seconds
        if divided.patch == output and isinstance(divided.segments[-1].steps[-1].primitive, InTurn):
            y = PatchRunner(Plan.from_json(divided.to_json()), catalogue, weights)(volume)
            np.testing.assert_allclose(
                y, sliding_output(POOLED, weights, volume), rtol=1e-4, atol=1e-5
            )
    assert faster > 3


class Uneven(Growing):
    """A primitive that takes longest for batches that are no multiple of three."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        cost = super().cost(layer, shape)
        return replace(cost, flops=cost.flops * (1 if shape.n % 3 == 0 else 1.5))


UNEVEN: dict[str, Primitive] = {
    "quick": Uneven("quick", convolved, flops=1e5, workspace=2_000),
    "resident": Growing("resident", convolved, flops=1.2e5, workspace=300, resident=5_000),
    "slow": Fake("slow", convolved, flops=3e5),
    "fragments": Fake("fragments", fragmented),
}


def seconds(memory: int, division: Division) -> float:
    plan = Search(
        POOLED, Vec3(8, 8, 8), machine(memory), UNEVEN, overhead(), division=division
    ).fastest()[0]
    assert plan.memory.total <= memory
    return plan.seconds


@pytest.mark.parametrize("division", ["power-of-two", "all"])
def test_the_plan_in_pieces_is_the_optimum(division: Division) -> None:
    """The comparison covers all patches and segments, with all combinations of lists of pieces."""
    options, output = StepOptions(UNEVEN.values(), BUILT_IN, division), Vec3(8, 8, 8)
    for memory in range(30_000, 60_000, 6_000):
        best = inf
        for patch in patch_sizes(output, POOLED.total_pooling, isotropic=True):
            given = Shape5.of(1, 1, patch + POOLED.field_of_view - 1)
            for segments in segmentations(POOLED.nodes, given):
                part = DevicePart(segments, given)
                runs = [n for segment, n in part.runs() for _ in segment.steps]
                slots = [
                    Slot(options(step), n, held)
                    for (step, held), n in zip(part.held_beside(), runs, strict=True)
                ]
                layers = by_brute_force(slots, memory - 4 * POOLED.parameters)
                best = min(best, output.ceil_div(patch).volume * layers)
        assert seconds(memory, division) == pytest.approx(best)


@pytest.mark.parametrize("division", ["power-of-two", "all"])
def test_a_relaxed_option_equals_or_beats_each_that_there_is(division: Division) -> None:
    options = StepOptions(UNEVEN.values(), BUILT_IN, division)
    for batch in (1, 3, 8, 13):
        shape = Shape5(batch, 1, 6, 6, 6)
        out = Shape5.of(batch, 2, shape.size - CONV_OF_ONE.kernel + 1)
        asked = bare_step(CONV_OF_ONE, shape, out)
        relaxed = options.relaxed(asked)
        for step in options(asked):
            assert any(
                one.seconds <= step.seconds * (1 + 1e-12)
                and one.peak_bytes() <= step.peak_bytes()
                and one.cost.memory.resident <= step.cost.memory.resident
                for one in relaxed
            )


@pytest.mark.slow
def test_limits_of_pieces_change_no_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of all sizes are found within the time and memory left, and without limits."""
    memories = range(30_000, 60_000, 2_000)
    within = [seconds(memory, "all") for memory in memories]
    by_two = [seconds(memory, "power-of-two") for memory in memories]
    monkeypatch.setattr("planner.step_options.listings", lambda *asked: listings(*asked[:3]))
    assert within == [seconds(memory, "all") for memory in memories]
    assert all(a <= b for a, b in zip(within, by_two, strict=True))
    assert within != by_two
