"""The planner finds the optimum of its model, stays within memory, and says what does not fit."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from fakes import Fake, fake_catalogue, machine
from hypothesis import given
from hypothesis import strategies as st

from planner.exhaustive import Overhead, _Search, fastest_plan
from planner.layers import Options, Slot, fastest_within, least_memory
from planner.sizes import FINEST_STEP, axis_sizes, patch_sizes, patch_sizes_near, spread
from planner.split import splits
from znni.cost import Cost, Memory
from znni.errors import DoesNotFit
from znni.network import Conv, Layer, Network, Pool
from znni.plans import Segment, Step, held_beside, segment_runs
from znni.primitive import convolved
from znni.shapes import Shape5, Vec3

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

CHOICES = fake_catalogue(
    Fake("quick_but_large", convolved, flops=10.0, workspace=40_000),
    Fake("quick_but_resident", convolved, flops=12.0, resident=30_000),
    Fake("medium", convolved, flops=40.0, workspace=9_000, resident=2_000),
)


def step(seconds: float, resident: int, working: int) -> Step:
    cost = Cost(1.0, 1.0, Memory(resident, working), 1.0)
    return Step(CONV, "any", Shape5(1, 1, 3, 3, 3), Shape5(1, 2, 1, 1, 1), cost, seconds)


class Tiled(Fake):
    """Computes whole tiles of 22 voxels an axis only."""

    def cost(self, layer: Layer, shape: Shape5) -> Cost:
        out = convolved(layer, shape)
        assert out is not None
        computed = out.n * out.f * (out.size.ceil_div(22) * 22).volume
        return Cost(float(computed), 0.0, Memory(0, shape.nbytes + out.nbytes), 1.0)


@st.composite
def slots(draw: st.DrawFn) -> list[Slot]:
    numbers = st.integers(0, 6)
    made = []
    for _ in range(draw(st.integers(1, 4))):
        options = draw(st.lists(st.tuples(st.integers(1, 6), numbers, numbers), min_size=1))
        steps = sorted((step(float(s), r, w) for s, r, w in options), key=lambda s: s.seconds)
        made.append(Slot(tuple(steps), draw(st.integers(1, 3)), draw(numbers)))
    return made


def by_brute_force(choices: list[Slot], allowed: int) -> float:
    best = inf
    for steps in product(*(slot.options for slot in choices)):
        resident = sum(s.cost.memory.resident for s in steps)
        peak = max(
            slot.held + s.cost.memory.working for slot, s in zip(choices, steps, strict=True)
        )
        if resident + peak <= allowed:
            seconds = sum(slot.runs * s.seconds for slot, s in zip(choices, steps, strict=True))
            best = min(best, seconds)
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


def test_plan_is_the_optimum_over_patches_splits_and_primitives() -> None:
    output = Vec3(12, 20, 24)
    for memory in (60_000, 100_000, 200_000, 10**7):
        best = inf
        for patch in patch_sizes(output, NETWORK.total_pooling, isotropic=False):
            size = patch + NETWORK.field_of_view - 1
            patches = output.ceil_div(patch).volume
            for segments in splits(NETWORK, size):
                best = min(best, patches * fastest_of_split(segments, size, memory))
        if best == inf:
            with pytest.raises(DoesNotFit):
                fastest_plan(NETWORK, output, machine(memory), CHOICES, NO_OVERHEAD)
            continue
        plan = fastest_plan(NETWORK, output, machine(memory), CHOICES, NO_OVERHEAD)
        assert plan.seconds == pytest.approx(best)
        assert plan.memory.total <= memory


def fastest_of_split(segments: tuple[Segment, ...], size: Vec3, memory: int) -> float:
    """The fastest way to run given segments, every combination of primitives tried."""
    options = Options(CHOICES.values())
    runs = [n for segment, n in segment_runs(segments) for _ in segment.steps]
    held = held_beside(segments, Shape5.of(1, 1, size))
    slots = [Slot(options(s), n, beside) for (s, beside), n in zip(held, runs, strict=True)]
    return by_brute_force(slots, memory - 4 * NETWORK.parameters)


def test_too_little_memory_names_what_would_do() -> None:
    with pytest.raises(DoesNotFit) as refused:
        fastest_plan(NETWORK, Vec3(40, 40, 40), machine(1000), CHOICES, NO_OVERHEAD)
    error = refused.value
    assert error.patch == NETWORK.total_pooling
    assert error.layer in {layer.name for layer in NETWORK.layers}
    plan = fastest_plan(NETWORK, Vec3(40, 40, 40), machine(error.needed), CHOICES, NO_OVERHEAD)
    assert plan.memory.total <= error.needed
    with pytest.raises(DoesNotFit):
        fastest_plan(NETWORK, Vec3(40, 40, 40), machine(error.needed - 1), CHOICES, NO_OVERHEAD)


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
        search = _Search(network, Vec3.of(extent), machine(10**9), {"tiled": by_tiles}, NO_OVERHEAD)
        assert search.lower_bound(plan.patch) <= plan.seconds


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
