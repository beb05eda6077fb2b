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
from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.inference import api
from znni.inference.planning import search
from znni.inference.verify import verify
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.network.window import Window

OPTIONS: Any = {"device": "cpu", "costs": "built-in", "threads": 1}


def resampled_to(
    net: Network, size: Vec3, target: Vec3, orders: tuple[int, int, int] = (1, 1, 1)
) -> Network:
    assert net.window is not None
    resampling = Resampling(size, target, orders)
    return replace(net, window=replace(net.window, resampled=resampling))


def expected(
    values: NDArray[np.float64], target: Vec3, orders: tuple[int, int, int]
) -> NDArray[np.float64]:
    """Return maps (f, z, y, x) resampled in float64 by SciPy, axis by axis."""
    for axis, (extent, order) in enumerate(zip(target, orders, strict=True), start=1):
        at = [np.arange(size, dtype=float) for size in values.shape]
        at[axis] = (np.arange(extent) + 0.5) * (values.shape[axis] / extent) - 0.5
        if order == 0:
            at[axis] = np.floor(at[axis] + 0.5)
        grid = np.meshgrid(*at, indexing="ij")
        values = map_coordinates(values, grid, order=1, mode="nearest")
    return values


@settings(max_examples=25, deadline=None)
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
