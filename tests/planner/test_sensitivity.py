"""Sensitivity of a plan: other limits, other patches, families of primitives, its steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paths import MACHINES, NETWORKS
from small_search import CATALOGUE, LIMIT, OUTPUT, small_search

import znni
from bench.unet_networks import UNETS
from planner.bare_steps import sample_steps
from planner.patch_sizes import axis_sizes
from planner.search import Search
from planner.sensitivity import (
    ANY,
    NEAR,
    by_memory,
    by_patch_size,
    cubes,
    edge,
    memory_for_half,
    near_cubes,
    steps,
    views,
)
from znni.core.memory_errors import DoesNotFit
from znni.core.shapes import Vec3
from znni.machine.machine_file import load_machine
from znni.network.layers import Conv, PackedLayer
from znni.primitives.catalogue import catalogue, families
from znni.primitives.gpu.packed.primitive import primitives as packed_primitives


@pytest.fixture(scope="module")
def search() -> Search:
    return small_search()


@pytest.mark.slow
def test_fast_plans_under_limits_from_the_least_that_holds_any(search: Search) -> None:
    plan = search.fastest()[0]
    found = by_memory(search, plan, 7)
    limits = [one.machine.host.memory for one in found]
    assert limits == sorted(set(limits))
    assert len(limits) == 7
    assert found[-1] == plan
    patches = list(near_cubes(search))
    for one, limit in zip(found[:-1], limits, strict=False):
        assert one.memory.total <= limit
        within = search.within(limit)
        fits = [of for patch in patches if (of := within.undivided().fastest_for(patch))]
        assert one.seconds == min(of.seconds for of in fits)
        assert one.seconds <= 1.25 * within.fastest()[0].seconds
    seconds = [one.seconds for one in found]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) > 3
    with pytest.raises(DoesNotFit):
        search.undivided().within(limits[0] - 1).fastest()


@pytest.mark.slow
def test_the_memory_for_half_of_the_best_speed(search: Search) -> None:
    least = search.smallest().memory.total
    memory = memory_for_half(search, least, "cpu")
    assert least < memory < 16 * least

    def seconds(limit: int) -> float:
        return search.within(limit).fastest()[0].seconds

    assert seconds(memory) <= 2.5 * seconds(16 * least)
    assert seconds(memory // 2) > 1.6 * seconds(16 * least)


@pytest.mark.slow
def test_the_memory_for_half_of_the_best_speed_is_that_of_the_limited_device() -> None:
    """The plans are on a GPU, and take little of the host and much of the GPU."""
    network, machine = NETWORKS / "boundaries.yaml", MACHINES / "rtx4090.yaml"
    search = znni.search(network, (512, 512, 512), machine=machine, device="gpu")
    best = search.fastest()[0]
    assert best.gpu_memory is not None
    assert best.gpu_memory.total > 1.5 * best.memory.total
    least = search.smallest().memory.total
    memory = memory_for_half(search, least, "cpu")
    assert least < memory < 1.2 * best.memory.total
    assert search.within(memory, "cpu").fastest()[0].seconds < 2.5 * best.seconds


@pytest.mark.slow
@pytest.mark.parametrize("sweeps", [True, False])
def test_a_block_over_a_whole_axis_may_take_the_least_memory(sweeps: bool) -> None:
    network, machine = UNETS["nnunet"](), MACHINES / "h100.yaml"
    search = znni.search(network, (64, 300, 300), machine=machine, device="cpu", border="same")
    search = replace(search, sweeps=sweeps)
    least = search.smallest()
    assert least.patch.z == 64 > search.network.granularity.z
    within = search.within(least.memory.total)
    assert within.fastest_for(search.network.granularity) is None
    assert within.fastest()[0].memory.total <= least.memory.total
    with pytest.raises(DoesNotFit) as refused:
        search.within(least.memory.total - 1).fastest()
    assert refused.value.needed == least.memory.total


def test_a_plan_is_kept_under_every_limit_that_holds_it() -> None:
    roomy = small_search(10**12)
    plan = roomy.fastest()[0]
    *_, last_but_one, last = by_memory(roomy, plan, 20)
    assert last_but_one.machine.host.memory < last.machine.host.memory
    assert last_but_one.segments == last.segments


def test_cubes_cover_the_output_in_whole_patches(search: Search) -> None:
    sizes = cubes(search, [1.0, 4.0, 5.0, 9.9, 20.0, 21.0, 70.0])
    assert sizes[0] == (2, 2, 2)
    assert sizes[-1] == (40, 40, 48)
    assert len(set(sizes)) == len(sizes)
    assert [edge(size) for size in sizes] == sorted(edge(size) for size in sizes)
    for size in sizes:
        for extent, whole in zip(size, OUTPUT, strict=True):
            assert extent in axis_sizes(whole, 2)
    thin = small_search(output=Vec3(2, 40, 40))
    assert cubes(thin, [10.0]) == [(2, 10, 10)]


def test_patches_near_a_cube_are_all_that_are() -> None:
    """The output's axes have the same extents to choose from."""
    same = small_search(output=Vec3(40, 40, 40))
    near, tried = set(near_cubes(same)), set(same.patches())
    assert {patch for patch in tried if max(patch) <= NEAR * min(patch)} <= near < tried
    assert not any(max(patch) > NEAR**2 * min(patch) for patch in near)
    thin = small_search(output=Vec3(2, 40, 40))
    assert {patch.z for patch in near_cubes(thin)} == {2}


def test_the_fastest_plan_of_each_patch_may_be_in_pieces(search: Search) -> None:
    patches = cubes(search, [4.0, 8.0, 20.0, 40.0])
    for limit in (20_000, 60_000, LIMIT):
        within = search.within(limit)
        alone = [of.seconds for patch in patches if (of := within.fastest_for(patch))]
        assert [of.seconds for of in by_patch_size(within, patches)] == alone
        assert alone


def test_only_convolutions_are_in_families() -> None:
    node = load_machine(MACHINES / "h200-node.yaml")
    packed = {it.name: it for it in packed_primitives(node.gpus[0])}
    primitives = {**catalogue(node), **packed}
    others = set.intersection(*families(primitives).values())
    assert {"max_pooling", "gpu_max_pooling_fragments", "concatenation"} <= others
    assert "gpu_packed_pooling" in others
    conv = Conv("conv", 8, 8, Vec3(3, 3, 3), "relu")
    strided = Conv("conv", 16, 8, Vec3(3, 3, 3), "relu", Vec3(2, 2, 2))
    packed_ones = (PackedLayer(it, reads=True, writes=True) for it in (conv, strided))
    for operation, features in zip((conv, *packed_ones), (8, 8, 16), strict=True):
        for step in sample_steps(operation, features):
            assert not any(primitives[it].out_shape(step.operation, step.shape_in) for it in others)


def test_packed_convolutions_are_direct() -> None:
    (gpu,) = load_machine(MACHINES / "h100.yaml").gpus
    found = families({it.name: it for it in packed_primitives(gpu)})
    assert list(found) == ["direct"]
    assert len(found["direct"]) == len(packed_primitives(gpu))


def test_a_family_has_its_own_primitives_and_all_pooling(search: Search) -> None:
    found = families(CATALOGUE)
    assert list(found) == ["tiled FFT", "lowered to matrix products", "direct"]
    plan = search.fastest()[0]
    seen = views(search, plan, found)
    assert seen.plan == plan
    assert seen.by_memory[-1] == plan
    assert list(seen.by_patch) == [ANY, *found]
    fastest = {one.patch: one.seconds for one in seen.by_patch[ANY]}
    for name, plans in seen.by_patch.items():
        assert len(plans) > 3
        edges = [edge(one.patch) for one in plans]
        assert edges == sorted(edges)
        for one in plans:
            assert one.memory.total <= LIMIT
            assert fastest[one.patch] <= one.seconds
            for step in one.steps:
                assert any(it in str(step.primitive) for it in found.get(name, CATALOGUE))


def test_steps_add_up_to_the_plans_time_and_peak(search: Search) -> None:
    for plan in search.fastest(5):
        shown = list(steps(plan))
        assert [view.step for view in shown] == list(plan.steps)
        assert sum(view.seconds for view in shown) == pytest.approx(plan.patch_seconds)
        highest = max(shown, key=lambda view: view.memory)
        assert highest.memory == plan.memory.total
        assert highest.step == plan.parts[0].working_peak()[1]
