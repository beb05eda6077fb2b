"""The planner finds the optimum of its model, stays within memory, and says what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf
from typing import get_args

import pytest
from fakes import Fake, fake_catalogue, machine
from hypothesis import given
from hypothesis import strategies as st

from planner.costs import BUILT_IN, BUILT_IN_ERROR, NOT_MEASURED, CostModel, Estimate
from planner.exhaustive import Search, fastest_plan
from planner.layers import Options, Slot, fastest_within, least_memory
from planner.overhead import Handling, Overhead
from planner.sizes import FINEST_STEP, axis_sizes, patch_sizes, patch_sizes_near, spread
from planner.split import pooled_convolutions, splits
from znni.cost import Cost, Memory
from znni.errors import DoesNotFit
from znni.job_seconds import Stage, StageSeconds
from znni.network import Conv, Network, Operation, Pool, PooledConv
from znni.plan_table import plan_table
from znni.plan_time import PlanTime
from znni.primitive import Primitive, convolved, convolved_and_pooled
from znni.segments import Segment, Step
from znni.shapes import Shape5, Vec3
from znni.sides import Side

CONV = Conv("conv1", 1, 2, Vec3(3, 3, 3), "relu")
NETWORK = Network(
    "test",
    1,
    (
        CONV,
        Pool("pool1", Vec3(2, 2, 2)),
        Conv("conv2", 2, 5, Vec3(3, 2, 3), "relu"),
        Pool("pool2", Vec3(1, 2, 3)),
        Conv("conv3", 5, 1, Vec3(2, 2, 2), "sigmoid"),
    ),
)
NO_OVERHEAD = Overhead(0, 0, 0)
SLOW_TO_READ = Overhead(0, 0, 0, handling=Handling(voxel_in=1e-4, voxel_out=3e-5, lost_in=1e-6))
SLOW_TO_START = Overhead(
    0, 0, 0, handling=Handling(1.0, 2.0, resident=1e-6, touched=3e-7, voxel_in=1e-9, lost_out=1e-8)
)

CONVOLUTIONS = (
    Fake("quick_but_large", convolved, flops=10.0, workspace=40_000),
    Fake("quick_but_resident", convolved, flops=12.0, resident=30_000),
    Fake("medium", convolved, flops=40.0, workspace=9_000, resident=2_000),
)
CHOICES = fake_catalogue(*CONVOLUTIONS)
# A voxel of theirs takes eight of the first convolution's, or six of the second's.
WITH_FUSED = fake_catalogue(
    *CONVOLUTIONS,
    Fake("fused", convolved_and_pooled, flops=90.0, resident=1_000),
    Fake("slow_fused", convolved_and_pooled, flops=400.0),
)
# Faster at all offsets than a convolution at all voxels: no real one is.
WITH_FREE_FUSED = fake_catalogue(*CONVOLUTIONS, Fake("fused", convolved_and_pooled, flops=2.0))


def step(seconds: float, resident: int, working: int) -> Step:
    cost = Cost(1.0, 1.0, Memory(resident, working, working), 1.0)
    return Step(CONV, "any", Shape5(1, 1, 3, 3, 3), Shape5(1, 2, 1, 1, 1), cost, seconds, 0.1)


class Tiled(Fake):
    """Computes whole tiles of 22 voxels an axis only."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        out = convolved(layer, shape)
        assert out is not None
        computed = out.n * out.f * (out.size.ceil_div(22) * 22).volume
        memory = Memory.beside(shape.nbytes + out.nbytes, workspace=0)
        return Cost(float(computed), 0.0, memory, 1.0)


class Multiplying(Fake):
    """Takes the time of the convolution's multiplications, at every voxel that it computes."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        conv = layer.conv if isinstance(layer, PooledConv) else layer
        assert isinstance(conv, Conv)
        positions = shape.n * (shape.size - conv.kernel + 1).volume
        return replace(super().cost(layer, shape), flops=float(positions * conv.parameters))


@st.composite
def slots(draw: st.DrawFn) -> list[Slot]:
    numbers = st.integers(0, 6)
    made = []
    for _ in range(draw(st.integers(1, 4))):
        options = draw(st.lists(st.tuples(st.integers(1, 6), numbers, numbers), min_size=1))
        steps = sorted((step(float(s), r, w) for s, r, w in options), key=lambda s: s.seconds)
        made.append(Slot(tuple(steps), draw(st.integers(1, 3)), draw(numbers)))
    return made


def layers_alone(seconds: float, _resident: int, _peak: int) -> float:
    return seconds


def by_brute_force(
    choices: list[Slot], allowed: int, job_of: Callable[[float, int, int], float] = layers_alone
) -> float:
    """The least that any combination of steps makes of its seconds, resident bytes and peak."""
    best = inf
    for steps in product(*(slot.options for slot in choices)):
        resident = sum(s.cost.memory.resident for s in steps)
        peak = max(
            slot.held + s.cost.memory.working for slot, s in zip(choices, steps, strict=True)
        )
        if resident + peak <= allowed:
            seconds = sum(slot.runs * s.seconds for slot, s in zip(choices, steps, strict=True))
            best = min(best, job_of(seconds, resident, peak))
    return best


@given(slots(), st.integers(0, 25))
def test_choice_of_primitives_is_the_optimum(choices: list[Slot], allowed: int) -> None:
    found = fastest_within(choices, allowed, inf)
    assert (found.seconds if found else inf) == by_brute_force(choices, allowed)
    if found:
        assert found.resident + found.peak <= allowed
        assert fastest_within(choices, allowed, found.seconds) is None


@given(slots())
def test_least_memory_is_the_least(choices: list[Slot]) -> None:
    least = least_memory(choices)
    needed = least.resident + least.peak
    assert by_brute_force(choices, needed) < inf
    assert by_brute_force(choices, needed - 1) == inf


@pytest.mark.parametrize("overhead", [NO_OVERHEAD, SLOW_TO_READ, SLOW_TO_START])
@pytest.mark.parametrize("catalogue", [CHOICES, WITH_FUSED, WITH_FREE_FUSED])
def test_plan_is_the_optimum_over_patches_splits_and_primitives(
    catalogue: dict[str, Primitive], overhead: Overhead
) -> None:
    output = Vec3(12, 20, 24)
    fusible = () if catalogue is CHOICES else tuple(pooled_convolutions(NETWORK))
    options = Options(catalogue.values(), BUILT_IN)
    fused = 0
    for memory in (60_000, 100_000, 200_000, 10**7):
        best = inf
        for patch in patch_sizes(output, NETWORK.total_pooling, isotropic=False):
            size = patch + NETWORK.field_of_view - 1
            for segments in splits(NETWORK.layers, Shape5.of(1, 1, size), fusible=fusible):
                seconds = fastest_of_split(segments, output, patch, memory, options, overhead)
                best = min(best, seconds)
        if best == inf:
            with pytest.raises(DoesNotFit):
                fastest_plan(NETWORK, output, machine(memory), catalogue, overhead)
            continue
        plan = fastest_plan(NETWORK, output, machine(memory), catalogue, overhead)
        assert plan.seconds == pytest.approx(best)
        assert plan.memory.total <= memory
        search = Search(NETWORK, output, machine(memory), catalogue, overhead)
        assert search.lower_bound(plan.patch) <= plan.seconds
        fused += any(len(step.layers) == 2 for part in plan.segments for step in part.steps)
    assert bool(fused) == bool(fusible)


def test_single_fragments_may_be_made_from_any_layer_before_their_pool() -> None:
    layers = [Conv(f"c{i}", 1, 1, Vec3(2, 2, 2), "relu") for i in range(3)]
    network = Network(
        "one pool",
        1,
        (*layers, Pool("pool", Vec3(2, 2, 2)), Conv("last", 1, 1, Vec3(1, 1, 1), "relu")),
    )
    fusible = tuple(pooled_convolutions(network))
    names = {
        tuple("".join(step.operation.name[:2] for step in part.steps) for part in segments)
        for segments in splits(network.layers, Shape5(1, 1, 8, 8, 8), fusible=fusible)
        if any(part.plain_windows for part in segments)
    }
    assert names == {
        ("c0c1c2pola",),
        ("c0c1c2la",),
        ("c0", "c1c2pola"),
        ("c0", "c1c2la"),
        ("c0c1", "c2pola"),
        ("c0c1", "c2la"),
        ("c0c1c2", "pola"),
    }


def fastest_of_split(
    segments: tuple[Segment, ...],
    output: Vec3,
    patch: Vec3,
    memory: int,
    options: Options,
    overhead: Overhead,
) -> float:
    """The fastest job with given segments, every combination of primitives tried."""
    size, patches = patch + NETWORK.field_of_view - 1, output.ceil_div(patch).volume
    side = Side(segments, Shape5.of(1, 1, size))
    runs = [n for segment, n in side.runs() for _ in segment.steps]
    held = side.held_beside()
    slots = [Slot(options(s), n, beside) for (s, beside), n in zip(held, runs, strict=True)]
    handling = overhead.handling

    def job_of(layers: float, resident: int, peak: int) -> float:
        start = handling.building + handling.warming + handling.resident * resident
        start += handling.touched * (peak - 4 * size.volume)
        reading, writing = handling.voxel_in * size.volume, handling.voxel_out * patch.volume
        computing = layers + handling.lost_in * size.volume + handling.lost_out * patch.volume
        slowest = max(reading, computing, writing)
        return start + reading + computing + writing + (patches - 1) * slowest

    return by_brute_force(slots, memory - 4 * NETWORK.parameters, job_of)


def test_what_reading_and_starting_take_decides() -> None:
    """A plan whose reading is the bottleneck reads less; a small job keeps less resident."""
    output = Vec3(12, 20, 24)
    quick = fastest_plan(NETWORK, output, machine(100_000), CHOICES, NO_OVERHEAD)
    read = fastest_plan(NETWORK, output, machine(100_000), CHOICES, SLOW_TO_READ)
    assert read.time.patch.bottleneck == "reading"
    assert read.patches * read.input_patch.volume < quick.patches * quick.input_patch.volume
    plenty = machine(10**7)
    quick = fastest_plan(NETWORK, output, plenty, WITH_FUSED, NO_OVERHEAD)
    started = fastest_plan(NETWORK, output, plenty, WITH_FUSED, SLOW_TO_START)
    assert started.memory.resident + started.memory.working < (
        quick.memory.resident + quick.memory.working
    )
    assert started.patch_seconds * started.patches > quick.patch_seconds * quick.patches


@given(st.tuples(*[st.floats(0, 10)] * 7), st.integers(1, 9), st.sampled_from(get_args(Stage)))
def test_the_seconds_that_a_time_leaves_a_stage(
    seconds: tuple[float, ...], patches: int, stage: Stage
) -> None:
    time = PlanTime(*seconds[:2], StageSeconds(*seconds[2:]))
    within = time.stage_within(time.total(patches), patches, stage)
    if patches == 1 or time.patch.bottleneck == stage:
        assert within == pytest.approx(time.patch.by_stage()[stage], abs=1e-6)
    there = replace(time, patch=replace(time.patch, **{stage: max(within, 0)}))
    assert there.total(patches) == pytest.approx(time.total(patches), abs=1e-6)


def test_stages_that_go_on_at_a_time_take_as_long_as_the_slowest() -> None:
    """Each stage takes a patch when it has handed on its last."""
    for seconds in product((1.0, 2.0, 5.0), repeat=5):
        time = PlanTime(3.0, 4.0, StageSeconds(*seconds))
        for patches in (1, 2, 7):
            free = [7.0] * (len(seconds) + 1)  # when each stage takes its next patch
            for _ in range(patches):
                handed = free[0]
                for stage, each in enumerate(seconds):
                    free[stage] = handed = max(handed + each, free[stage + 1])
            assert time.total(patches) == handed


@pytest.mark.parametrize("catalogue", [CHOICES, WITH_FUSED])
def test_too_little_memory_names_what_would_do(catalogue: dict[str, Primitive]) -> None:
    output = Vec3(40, 40, 40)
    with pytest.raises(DoesNotFit) as refused:
        fastest_plan(NETWORK, output, machine(1000), catalogue, NO_OVERHEAD)
    error = refused.value
    assert error.patch == NETWORK.total_pooling
    assert error.layer in {layer.name for layer in (*NETWORK.layers, *pooled_convolutions(NETWORK))}
    plan = fastest_plan(NETWORK, output, machine(error.needed), catalogue, NO_OVERHEAD)
    assert plan.memory.total <= error.needed
    with pytest.raises(DoesNotFit):
        fastest_plan(NETWORK, output, machine(error.needed - 1), catalogue, NO_OVERHEAD)


@given(st.integers(1, 400), st.integers(1, 12))
def test_axis_sizes_are_the_smallest_for_their_number_of_patches(output: int, pool: int) -> None:
    sizes = axis_sizes(output, pool)
    assert sizes[0] >= output > sizes[0] - pool
    assert sizes[-1] == pool
    for size in sizes:
        assert size % pool == 0
        count = -(-output // size)
        assert size == pool or -(-output // (size - pool)) > count


@given(st.lists(st.integers(1, 10**5), min_size=1, unique=True))
def test_a_spread_of_sizes_leaves_none_far_from_one_kept(sizes: list[int]) -> None:
    sizes.sort(reverse=True)
    kept = spread(sizes)
    assert {sizes[0], sizes[-1]} <= set(kept) <= set(sizes)
    for size in sizes:
        assert any(size <= other < size * (1 + FINEST_STEP) for other in kept)


def test_sizes_near_a_patch_hold_it_and_the_ones_left_out_beside_it() -> None:
    output, pooling = Vec3(4000, 4000, 4000), Vec3(8, 4, 4)
    tried = set(patch_sizes(output, pooling, isotropic=False))
    assert len(tried) < len(axis_sizes(4000, 8)) * len(axis_sizes(4000, 4)) ** 2 / 2
    patch = Vec3(*(min(sizes, key=lambda s: abs(s - 160)) for sizes in zip(*tried, strict=True)))
    near = set(patch_sizes_near(patch, output, pooling))
    assert patch in near
    assert patch + Vec3(8, 0, 0) in near
    assert patch - Vec3(0, 4, 4) in near


def test_no_shape_is_faster_per_voxel_than_the_bound() -> None:
    """Tiles of 22 outputs, as in overlap-save, which few extents are a multiple of."""
    by_tiles = Tiled("tiled", convolved, flops=1.0)
    network = Network("one", 1, (CONV,))
    for extent in (22, 44, 66, 220):
        plan = fastest_plan(
            network, Vec3.of(extent), machine(10**9), fake_catalogue(by_tiles), NO_OVERHEAD
        )
        output, tiled = Vec3.of(extent), {"tiled": by_tiles}
        search = Search(network, output, machine(10**9), tiled, NO_OVERHEAD, BUILT_IN, "none")
        assert search.lower_bound(plan.patch) <= plan.seconds


def test_no_plan_is_faster_than_the_bound_with_fused_steps() -> None:
    """Where all is fused, where nothing is, and where one layer's bound is from each."""
    for flops in (2.0, 60.0, 90.0, 400.0):
        fused = Fake("fused", convolved_and_pooled, flops=flops)
        catalogue = fake_catalogue(*CONVOLUTIONS, fused)
        for memory in (60_000, 200_000, 10**9):
            for output in (Vec3(12, 20, 24), Vec3(40, 40, 40)):
                plan = fastest_plan(NETWORK, output, machine(memory), catalogue, NO_OVERHEAD)
                search = Search(
                    NETWORK, output, machine(memory), catalogue, NO_OVERHEAD, BUILT_IN, "none"
                )
                assert search.lower_bound(plan.patch) <= plan.seconds


def test_where_memory_is_short_a_fused_step_makes_room_for_larger_patches() -> None:
    """Their smaller borders save more than the first convolution's repetition costs."""
    network = Network(
        "wide",
        1,
        (
            Conv("conv1", 1, 40, Vec3(3, 3, 3), "relu"),
            Pool("pool1", Vec3(2, 2, 2)),
            Conv("conv2", 40, 40, Vec3(5, 5, 5), "relu"),
            Conv("conv3", 40, 40, Vec3(5, 5, 5), "relu"),
        ),
    )
    output = Vec3(96, 96, 96)
    apart = fake_catalogue(Multiplying("conv", convolved))
    both = apart | {"fused": Multiplying("fused", convolved_and_pooled)}
    allowed = machine(8 * 2**20)
    stored = fastest_plan(network, output, allowed, apart, NO_OVERHEAD)
    pooled = fastest_plan(network, output, allowed, both, NO_OVERHEAD)
    assert pooled.segments[0].steps[0].operation == PooledConv(*network.layers[:2])  # type: ignore[arg-type]
    assert pooled.memory.total <= 8 * 2**20
    assert pooled.patch.volume >= 4 * stored.patch.volume
    assert pooled.seconds < stored.seconds
    plenty = machine(2**34)
    assert fastest_plan(network, output, plenty, both, NO_OVERHEAD) == fastest_plan(
        network, output, plenty, apart, NO_OVERHEAD
    )


def test_a_thin_volume_is_not_padded_to_a_cube() -> None:
    plan = fastest_plan(NETWORK, Vec3(2, 120, 120), machine(10**7), CHOICES, NO_OVERHEAD)
    assert plan.patch.z == 2
    assert plan.patch.x > 20


def test_overhead_counts_against_the_limit() -> None:
    output = Vec3(12, 20, 24)
    alone = fastest_plan(NETWORK, output, machine(10**7), CHOICES, NO_OVERHEAD)
    overhead = Overhead(process=10**6, voxel_in=7, voxel_out=11)
    beside = fastest_plan(NETWORK, output, machine(10**7), CHOICES, overhead)
    assert beside.patch == alone.patch
    blocks = 7 * beside.input_patch.volume + 11 * beside.patch.volume
    assert beside.memory.blocks == blocks
    assert beside.memory.total == alone.memory.total + 10**6 + blocks


def test_wasted_work_counts_borders_and_overlap() -> None:
    one = Network("one", 1, (CONV,))
    plan = fastest_plan(one, Vec3(10, 10, 10), machine(10**9), fake_catalogue(), NO_OVERHEAD)
    assert plan.patch == (10, 10, 10)
    assert plan.wasted_work == pytest.approx(0)
    deep = fastest_plan(NETWORK, Vec3(12, 20, 24), machine(10**9), CHOICES, NO_OVERHEAD)
    assert 0 < deep.wasted_work < 1


def test_wasted_work_counts_a_convolution_repeated_for_every_offset_of_its_pool() -> None:
    pooled = Network("pooled", 1, (CONV, Pool("pool1", Vec3(2, 2, 2))))
    fused = {"fused": Fake("fused", convolved_and_pooled)}
    plan = fastest_plan(pooled, Vec3(10, 10, 10), machine(10**9), fused, NO_OVERHEAD)
    assert plan.patch == (10, 10, 10)
    assert plan.segments[0].shifts == 8
    assert plan.wasted_work == pytest.approx(7 / 8)
    assert "conv1+pool1" in plan_table(plan)


def test_a_fused_step_reads_its_stored_input_in_place() -> None:
    pooled = Network("pooled", 1, (CONV, Pool("pool1", Vec3(2, 2, 2))))
    fused = {"fused": Fake("fused", convolved_and_pooled)}
    plan = fastest_plan(pooled, Vec3(10, 10, 10), machine(10**9), fused, NO_OVERHEAD)
    stored, fragment = Shape5(1, 1, 13, 13, 13), Shape5(1, 2, 5, 5, 5)
    assert plan.memory.working == stored.nbytes + fragment.nbytes


class Preferring:
    """A model by which one primitive takes a second, and each other one two."""

    source = "a preference"

    def __init__(self, name: str) -> None:
        self.name = name

    def estimate(
        self, primitive: Primitive, operation: Operation, shape: Shape5, cost: Cost
    ) -> Estimate:
        assert cost == primitive.cost(operation, shape)
        return Estimate(1.0, 0.25) if primitive.name == self.name else Estimate(2.0, 0.5)


@pytest.mark.parametrize("name", [fake.name for fake in CONVOLUTIONS])
def test_the_model_that_is_given_decides(name: str) -> None:
    model: CostModel = Preferring(name)
    output = Vec3(12, 20, 24)
    plan = fastest_plan(NETWORK, output, machine(10**9), CHOICES, NO_OVERHEAD, model)
    steps = [step for segment in plan.segments for step in segment.steps]
    assert {step.primitive for step in steps if step.conv} == {name}
    assert {(step.seconds, step.error) for step in steps if step.conv} == {(1.0, 0.25)}
    assert plan.costs == "a preference"
    assert plan.patch == output  # all patches take the same, so the fewest are best


def test_a_plans_error_is_that_of_its_steps_by_their_time() -> None:
    plan = fastest_plan(
        NETWORK, Vec3(12, 20, 24), machine(10**9), CHOICES, NO_OVERHEAD, Preferring("medium")
    )
    times = [(n * s.seconds, s.error) for segment, n in plan.runs() for s in segment.steps]
    assert len({error for _, error in times}) == 2
    total = sum(seconds for seconds, _ in times)
    assert plan.error == pytest.approx(sum(s * error for s, error in times) / total)
    table = str(plan)
    assert table == plan_table(plan)
    assert f"voxels/s +- {plan.error:.0%} predicted" in table
    assert f"+- {plan.error:.0%} predicted (a preference)" in table
    assert {"25%", "50%"} <= set(table.split())
    default = fastest_plan(NETWORK, Vec3(12, 20, 24), machine(10**9), CHOICES, NO_OVERHEAD)
    assert default.costs == NOT_MEASURED
    assert default.error == pytest.approx(BUILT_IN_ERROR)


def test_the_best_plans_are_those_of_all_patches() -> None:
    output, catalogue = Vec3(12, 20, 24), WITH_FUSED
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
        best = fastest_plan(NETWORK, output, machine(memory), catalogue, NO_OVERHEAD)
        assert best.seconds == seconds[0]
