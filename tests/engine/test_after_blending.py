"""Blocks of windows on their way to being stored: heads applied once, labels, and masks."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_stages import host_blocks
from hypothesis import given, settings
from hypothesis import strategies as st
from window_networks import CLASSES

from planner.overhead import Overhead
from znni.core.shapes import Box, Vec3
from znni.engine.after_blending import LABEL_PIECE, Blended, clear_unwanted
from znni.engine.labels import Labels
from znni.engine.stages.label import LabelModel
from znni.engine.windows import WindowInputs
from znni.inference import api
from znni.inference.planning import search
from znni.inference.verify import verify
from znni.network.geometry import over, with_window
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import ConvWeights, random_weights
from znni.network.window import Window
from znni.plans.plan import Plan
from znni.plans.rewrites.deferred_head import with_deferred_head
from znni.plans.stored_values import Stored
from znni.primitives.cpu.common.linear_maps import PIECE, largest_maps, linear_maps
from znni.primitives.cpu.common.workers import workers
from znni.volumes.locate import open_volume

WINDOW = Window(Vec3(8, 8, 8), 0.25)
SIZE = Vec3(19, 21, 23)
OPTIONS: Any = {"device": "cpu", "costs": "built-in", "threads": 1}
BLOCK = Vec3(6, 12, 12)
OF_MAPS = Labels(tuple(range(9)))


def network(text: str = CLASSES) -> Network:
    return with_window(network_from_text(text, "classes.yaml"), WINDOW)


def volume() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(SIZE, np.float32)


def output(net: Network, patch: Vec3 = BLOCK, **options: Any) -> Any:
    """Return what a run gives, as an array."""
    maps = 1 if options.get("labels") else net.out_features
    out = np.full((maps, *SIZE), 77, np.uint8 if "labels" in options else np.float32)
    plan = search(net, SIZE, labels="labels" in options, **OPTIONS).fastest_for(patch)
    weights = random_weights(net, 3)
    api.infer(volume(), net, out, weights=weights, plan=plan, **OPTIONS, **options)
    return out


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_maps_as_linear_functions_of_others(data: st.DataObject) -> None:
    draw = data.draw
    features, maps = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    size = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 2 * PIECE + 3))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    whole = generator.standard_normal((features, size[0], size[1] + 1, size[2] + 2), np.float32)
    values = whole[:, :, 1:, 1:-1]
    weight = generator.standard_normal((maps, features), np.float32)
    bias = generator.standard_normal(maps, np.float32)
    exact = (
        np.einsum("mf,fzyx->mzyx", weight.astype(np.float64), values) + bias[:, None, None, None]
    )
    pool = workers(draw(st.integers(1, 2)))
    around = np.full((maps, size[0], size[1] + 1, size[2]), 77, np.float32)
    linear_maps(values, weight, bias, around[:, :, :-1], pool)
    np.testing.assert_allclose(around[:, :, :-1], exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    assert (around[:, :, -1] == 77).all()
    found = np.empty(size, np.int32)
    largest_maps(values, weight, bias, found, pool)
    np.testing.assert_array_equal(found, around[:, :, :-1].argmax(axis=0))


@pytest.mark.slow
def test_the_first_of_equal_maps_counts() -> None:
    values = np.ones((1, 1, 2, 5), np.float32)
    found = np.empty(values.shape[1:], np.int32)
    largest_maps(values, np.ones((3, 1), np.float32), np.float32([0, 1, 1]), found, workers(1))
    assert (found == 1).all()


def _with_zeros(array: Any, axis: int = 0) -> Any:
    return np.pad(array, [(0, 5 * (at == axis)) for at in range(array.ndim)])


def test_a_head_is_applied_after_blending() -> None:
    net = network()
    found = output(net)
    # Without fewer sums to gain, the head is computed in each window.
    alone = network(CLASSES.replace("features: 4", "features: 9"))
    weights = random_weights(net, 3)
    wide = {
        "conv1": ConvWeights(
            _with_zeros(weights["conv1"].weight), _with_zeros(weights["conv1"].bias)
        ),
        "instance_norm1": ConvWeights(*map(_with_zeros, weights["instance_norm1"].arrays.values())),
        "head": ConvWeights(_with_zeros(weights["head"].weight, axis=1), weights["head"].bias),
    }
    out = np.empty_like(found)
    api.infer(volume(), alone, out, weights=replace(weights, layers=wide), **OPTIONS)
    assert np.abs(out - found).max() < 1e-5 * np.abs(out).max()


def test_labels_and_bytes_do_not_depend_on_the_blocks(tmp_path: Path) -> None:
    net = network()
    values = output(net)
    np.testing.assert_array_equal(output(net, patch=Vec3(18, 6, 24)), values)
    labels = output(net, labels=True)
    np.testing.assert_array_equal(labels[0], values.argmax(axis=0))
    np.testing.assert_array_equal(output(net, patch=Vec3(18, 6, 24), labels=True), labels)
    plan = search(net, SIZE, **OPTIONS).fastest()[0]
    assert Plan.from_json(plan.to_json()) == plan
    source = tmp_path / "in.npy"
    np.save(source, volume())
    out = str(tmp_path / "out.zarr")
    api.infer(str(source), net, out, random_seed=3, labels=True, **OPTIONS)
    assert verify(out, voxels=20, seed=1).agrees


@pytest.fixture
def count_windows(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that tells how many windows were computed since it was called last."""
    compute, computed = WindowInputs.__call__, [0]

    def counted(self: WindowInputs, *given: Any) -> Any:
        computed[0] += 1
        return compute(self, *given)

    def count() -> int:
        found, computed[0] = computed[0], 0
        return found

    monkeypatch.setattr(WindowInputs, "__call__", counted)
    return count


@pytest.mark.parametrize("labels", [True, False])
def test_windows_that_a_mask_does_not_want(count_windows: Callable[[], int], labels: bool) -> None:
    net, options = network(), {"labels": True} if labels else {}
    patch = Vec3(24, 24, 24)  # one block
    whole = output(net, patch=patch, **options)
    assert count_windows() == 3 * 4 * 4
    mask = np.zeros(SIZE, np.uint8)
    mask[2:4, 1:20, 3] = 1
    masked = output(net, patch=patch, mask=mask, **options)
    np.testing.assert_array_equal(masked, np.where(mask, whole, 0))
    assert count_windows() == 1 * 4 * 1
    np.testing.assert_array_equal(output(net, mask=mask, **options), masked)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "uint16"])
def test_voxels_that_a_mask_does_not_want_are_0_whatever_they_would_be(dtype: str) -> None:
    values = np.full((2, 3, 4, 5), np.inf if dtype.startswith("float") else 7).astype(dtype)
    values[1] = 3
    expected, wanted = values.copy(), np.zeros((3, 4, 5), bool)
    wanted[1:, :, 2] = True
    expected[:, ~wanted] = 0
    clear_unwanted(values, wanted)
    np.testing.assert_array_equal(values, expected)


def test_windows_are_computed_once_along_x(count_windows: Callable[[], int]) -> None:
    net = network(CLASSES.replace("features: 9", "features: 3"))
    whole = output(net, patch=Vec3(24, 24, 24))
    assert count_windows() == 3 * 4 * 4
    np.testing.assert_array_equal(output(net, patch=Vec3(24, 24, 6)), whole)
    assert count_windows() == 3 * 4 * 4
    plan = search(net, SIZE, **OPTIONS).fastest_for(Vec3(24, 24, 6))
    assert plan is not None
    assert plan.windows * plan.patches == 3 * 4 * 4
    # Any other order or place of blocks gives the same bytes, by computing more of them.
    backwards = np.zeros_like(whole)
    for start in (12, 6, 0, 18, 7):
        roi = np.s_[3:19, 2:21, start : min(start + 6, 23)]
        part = np.zeros((3, 16, 19, roi[2].stop - start), np.float32)
        api.infer(
            volume(), net, part, weights=random_weights(net, 3), roi=roi,
            plan=search(net, SIZE, roi=roi, **OPTIONS).fastest_for(Vec3(18, 24, 6)), **OPTIONS,
        )  # fmt: skip
        backwards[:, *roi] = part
    np.testing.assert_array_equal(backwards[:, 3:, 2:], whole[:, 3:, 2:])


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [0.25, 0.7])
def test_interrupted_rows_go_on_to_the_same_bytes(tmp_path: Path, overlap: float) -> None:
    net = replace(network(), window=replace(WINDOW, overlap=overlap))
    patch, size = net.granularity * Vec3(3, 2, 1), Vec3(8, 13, 23)
    plan = search(net, size, **OPTIONS).fastest_for(patch)
    source = tmp_path / "in.npy"
    np.save(source, volume()[tuple(map(slice, size))])
    options: Any = {**OPTIONS, "random_seed": 3, "plan": plan}
    api.infer(str(source), net, str(tmp_path / "whole.zarr"), **options)
    calls = iter([False, True, False, False, True, True])

    def stop(_done: int, _total: int) -> None:
        if next(calls):
            raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            api.infer(str(source), net, str(tmp_path / "parts.zarr"), progress=stop, **options)
    api.infer(str(source), net, str(tmp_path / "parts.zarr"), **options)
    whole, parts = (
        open_volume(str(tmp_path / name)).read(Box(Vec3(0, 0, 0), size))
        for name in ("whole.zarr", "parts.zarr")
    )
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("labels", [OF_MAPS, Labels(threshold=0.5)])
def test_labels_take_the_memory_that_plans_count(head: bool, labels: Labels) -> None:
    size = Vec3(3, 60, 5000)
    values = np.zeros((4 if head else 9, *size), np.float32)
    weights = ConvWeights(np.ones((9, 4, 1, 1, 1), np.float32), np.zeros(9, np.float32))
    blended = Blended(values, weights if head else None, None, 1)
    blended.labels(labels)  # compiles
    tracemalloc.start()
    try:
        blended.labels(labels)
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    net = over(replace(network(), window=replace(WINDOW, volume=size)), WINDOW.size)
    maps = labels.features(9)
    alone = Overhead(0, (LabelModel(),), stored=Stored(label_maps=maps))
    counted = host_blocks(alone, with_deferred_head(net), size, "cpu")
    assert taken <= maps * size.volume + 16 * LABEL_PIECE
    assert counted >= 2 * maps * size.volume + taken


@pytest.mark.slow
def test_100_classes_fit_into_little_memory() -> None:
    hundred = network(CLASSES.replace("features: 9", "features: 100"))
    hundred = replace(hundred, window=Window(Vec3(32, 32, 32), 0.25))
    options = {**OPTIONS, "ram": "2GiB", "input_itemsize": 1}
    volumes = [
        search(hundred, (1024,) * 3, labels=labels, **options).fastest()[0].patch.volume
        for labels in (True, False)
    ]
    assert volumes[0] > 4 * volumes[1]  # even where fresh memory is slow, which favours less


@pytest.mark.slow
def test_the_search_finds_large_blocks_of_many_classes() -> None:
    hundred = network(CLASSES.replace("features: 9", "features: 100"))
    hundred = replace(hundred, window=Window(Vec3(32, 32, 32), 0.25))
    space = search(hundred, (300,) * 3, labels=True, ram="600MiB", **OPTIONS)
    every = (space.fastest_for(patch) for patch in space.patches())
    best = min(plan.seconds for plan in every if plan)
    assert space.fastest()[0].seconds <= best
