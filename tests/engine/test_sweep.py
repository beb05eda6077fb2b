"""Sweeps: blocks of a column go on from each other, and the output is that of single blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from fake_cupy import fake_gpu
from fakes import gpu, machine
from hypothesis import given
from hypothesis import strategies as st
from random_networks import chain, networks
from random_plans import CATALOGUE, DEVICES, any_plan, plan_of, random_volume, run_plan
from random_plans import NO_OVERHEAD as FREE
from stopped_runs import Counting

from bench.reference import sliding_output
from planner.cost_model import BUILT_IN
from planner.other_primitives import other_primitives
from planner.partition import cut_network
from planner.patch_sizes import thin_patches
from planner.search import GAIN_OF_SWEEPS, Search
from planner.segmentations import segmentations
from znni.core.errors import InvalidInput
from znni.core.processors import DeviceKind
from znni.core.shapes import AXES, Axis, Vec3, extent, resized
from znni.engine.checks import check_runnable
from znni.engine.tiles import Remaining, cover, make_job
from znni.network.network import Network
from znni.network.weights import Float32, random_weights
from znni.plans.plan import Plan
from znni.plans.swept import swept_for

POOLED = chain(("conv", 2), ("pool", 2), ("conv", 3), ("pool", 2), ("conv", 2))


@pytest.fixture(autouse=True)
def on_host() -> Iterator[None]:
    with fake_gpu():
        yield


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[Network, Float32, Plan]:
    network = draw(networks())
    pooling = network.total_pooling
    output = Vec3(*(draw(st.integers(1, 3 * extent + 4)) for extent in pooling))
    patch = pooling * Vec3(*(draw(st.integers(1, 2)) for _ in range(3)))
    volume = random_volume(network, output, draw(st.integers(0, 100)))
    device, axis = draw(st.sampled_from(DEVICES)), draw(st.sampled_from(AXES))
    plan = any_plan(draw, network.sweeping(axis), output, patch, device)
    return network, volume, plan


def first_plan(network: Network, output: Vec3, patch: Vec3, axis: Axis = "z") -> Plan:
    """The plan of a sweep whose segments are not divided."""
    made = network.sweeping(axis)
    swept = swept_for(made, patch, output)
    (partition,) = cut_network(made, made.shapes(patch), len(made.nodes), swept=swept).partitions
    undivided = next(segmentations(partition.nodes, partition.input_shape, swept=swept))
    return plan_of(undivided, made, output, patch)


def expected_of(network: Network, volume: Float32) -> Float32:
    scaled = volume * np.float32(network.scaling.scale) + np.float32(network.scaling.offset)
    return sliding_output(network, random_weights(network, 7), scaled).astype(np.float32)


@pytest.mark.slow
@given(sweeps())
def test_any_sweep_equals_single_windows(case: tuple[Network, Float32, Plan]) -> None:
    network, volume, plan = case
    made = run_plan(network, plan, volume)
    np.testing.assert_allclose(made, expected_of(network, volume), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@given(sweeps(), st.sampled_from(["reflect", "edge", "constant"]))
def test_the_padded_whole_is_swept_as_well(case: tuple[Network, Float32, Plan], pad: str) -> None:
    network, volume, plan = case
    before = (network.field_of_view - 1) // 2
    margins = [(0, 0), *zip(before, network.field_of_view - 1 - before, strict=True)]
    scaled = volume * np.float32(0.5) + np.float32(0.25)
    padded = np.pad(scaled, margins, mode=pad)  # type: ignore[call-overload]
    expected = sliding_output(network, random_weights(network, 7), padded)
    found = run_plan(network, plan, volume, border="same", pad=pad)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@given(sweeps(), st.integers(0, 6))
def test_a_killed_sweep_goes_on(case: tuple[Network, Float32, Plan], blocks: int) -> None:
    network, volume, plan = case
    job = Counting(network, plan, volume, CATALOGUE)
    written = job.run(blocks=blocks)
    rest = job.run(finished=written)
    voxels = sum(box.size.volume for box in (*written, *rest))
    assert voxels == job.job.output.volume, "no voxel is written twice"
    np.testing.assert_allclose(job.values, expected_of(network, volume), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@given(sweeps(), st.data())
def test_a_sweep_begins_again_behind_blocks_outside_the_mask(
    case: tuple[Network, Float32, Plan], data: st.DataObject
) -> None:
    network, volume, plan = case
    generator = np.random.default_rng(data.draw(st.integers(0, 9)))
    mask = (generator.random(volume.shape[1:]) < data.draw(st.sampled_from([0.01, 0.1]))).astype(
        np.float32
    )
    job = Counting(network, plan, volume, CATALOGUE)
    written = job.run(mask=mask)
    expected = expected_of(network, volume)
    for box in written:
        inside = mask[box.shifted(job.job.center).slices].any()
        wanted = expected[:, *box.slices] if inside else 0
        np.testing.assert_allclose(job.values[:, *box.slices], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", AXES)
def test_each_layer_of_a_column_runs_once_for_a_block_and_before_the_first_as_often_as_needed(
    axis: Axis,
) -> None:
    patch = Vec3(8, 8, 8)
    output = resized(patch, axis, 32)
    plan = first_plan(POOLED, output, patch, axis)
    job = Counting(POOLED, plan, random_volume(POOLED, output, 0), CATALOGUE)
    job.run()
    behind = {
        step.gives: swept.behind
        for swept, step in zip(plan.parts[0].swept_steps, plan.steps, strict=True)
    }
    assert behind == {"l0": 1 + 4 + 2 + 4, "l1": 4 + 2 + 4, "l2": 2 + 4, "l3": 4, "l4": 0}
    assert job.calls == {"l0": 4 + 2, "l1": 4 + 2, "l2": 4 + 1, "l3": 4 + 1, "l4": 4}
    assert [n for _, n in plan.parts[0].step_runs()] == [1.5, 1.5, 1.25, 1.25, 1]


@pytest.mark.parametrize("axis", AXES)
def test_what_a_sweep_keeps_is_the_context_of_each_layer(axis: Axis) -> None:
    plan = first_plan(POOLED, resized(Vec3(8, 8, 8), axis, 32), Vec3(8, 8, 8), axis)
    part = plan.parts[0]
    assert [kept.planes for kept in part.inputs_kept] == [1, 1, 2, 1, 1]
    assert part.inputs_kept[0].shape is None, "the input is read again"
    kept = [swept.kept for swept in part.swept_steps]
    assert kept.pop() is None, "nothing follows the last step"
    assert [planes.shape.n for planes in kept if planes] == [1, 8, 8, 64]
    assert part.kept_bytes == sum(planes.nbytes for planes in kept if planes)
    assert (
        plan.wasted_work
        < Search(POOLED, plan.output, plan.machine, CATALOGUE, FREE)
        .fastest_for(plan.patch)
        .wasted_work
    )  # type: ignore[union-attr]


@pytest.mark.parametrize("axis", AXES)
def test_a_killed_column_is_left_as_three_boxes(axis: Axis) -> None:
    output, patch = resized(Vec3.of(30), axis, 40), resized(Vec3.of(10), axis, 8)
    job = make_job(POOLED, output + POOLED.field_of_view - 1, "valid", None, None)
    remaining = Remaining(job)
    tiles = list(remaining.tiles(patch, swept=axis))
    assert [tile.written.start for tile in tiles[:6]] == [
        *(resized(Vec3.of(0), axis, start) for start in range(0, 40, 8)),
        resized(Vec3.of(0), "y" if axis == "x" else "x", 10),
    ]
    for tile in tiles[:22]:
        remaining.take_off(tile.written)
    rest = list(remaining.tiles(patch, swept=axis))
    assert [tile.written for tile in rest] == [tile.written for tile in tiles[22:]]
    written = [(tile.written, True) for tile in tiles[:22]]
    assert len(Remaining(job, written, swept=axis)._boxes) == 3


@given(
    st.tuples(*[st.integers(1, 30)] * 3),
    st.tuples(*[st.integers(1, 12)] * 3),
    st.sampled_from(AXES),
)
def test_tiles_of_a_sweep_partition_the_output(
    output: tuple[int, int, int], patch: tuple[int, int, int], axis: Axis
) -> None:
    count, along = np.zeros(output, int), AXES.index(axis)
    for tile in cover(Vec3(*output), Vec3(*patch), swept=axis):
        count[tile.written.slices] += 1
        assert tile.written.within(tile.computed)
        assert tile.computed.start[along] % patch[along] == 0, "each goes on from the one before"
    assert (count == 1).all()


@pytest.mark.parametrize("axis", AXES)
def test_files_of_plans_say_that_they_sweep(axis: Axis) -> None:
    plan = first_plan(POOLED, resized(Vec3(8, 8, 8), axis, 32), Vec3(8, 8, 8), axis)
    again = Plan.from_json(plan.to_json())
    assert again.network.swept_along == axis
    assert again.parts == plan.parts
    assert f"sweep along {axis}" in str(plan)
    assert ("sweep_axis" in plan.to_json()) == (axis != "z"), "older versions swept along z alone"
    check_runnable(again, CATALOGUE)
    assert len(list(other_primitives(again, CATALOGUE, BUILT_IN))) == len(again.steps)
    with pytest.raises(InvalidInput, match="takes"):
        check_runnable(replace(plan, network=plan.network.sweeping(None)), CATALOGUE)


def test_a_search_finds_sweeps_on_a_gpu_only_if_it_may_and_the_job_is_long() -> None:
    there = replace(machine(), gpus=(replace(gpu(), memory=400_000),))
    search = Search(POOLED, Vec3(256, 24, 24), there, CATALOGUE, FREE, device="gpu")
    able = replace(search, sweeps=True)
    assert not able.fastest()[0].is_swept, "the job is short"
    with mock.patch.multiple("planner.search", LONG_JOB=0, PRICES_PER_SECOND=1e9):
        block, swept = search.fastest()[0], able.fastest()[0]
        on_host = replace(able, device="cpu")
        several = replace(able, overhead=replace(FREE, workers=2))
        assert not on_host.fastest()[0].is_swept
        shared = several.fastest()[0]
    assert not block.is_swept
    assert swept.is_swept
    assert shared.is_swept, "each GPU has columns of its own"
    assert GAIN_OF_SWEEPS * swept.seconds < block.seconds
    assert swept.wasted_work < block.wasted_work
    assert swept.gpu_memory
    assert swept.gpu_memory.total <= 400_000
    with mock.patch.multiple("planner.search", LONG_JOB=0, GAIN_OF_SWEEPS=9):
        assert not able.fastest()[0].is_swept, "it gains too little"


@pytest.mark.slow_cases
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("device", DEVICES)
def test_a_volume_is_swept_along_its_longest_axis(axis: Axis, device: DeviceKind) -> None:
    """Layers keep fewer bytes than along the others, and a column has more blocks."""
    output = resized(Vec3.of(24), axis, 256)
    there = replace(machine(400_000), gpus=(replace(gpu(), memory=400_000),))
    search = Search(POOLED, output, there, CATALOGUE, FREE, device=device, sweeps=True)
    if device == "cpu":
        found = search.sweeping().fastest()[0]
    else:
        with mock.patch.multiple("planner.search", LONG_JOB=0, PRICES_PER_SECOND=1e9):
            found = search.fastest()[0]
    assert found.network.swept_along == axis
    along = [search.sweeping(other).fastest()[0].seconds for other in AXES]
    assert found.seconds <= min(along), "no axis is faster"


@pytest.mark.parametrize("axis", AXES)
def test_patches_of_a_sweep_are_thin_and_as_wide_as_a_thin_volume_lets_them(axis: Axis) -> None:
    thin: Axis = "x" if axis == "z" else "z"
    output = resized(Vec3.of(512), thin, 32)
    patches = list(thin_patches(output, Vec3.of(4), axis))
    assert all(extent(it, axis) == min(it) for it in patches)
    widest = resized(resized(output, axis, 32), thin, 32)
    assert widest in patches, "one axis is whole, so the other may be longer"


def test_only_axes_that_differ_are_searched() -> None:
    able = Search(POOLED, Vec3(8, 64, 64), machine(), CATALOGUE, FREE)
    assert able.sweeping().axes == ("y", "z")
    flat = Search(chain(("conv", (1, 3, 3))), Vec3(8, 64, 96), machine(), CATALOGUE, FREE)
    assert flat.sweeping().axes == ("x", "y")
    assert [it.network.swept_along for it in flat.sweeping().by_axis] == ["x", "y"]
