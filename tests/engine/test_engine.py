"""Tiled equals whole: any plan gives, at every voxel, the network's value there."""

from __future__ import annotations

import mmap
from unittest import mock

import numpy as np
import pytest
from fakes import fake_catalogue, machine
from hypothesis import given
from hypothesis import strategies as st
from random_networks import chain, networks
from random_plans import (
    CATALOGUE,
    NO_OVERHEAD,
    SEPARATE,
    any_plan,
    assert_dense,
    plan_of,
    random_volume,
)
from random_plans import run_plan as run

from bench.reference import sliding_output
from planner.search import Search
from planner.segmentations import segmentations
from znni.core.errors import InvalidInput
from znni.core.memory_errors import DoesNotFit
from znni.core.shapes import Box, Shape5, Vec3
from znni.engine.checks import check_runnable
from znni.engine.reading import read_input
from znni.engine.stages.convert import convert
from znni.engine.tiles import cover, make_job
from znni.machine import arena
from znni.network.geometry import input_box
from znni.network.input_scaling import InputScaling
from znni.network.network import Network
from znni.network.weights import Float32, random_weights
from znni.plans.band import BUILT_IN_ERROR
from znni.plans.plan import Plan
from znni.plans.primitive import on_device
from znni.volumes.array import ArrayVolume

ON_HOST = on_device(CATALOGUE, "cpu")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Network, Float32, Vec3, Plan]:
    network = draw(networks())
    output = Vec3(*draw(st.tuples(*[st.integers(1, 5)] * 3)))
    pooling = network.total_pooling
    patch = Vec3(*draw(st.tuples(*[st.integers(1, 2)] * 3))) * pooling
    volume = random_volume(network, output, draw(st.integers(0, 99)))
    return network, volume, output, any_plan(draw, network, output, patch, "cpu")


@pytest.mark.slow
@given(cases())
def test_any_plan_equals_single_windows(case: tuple[Network, Float32, Vec3, Plan]) -> None:
    network, volume, _, plan = case
    scaled = volume * np.float32(0.5) + np.float32(0.25)
    expected = sliding_output(network, random_weights(network, 7), scaled)
    np.testing.assert_allclose(run(network, plan, volume), expected, rtol=1e-4, atol=1e-5)


@given(cases())
def test_every_patch_finds_room_in_what_the_plan_takes_beside_its_input(
    case: tuple[Network, Float32, Vec3, Plan],
) -> None:
    network, volume, _, plan = case
    with (
        mock.patch.object(arena, "SMALL", 1),
        mock.patch.object(arena, "map_pages", wraps=arena.map_pages) as mapped,
    ):
        run(network, plan, volume)
    (capacity,) = (call.args[0] for call in mapped.call_args_list)  # the arena, and no more
    beside_input = plan.memory.working - plan.input_shape.nbytes
    assert capacity <= beside_input + 2 * mmap.PAGESIZE


@given(cases(), st.sampled_from(["reflect", "edge", "constant"]), st.data())
def test_same_border_and_roi_are_crops_of_the_padded_whole(
    case: tuple[Network, Float32, Vec3, Plan], pad: str, data: st.DataObject
) -> None:
    network, volume, _, plan = case
    size = Vec3(*volume.shape[1:])
    before = (network.field_of_view - 1) // 2
    after = network.field_of_view - 1 - before
    start = Vec3(*(data.draw(st.integers(0, extent - 1)) for extent in size))
    roi = Box(start, (start + 3).minimum(size))
    scaled = volume * np.float32(0.5) + np.float32(0.25)
    margins = [(0, 0), *zip(before, after, strict=True)]
    padded = np.pad(scaled, margins, mode=pad)  # type: ignore[call-overload]
    seen = Box(roi.start, roi.stop + network.field_of_view - 1)
    expected = sliding_output(network, random_weights(network, 7), padded[:, *seen.slices])
    found = run(network, plan, volume, border="same", pad=pad, roi=roi)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@given(st.tuples(*[st.integers(1, 30)] * 3), st.tuples(*[st.integers(1, 12)] * 3))
def test_tiles_partition_the_output(
    output: tuple[int, int, int], patch: tuple[int, int, int]
) -> None:
    count = np.zeros(output, int)
    for tile in cover(Vec3(*output), Vec3(*patch)):
        count[tile.written.slices] += 1
        assert tile.written.within(tile.computed)
        assert tile.computed.size == patch
    assert (count == 1).all()


NESTING = chain(("conv", 2), ("pool", 2), ("conv", 2), ("pool", (1, 3, 2)), ("conv", 2))


def test_a_fixed_example_of_three_nested_segments() -> None:
    patch = NESTING.total_pooling
    given = Shape5.of(1, 1, patch + NESTING.field_of_view - 1)
    divisions = segmentations(NESTING.nodes, given)
    nested = next(segments for segments in divisions if len(segments) == 3)
    assert_dense(NESTING, plan_of(nested, NESTING, patch * 2, patch))


def test_where_memory_is_short_what_comes_before_a_pool_is_computed_again() -> None:
    output = NESTING.total_pooling * 2
    with pytest.raises(DoesNotFit) as refused:
        Search(NESTING, output, machine(memory=1), SEPARATE, NO_OVERHEAD).fastest()[0]
    tight = machine(memory=refused.value.needed)
    plan = Search(NESTING, output, tight, SEPARATE, NO_OVERHEAD).fastest()[0]
    assert plan.memory.total <= refused.value.needed
    assert plan.segments[0].steps[0].conv
    assert plan.segments[0].shifts > 1
    assert_dense(NESTING, plan)


def test_an_error_while_reading_stops_the_run() -> None:
    network = chain(("conv", 2))
    plan = Search(network, Vec3(8, 8, 8), machine(), SEPARATE, NO_OVERHEAD).fastest()[0]
    volume = np.ones((1, 9, 9, 9), np.float32)
    volume[0, 4, 5, 6] = np.nan
    with pytest.raises(InvalidInput, match="z=4, y=5, x=6"):
        run(network, plan, volume)


def test_a_volume_with_its_axes_in_another_order_reaches_the_network_in_rows() -> None:
    network = chain(("conv", 3))
    volume = np.asfortranarray(np.random.default_rng(0).random((1, 5, 6, 7), np.float32))
    job = make_job(network, Vec3(5, 6, 7), "valid", "reflect", None)
    for tile in cover(job.output, Vec3(3, 2, 5)):
        seen = job.seen(tile, input_box(network, tile.computed.size))
        box = read_input(ArrayVolume(volume), job, seen, InputScaling())
        assert box.flags.c_contiguous


def test_plan_json_round_trip_and_rejection() -> None:
    network = chain(("conv", 2), ("pool", 2), ("conv", 2))
    plan = Search(network, Vec3(8, 8, 8), machine(), fake_catalogue(), NO_OVERHEAD).fastest()[0]
    assert Plan.from_json(plan.to_json()) == plan
    for broken in ("", "{}", "[1]", plan.to_json().replace('"l2"', '"lx"', 1)):
        with pytest.raises(InvalidInput, match="not a plan"):
            Plan.from_json(broken)
    predicted = f'"error": {BUILT_IN_ERROR}'
    assert predicted in plan.to_json()
    for error in ("-0.1", "NaN", "null"):
        with pytest.raises(InvalidInput, match="not a plan"):
            Plan.from_json(plan.to_json().replace(predicted, f'"error": {error}'))
    with pytest.raises(InvalidInput, match=r"missing at .*steps\.0\.operation; plan again"):
        Plan.from_json(plan.to_json().replace('"operation"', '"layer"'))  # an earlier version's


def test_a_plan_of_unknown_or_wrong_steps_is_refused() -> None:
    network = chain(("conv", 2), ("pool", 2), ("conv", 2))
    plan = Search(network, Vec3(8, 8, 8), machine(), fake_catalogue(), NO_OVERHEAD).fastest()[0]
    for old, new, message in (
        ('"primitive": "conv"', '"primitive": "nonesuch"', "nonesuch"),
        ('"sub_batch": 1', '"sub_batch": 3', "takes 3 of 1 item at"),
        ('"primitive": "fragments"', '"primitive": "pool"', "with pool"),
    ):
        changed = Plan.from_json(plan.to_json().replace(old, new))
        with pytest.raises(InvalidInput, match=message):
            check_runnable(changed, fake_catalogue())


def test_stored_types() -> None:
    values = np.array([-0.5, 0.0, 0.5, 1.0, 2.0], np.float32)
    assert convert(values, "uint8").tolist() == [0, 0, 128, 255, 255]
    assert convert(values, "float16").dtype == np.float16
    assert convert(values, "float32") is values
