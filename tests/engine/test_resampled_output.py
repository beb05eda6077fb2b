"""Resampled output: blended windows are resampled to other voxels, block by block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from window_networks import blended, network, volume

from znni.core.errors import InvalidInput
from znni.core.option_types import BlendedActivation
from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.engine.labels import labels_for
from znni.engine.tiles import ZERO
from znni.inference import api
from znni.inference.planning import search
from znni.inference.verify import verify
from znni.network.geometry import with_window
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.plans.rewrites.deferred_head import with_deferred_head
from znni.primitives.reference import activation
from znni.volumes.locate import open_volume

STARTS = (-0.7, 0.0, 1.2)  # of voxels by steps

OPTIONS: Any = {"device": "cpu", "costs": "built-in", "threads": 1}


def resampled_to(
    net: Network, size: Vec3, target: Vec3, orders: tuple[int, int, int] = (1, 1, 1)
) -> Network:
    assert net.window is not None
    resampling = Resampling(size, target, orders)
    return replace(net, window=replace(net.window, resampled=resampling))


def expected(
    values: NDArray[np.float64],
    target: Vec3,
    orders: tuple[int, int, int],
    steps: tuple[float, float, float] | None = None,
) -> NDArray[np.float64]:
    """Return maps (f, z, y, x) resampled in float64 by SciPy, axis by axis."""
    for axis, (extent, order) in enumerate(zip(target, orders, strict=True), start=1):
        at = [np.arange(size, dtype=float) for size in values.shape]
        at[axis] = (np.arange(extent) + 0.5) * (values.shape[axis] / extent) - 0.5
        if steps:
            at[axis] = STARTS[axis - 1] + np.arange(extent) * steps[axis - 1]
        if order == 0:
            at[axis] = np.floor(at[axis] + 0.5)
        grid = np.meshgrid(*at, indexing="ij")
        values = map_coordinates(values, grid, order=1, mode="nearest")
    return values


@pytest.mark.slow
@settings(max_examples=15)
@given(st.data())
def test_blocks_give_the_resampled_sums_over_all_windows(data: st.DataObject) -> None:
    draw = data.draw
    even = st.integers(1, 3).map(lambda half: 2 * half)
    window = Window(
        Vec3(draw(even), draw(even), draw(even)),
        draw(st.sampled_from([0.0, 0.5])),
        draw(st.sampled_from(["gaussian", "constant"])),
        draw(st.sampled_from(["", "x"])),
        draw(st.sampled_from(["monai", "nnunet"])),
    )
    size = Vec3(*(draw(st.integers(1, min(12, 3 * extent))) for extent in window.size))
    target = Vec3(*(draw(st.integers(1, 20)) for _ in "zyx"))
    orders = (draw(st.sampled_from([0, 1])), 1, 1)
    net = resampled_to(network(window), size, target, orders)
    x = volume(size)
    wanted = expected(blended(network(window), x), target, orders)
    roi = None
    if draw(st.booleans()):
        starts = [draw(st.integers(0, extent - 1)) for extent in target]
        stops = [draw(st.integers(a + 1, e)) for a, e in zip(starts, target, strict=True)]
        roi = Box(Vec3(*starts), Vec3(*stops))
        wanted = wanted[:, *roi.slices]
    patch = Vec3(*(draw(st.integers(1, 12)) for _ in "zyx"))
    found = search(net, size, roi=roi, **OPTIONS).fastest_for(patch)
    assert found is not None
    out = np.full(wanted.shape, np.nan, np.float32)
    api.infer(x, net, out, weights=random_weights(net, 7), plan=found, roi=roi, **OPTIONS)
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(out, wanted, rtol=0, atol=3e-5 * scale)


@settings(max_examples=200)
@given(st.data())
def test_blocks_have_as_many_windows_as_plans_count(data: st.DataObject) -> None:
    draw = data.draw
    extents = st.tuples(*(st.integers(1, 24) for _ in "zyx")).map(lambda three: Vec3(*three))
    size, target, patch = draw(extents), draw(extents), draw(extents)
    window = Window(Vec3(4, 5, 6), draw(st.sampled_from([0.0, 0.3, 0.5])), in_order=False)
    window = replace(window, resampled=Resampling(size, target, (1, 0, 1)), volume=size)
    boxes = [box.intersection(Box(ZERO, target)) for box in Box(ZERO, target).cut(patch)]
    blended = [window.blended(box) for box in boxes if box]
    counts = [len(list(window.touching(box))) for box in blended]
    assert window.a_block(patch) == pytest.approx(np.mean(counts))
    assert all(box.size.within(window.blended_extents(patch)) for box in blended)
    around = [window.around(box).size for box in blended]
    assert all(each.within(window.most_around(patch)) for each in around)


@pytest.mark.slow
def test_labels_are_those_of_the_largest_resampled_map() -> None:
    size, target = Vec3(20, 23, 25), Vec3(31, 17, 40)
    net = resampled_to(network(Window(Vec3(8, 8, 8), like="nnunet")), size, target)
    x, weights = volume(size), random_weights(net, 7)
    maps, labels = np.zeros((3, *target), np.float32), np.zeros((1, *target), np.uint8)
    api.infer(x, net, maps, weights=weights, **OPTIONS)
    for patch in (Vec3(7, 9, 11), target):
        plan = search(net, size, labels=True, **OPTIONS).fastest_for(patch)
        api.infer(x, net, labels, weights=weights, plan=plan, labels=True, **OPTIONS)
        np.testing.assert_array_equal(labels[0], maps.argmax(axis=0))


def activated(maps: NDArray[np.float64], kind: BlendedActivation) -> NDArray[np.float64]:
    return activation(maps[None], kind)[0]


@pytest.mark.slow_cases
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("steps", [None, (0.7, 1.3, 0.55)], ids=["extent", "first"])
def test_an_activation_comes_between_blending_and_resampling(
    kind: BlendedActivation, steps: tuple[float, float, float] | None, tmp_path: Path
) -> None:
    size, target = Vec3(12, 16, 20), Vec3(16, 12, 35)
    window = Window(Vec3(8, 8, 8), activation=kind)
    net = replace(network(window), window=replace(window, resampled=None))
    plain = blended(network(Window(Vec3(8, 8, 8))), volume(size))
    x, maps = volume(size), np.zeros((3, *size), np.float32)
    api.infer(x, net, maps, random_seed=7, **OPTIONS)
    np.testing.assert_allclose(maps, activated(plain, kind), rtol=0, atol=1e-5)
    resampling = Resampling(size, target, (1, 1, 1), steps=steps, starts=STARTS)
    net = replace(net, window=replace(window, resampled=resampling))
    np.save(tmp_path / "in.npy", x)
    out = tmp_path / "out.zarr"
    api.infer(tmp_path / "in.npy", net, out, random_seed=7, **OPTIONS)
    wanted = expected(activated(plain, kind), target, (1, 1, 1), steps)
    found = open_volume(out).read(Box(ZERO, target))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    assert verify(out, voxels=40).agrees


def test_a_last_layer_is_not_apart_if_its_maps_are_activated() -> None:
    net = network_from_text(HEADED, "headed.yaml")
    plain = with_window(net, Window(Vec3(8, 8, 8)))
    assert with_deferred_head(plain).head is not None
    softmax = with_window(net, Window(Vec3(8, 8, 8), activation="softmax"))
    assert with_deferred_head(softmax) == softmax


def test_a_run_is_verified_and_lies_are_found(tmp_path: Path) -> None:
    size, target = Vec3(12, 16, 20), Vec3(18, 11, 31)
    net = resampled_to(network(Window(Vec3(8, 8, 8))), size, target)
    np.save(tmp_path / "in.npy", volume(size))
    out = tmp_path / "out.zarr"
    api.infer(tmp_path / "in.npy", net, out, random_seed=3, **OPTIONS)
    assert verify(out, voxels=40).agrees


def test_a_volume_of_other_extents_is_an_error() -> None:
    net = resampled_to(network(Window(Vec3(8, 8, 8))), Vec3(8, 8, 8), Vec3(9, 9, 9))
    with pytest.raises(InvalidInput, match="give a volume of 8x8x8 voxels"):
        api.infer(
            volume(Vec3(8, 8, 9)), net, np.zeros((3, 9, 9, 9), np.float32), random_seed=0, **OPTIONS
        )


HEADED = """\
name: headed
in_features: 2
layers:
  - conv: {features: 4, kernel: 3, padding: same}
  - instance_norm: {activation: leaky_relu}
  - conv: {features: 9, kernel: 1}
"""


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["identity", "softmax", "sigmoid"])
@pytest.mark.parametrize("headed", [False, True], ids=["plain", "headed"])
@pytest.mark.parametrize("regions", [False, True], ids=["labels", "regions"])
@pytest.mark.parametrize("patch", [Vec3(9, 11, 12), Vec3(31, 17, 40)], ids=str)
def test_a_gpu_gives_the_labels_of_the_host(
    patch: Vec3, regions: bool, headed: bool, kind: BlendedActivation
) -> None:
    size, target = Vec3(20, 23, 25), Vec3(31, 17, 40)
    window = Window(Vec3(8, 8, 8), like="nnunet", activation=kind)
    net = with_window(network_from_text(HEADED, "headed.yaml"), window)
    net = resampled_to(net if headed else network(window), size, target)
    net = replace(net, has_regions=regions)
    x, weights, options = volume(size), random_weights(net, 7), {**OPTIONS, "device": "gpu"}
    maps = np.zeros((net.out_features, *target), np.float32)
    api.infer(x, net, maps, weights=weights, **OPTIONS)
    labels = np.zeros((1, *target), np.uint8)
    plan = search(net, size, labels=True, **options).fastest_for(patch)
    assert plan is not None
    api.infer(x, net, labels, weights=weights, plan=plan, labels=True, **options)
    rule = labels_for(net, True, None)
    assert rule is not None
    wanted = rule.apply(maps)
    apart = rule.misfit(labels[0].reshape(-1, 1), maps.reshape(len(maps), -1).T.astype(float))
    assert apart.max() <= 1e-4 * np.abs(maps).max()
    assert (labels == wanted).mean() > 0.999
    on_gpu = np.zeros_like(maps)
    api.infer(x, net, on_gpu, weights=weights, **options)
    np.testing.assert_allclose(on_gpu, maps, rtol=0, atol=1e-4 * np.abs(maps).max())


@pytest.mark.gpu
def test_a_gpu_takes_the_memory_that_is_declared() -> None:
    size, target = Vec3(96, 96, 96), Vec3(190, 150, 210)
    window = Window(Vec3(64, 64, 64), like="nnunet")
    net = with_window(network_from_text(HEADED, "headed.yaml"), window)
    net = resampled_to(net, size, target)
    labels = np.zeros((1, *target), np.uint8)
    report = api.infer(
        volume(size), net, labels, random_seed=1, labels=True, **{**OPTIONS, "device": "gpu"}
    )
    assert report.plan.gpu_memory is not None
    assert report.gpu_peak_memory <= report.plan.gpu_memory.total


def test_regions_get_the_label_of_the_last_one() -> None:
    size, target = Vec3(12, 16, 20), Vec3(18, 11, 31)
    net = resampled_to(network(Window(Vec3(8, 8, 8))), size, target)
    net = replace(net, labels=(("a", 3), ("b", 1), ("c", 2)), has_regions=True)
    x, weights = volume(size), random_weights(net, 7)
    maps, labels = np.zeros((3, *target), np.float32), np.zeros((1, *target), np.uint8)
    api.infer(x, net, maps, weights=weights, **OPTIONS)
    api.infer(x, net, labels, weights=weights, labels=True, **OPTIONS)
    expected = np.select([maps[2] > 0, maps[1] > 0, maps[0] > 0], [2, 1, 3], 0)
    assert len(np.unique(expected)) > 2
    np.testing.assert_array_equal(labels[0], expected)
