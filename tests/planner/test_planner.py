"""The planner finds the optimum of its model, stays within memory, and says what does not fit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

import pytest
from fake_stages import overhead, stage_in
from fakes import Fake, fake_catalogue, machine
from planner_cases import (
    CHOICES,
    COLD,
    CONV,
    NETWORK,
    NO_OVERHEAD,
    SLOW_TO_READ,
    SLOW_TO_START,
    WITH_FREE_FUSED,
    WITH_FUSED,
    bound_of_patch,
    bound_with_prices,
    combinations,
)
from random_networks import chain

from planner.choices import Slot
from planner.cost_model import BUILT_IN
from planner.overhead import Overhead
from planner.patch_sizes import patch_sizes
from planner.search import Search
from planner.segmentations import segmentations
from planner.step_options import StepOptions
from znni.core.memory_errors import DoesNotFit
from znni.core.shapes import Shape5, Vec3
from znni.engine.stages.read import ReadModel
from znni.engine.stages.write import WriteModel
from znni.network.layers import Conv, Operation, Pool, PooledConv
from znni.network.network import Network
from znni.plans.cost import Cost
from znni.plans.device_partition import DevicePart
from znni.plans.primitive import Primitive, convolved, convolved_and_pooled
from znni.plans.rewrites.fusion import Fusion
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.segments import Segment

CATALOGUES: dict[str, dict[str, Primitive]] = {
    "separate": CHOICES,
    "fused": WITH_FUSED,
    "free fused": WITH_FREE_FUSED,
}
OUTPUT = Vec3(8, 12, 16)


class Multiplying(Fake):
    """A primitive that takes the time of its multiplications, at every voxel that it computes."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        conv = layer.conv if isinstance(layer, PooledConv) else layer
        assert isinstance(conv, Conv)
        positions = shape.n * (shape.size - conv.kernel + 1).volume
        return replace(super().cost(layer, shape), flops=float(positions * conv.parameters))


@pytest.mark.slow
@pytest.mark.parametrize("overhead", [NO_OVERHEAD, SLOW_TO_READ, SLOW_TO_START, COLD])
@pytest.mark.parametrize("name", CATALOGUES)
def test_plan_is_the_optimum_over_patches_splits_and_primitives(
    name: str, overhead: Overhead
) -> None:
    fused = 0
    for memory in (60_000, 100_000, 200_000, 10**7):
        best = min(
            fastest_in(patch, found, memory, overhead) for patch, found in every_plan(name).items()
        )
        search = Search(NETWORK, OUTPUT, machine(memory), CATALOGUES[name], overhead)
        if best == inf:
            with pytest.raises(DoesNotFit):
                search.fastest()
            continue
        plan = search.fastest()[0]
        assert plan.seconds == pytest.approx(best)
        assert plan.memory.total <= memory
        assert bound_of_patch(search, plan.patch) <= plan.seconds
        assert bound_with_prices(search, plan.patch) <= plan.seconds
        fused += any(len(step.layers) == 2 for part in plan.segments for step in part.steps)
    assert bool(fused) == bool(fusible(name))


def test_single_fragments_may_be_made_from_any_layer_before_their_pool() -> None:
    convolutions = [("conv", 2)] * 3
    network = chain(*convolutions, ("pool", 2), ("conv", 1), features=1)
    fusible = tuple(fusions(network).values())
    names = {
        tuple("".join(step.operation.name[:2] for step in part.steps) for part in segments)
        for segments in segmentations(network.nodes, Shape5(1, 1, 8, 8, 8), fusible=fusible)
        if any(part.plain_windows for part in segments)
    }
    assert names == {
        ("l0l1l2l3l4",),
        ("l0l1l2l4",),
        ("l0", "l1l2l3l4"),
        ("l0", "l1l2l4"),
        ("l0l1", "l2l3l4"),
        ("l0l1", "l2l4"),
        ("l0l1l2", "l3l4"),
    }


def fusible(name: str) -> tuple[Fusion, ...]:
    return () if CATALOGUES[name] is CHOICES else tuple(fusions(NETWORK).values())


@cache
def every_plan(name: str) -> dict[Vec3, set[tuple[float, int, int]]]:
    """Return the seconds of the layers, resident and peak memory of all plans, by their patches."""
    options = StepOptions(CATALOGUES[name].values(), BUILT_IN)
    found: dict[Vec3, set[tuple[float, int, int]]] = {}
    for patch in patch_sizes(OUTPUT, NETWORK.total_pooling, isotropic=False):
        shape = Shape5.of(1, 1, patch + NETWORK.field_of_view - 1)
        found[patch] = {
            plan
            for segments in segmentations(NETWORK.nodes, shape, fusible=fusible(name))
            for plan in combinations(slots_of(segments, shape, options))
        }
    return found


def slots_of(segments: tuple[Segment, ...], shape: Shape5, options: StepOptions) -> list[Slot]:
    part = DevicePart(segments, shape)
    runs = [n for segment, n in part.runs() for _ in segment.steps]
    held = part.held_beside()
    return [Slot(options(s), n, beside) for (s, beside), n in zip(held, runs, strict=True)]


def fastest_in(
    patch: Vec3, found: set[tuple[float, int, int]], memory: int, overhead: Overhead
) -> float:
    """Return the least time of a job in patches of a size, over all plans within the memory."""
    size, patches = patch + NETWORK.field_of_view - 1, OUTPUT.ceil_div(patch).volume
    once = overhead.once
    read, write = stage_in(overhead, ReadModel), stage_in(overhead, WriteModel)

    def job_of(layers: float, resident: int, peak: int) -> float:
        start = once.building + once.warming + once.resident * resident
        start += once.touched * (peak - 4 * size.volume)
        taken = resident + peak + 4 * NETWORK.parameters
        start += once.cold and once.cold * max(0, taken - overhead.warm)
        lost_in, lost_out = read.lost_value * size.volume, write.lost_value * patch.volume
        reading = read.value * size.volume
        writing = write.value * patch.volume
        computing = layers + lost_in + lost_out
        slowest = max(reading, computing, writing)
        return start + reading + computing + writing + (patches - 1) * slowest

    allowed = memory - 4 * NETWORK.parameters
    return min(
        (job_of(*plan) for plan in found if plan[1] + plan[2] <= allowed),
        default=inf,
    )


def test_what_reading_and_starting_take_decides() -> None:
    """A plan whose reading is the bottleneck reads less; a small job keeps less resident."""
    output = Vec3(12, 20, 24)
    quick = Search(NETWORK, output, machine(100_000), CHOICES, NO_OVERHEAD).fastest()[0]
    read = Search(NETWORK, output, machine(100_000), CHOICES, SLOW_TO_READ).fastest()[0]
    assert read.time.patch.bottleneck == "reading"
    assert read.patches * read.input_patch.volume < quick.patches * quick.input_patch.volume
    plenty = machine(10**7)
    quick = Search(NETWORK, output, plenty, WITH_FUSED, NO_OVERHEAD).fastest()[0]
    started = Search(NETWORK, output, plenty, WITH_FUSED, SLOW_TO_START).fastest()[0]
    assert started.memory.resident + started.memory.working < (
        quick.memory.resident + quick.memory.working
    )
    assert started.patch_seconds * started.patches > quick.patch_seconds * quick.patches


@pytest.mark.parametrize("catalogue", [CHOICES, WITH_FUSED])
def test_too_little_memory_names_what_would_do(catalogue: dict[str, Primitive]) -> None:
    output = Vec3(40, 40, 40)
    with pytest.raises(DoesNotFit) as refused:
        Search(NETWORK, output, machine(1000), catalogue, NO_OVERHEAD).fastest()[0]
    error = refused.value
    assert error.patch == NETWORK.total_pooling
    fused = (fusion.operation for fusion in fusions(NETWORK).values())
    assert error.layer in {layer.name for layer in (*NETWORK.layers, *fused)}
    plan = Search(NETWORK, output, machine(error.needed), catalogue, NO_OVERHEAD).fastest()[0]
    assert plan.memory.total <= error.needed
    with pytest.raises(DoesNotFit):
        Search(NETWORK, output, machine(error.needed - 1), catalogue, NO_OVERHEAD).fastest()[0]


def test_where_memory_is_short_a_fused_step_makes_room_for_larger_patches() -> None:
    """Their smaller borders save more than the first convolution's repetition costs."""
    network = chain(("conv", 3), ("pool", 2), ("conv", 5), ("conv", 5), features=40)
    output = Vec3(96, 96, 96)
    apart = fake_catalogue(Multiplying("conv", convolved))
    both = apart | {"fused": Multiplying("fused", convolved_and_pooled)}
    allowed = machine(8 * 2**20)
    stored = Search(network, output, allowed, apart, NO_OVERHEAD).fastest()[0]
    pooled = Search(network, output, allowed, both, NO_OVERHEAD).fastest()[0]
    assert pooled.segments[0].steps[0].operation == PooledConv(*network.layers[:2])  # type: ignore[arg-type]
    assert pooled.memory.total <= 8 * 2**20
    assert pooled.patch.volume >= 4 * stored.patch.volume
    assert pooled.seconds < stored.seconds
    plenty = machine(2**34)
    assert (
        Search(network, output, plenty, both, NO_OVERHEAD).fastest()[0]
        == Search(network, output, plenty, apart, NO_OVERHEAD).fastest()[0]
    )


def test_a_thin_volume_is_not_padded_to_a_cube() -> None:
    plan = Search(NETWORK, Vec3(2, 120, 120), machine(10**7), CHOICES, NO_OVERHEAD).fastest()[0]
    assert plan.patch.z == 2
    assert plan.patch.x > 20


def test_overhead_counts_against_the_limit() -> None:
    output = Vec3(12, 20, 24)
    alone = Search(NETWORK, output, machine(10**7), CHOICES, NO_OVERHEAD).fastest()[0]
    with_blocks = overhead(10**6, 7, 11)
    beside = Search(NETWORK, output, machine(10**7), CHOICES, with_blocks).fastest()[0]
    assert beside.patch == alone.patch
    blocks = 7 * beside.input_patch.volume + 11 * beside.patch.volume
    assert beside.memory.blocks == blocks
    assert beside.memory.total == alone.memory.total + 10**6 + blocks


def test_a_fused_step_reads_its_stored_input_in_place() -> None:
    pooled = Network.chain("pooled", 1, (CONV, Pool("pool1", Vec3(2, 2, 2))))
    fused = {"fused": Fake("fused", convolved_and_pooled)}
    plan = Search(pooled, Vec3(10, 10, 10), machine(10**9), fused, NO_OVERHEAD).fastest()[0]
    stored, fragment = Shape5(1, 1, 13, 13, 13), Shape5(1, 2, 5, 5, 5)
    assert plan.memory.working == stored.nbytes + fragment.nbytes


@pytest.mark.slow
def test_the_best_plans_are_those_of_all_patches() -> None:
    output, catalogue = Vec3(8, 12, 16), WITH_FUSED
    for memory in (60_000, 200_000, 10**7):
        search = Search(NETWORK, output, machine(memory), catalogue, NO_OVERHEAD)
        every = search.fastest(10**6)
        patches = [plan.patch for plan in every]
        assert len(set(patches)) == len(patches)
        seconds = [plan.seconds for plan in every]
        assert seconds == sorted(seconds)
        assert len(every) > 10
        some = search.fastest(10)
        assert [plan.seconds for plan in some] == seconds[:10]
        best = Search(NETWORK, output, machine(memory), catalogue, NO_OVERHEAD).fastest()[0]
        assert best.seconds == seconds[0]


@pytest.mark.slow
def test_a_plan_takes_less_memory_if_more_would_be_cold() -> None:
    output, plenty = Vec3(12, 20, 24), machine(10**9)
    found = [
        Search(NETWORK, output, plenty, CHOICES, replace(COLD, warm=warm)).fastest()[0]
        for warm in (10_000, 100_000, inf)
    ]
    cold, _, warm = (plan.memory.total for plan in found)
    assert cold < warm
    assert [plan.seconds for plan in found] == sorted((p.seconds for p in found), reverse=True)
    assert found[0].time.warming >= (cold - 10_000) * COLD.once.cold
