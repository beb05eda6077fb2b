"""Volumes' statistics, and runs whose input is normalized by them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

import znni
from znni.core.errors import InvalidInput, UnusableValues
from znni.core.memory_errors import DoesNotFit
from znni.core.shapes import Box, Vec3
from znni.engine import statistics
from znni.engine.statistics import normalized
from znni.network.geometry import with_window
from znni.network.input_scaling import Fixed, InputScaling, Normalization, Percentiles, ZScore
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.network_file import load_network, network_from_text
from znni.network.window import Window
from znni.plans.plan import Plan
from znni.volumes.array import ArrayVolume
from znni.volumes.locate import open_volume

NET = """
name: net
in_features: {maps}
input: {input}
layers:
  - conv: {{features: 2, kernel: 3, activation: identity}}
"""

# The layer is small, and how it is computed does not matter here.
pytestmark = pytest.mark.usefixtures("fake_primitives")

TYPES = ("uint8", "int8", "uint16", "int16", "float16", "float32", "int32", "float64")


def _network(tmp_path: Path, entry: str, maps: int = 1) -> Network:
    path = tmp_path / "net.yaml"
    path.write_text(NET.format(maps=maps, input=entry))
    return load_network(path)


def _by(rules: tuple[Normalization, ...], values: NDArray[Any], within: Any = "all") -> Any:
    """Return the fixed normalizations of an array (f, z, y, x)."""
    maps = len(values)
    network = network_from_text(NET.format(maps=maps, input="{}"), "net.yaml")
    scaling = InputScaling(normalize=rules, within=within)
    found = normalized(replace(network, scaling=scaling), ArrayVolume(values))
    return found.scaling.fixed(maps)


@given(data=st.data(), dtype=st.sampled_from(TYPES), maps=st.integers(1, 2))
@settings(max_examples=60, deadline=None)
def test_percentiles_are_those_of_numpy(data: st.DataObject, dtype: str, maps: int) -> None:
    kind = np.dtype(dtype)
    within = (
        {"elements": st.floats(-1000, 1000, width=8 * min(kind.itemsize, 4))}
        if kind.kind == "f"
        else {}
    )
    shape = (maps, *data.draw(st.tuples(*[st.integers(1, 6)] * 3)))
    values = data.draw(arrays.arrays(kind, shape, **within))
    low, high = sorted(data.draw(st.sets(st.floats(0, 100), min_size=2, max_size=2)))
    wanted = np.percentile(values.astype(np.float32).astype(float), [low, high], axis=(1, 2, 3))
    for index, fixed in enumerate(_by((Percentiles(low, high),), values)):
        assert fixed.mean == pytest.approx(wanted[0, index], rel=1e-12, abs=1e-12)
        spread = max(wanted[1, index] - wanted[0, index], 1e-8)
        assert fixed.std == pytest.approx(spread, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("within", ["all", "nonzero"])
def test_statistics_of_all_maps_together(dtype: str, within: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    values = (rng.random((3, 66, 20, 30)) * 90).astype(dtype)
    values[:, rng.random(values.shape[1:]) < 0.3] = 0
    wide = values.astype(np.float32).astype(np.float64)
    seen = wide[:, (wide != 0).any(axis=0)] if within == "nonzero" else wide
    low, high = np.percentile(seen, [2, 97])
    for entry, mean, std in (
        ("zscore", seen.mean(), seen.std()),
        ("{percentiles: [2, 97]}", low, high - low),
    ):
        network = _network(
            tmp_path, f"{{normalize: {entry}, together: true, within: {within}}}", maps=3
        )
        assert network_from_text(network_text(network), "again.yaml") == network
        found = normalized(network, ArrayVolume(values))
        assert len(set(found.scaling.fixed(3))) == 1
        assert found.scaling.statistics[2].mean == pytest.approx(mean, rel=1e-7)
        assert found.scaling.statistics[2].std == pytest.approx(std, rel=1e-7)
        assert network_from_text(network_text(found), "again.yaml") == found
        assert "over all maps together" in str(network.scaling)
    with pytest.raises(InvalidInput, match="give one normalization for all"):
        _network(tmp_path, "{normalize: [zscore, zscore, zscore], together: true}", maps=3)


@pytest.mark.parametrize("dtype", [">i2", ">f2", ">f4"])
def test_the_order_of_bytes_does_not_matter(dtype: str) -> None:
    values = np.random.default_rng(0).integers(-300, 300, (1, 5, 6, 7)).astype(dtype)
    wanted = _by((Percentiles(5, 90),), values.astype(np.float64))
    assert _by((Percentiles(5, 90),), values) == wanted


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("within", ["all", "nonzero"])
def test_mean_and_deviation_are_exact_over_many_blocks(dtype: str, within: str) -> None:
    rng = np.random.default_rng(3)
    values = (rng.random((2, 70, 300, 20)) * 100 + 20).astype(dtype)
    values[:, rng.random(values.shape[1:]) < 0.3] = 0
    values[0, :3] = 0
    wide = values.astype(np.float64)
    seen = (wide != 0).any(axis=0) if within == "nonzero" else np.ones(wide.shape[1:], bool)
    for one, fixed in zip(wide, _by((ZScore(),), values, within), strict=True):
        assert fixed.mean == pytest.approx(one[seen].mean(), rel=1e-7)
        assert fixed.std == pytest.approx(one[seen].std(), rel=1e-7)
    assert _by((ZScore(),), values, within) == _by((ZScore(),), values.copy("F"), within)


@pytest.mark.parametrize(
    ("entry", "reference"),
    [
        ("{normalize: zscore}", lambda v: (v - v.mean()) / v.std()),
        (
            "{normalize: {percentiles: [1, 99.8]}}",
            lambda v: (v - np.percentile(v, 1)) / (np.percentile(v, 99.8) - np.percentile(v, 1)),
        ),
        (
            "{normalize: {mean: 100, std: 20, clip: [50, 150]}}",
            lambda v: (v.clip(50, 150) - 100) / 20,
        ),
        (
            "{normalize: zscore, within: nonzero}",
            lambda v: np.where(v != 0, (v - v[v != 0].mean()) / v[v != 0].std(), 0),
        ),
    ],
)
def test_a_run_sees_the_normalized_volume(tmp_path: Path, entry: str, reference: Any) -> None:
    network = _network(tmp_path, entry)
    weights = znni.random_weights(network, 1)
    volume = np.random.default_rng(0).integers(0, 200, (20, 24, 28), np.uint8)
    volume[:5] = 0
    source, out = tmp_path / "in.h5", tmp_path / "out.h5"
    with h5py.File(source, "w") as file:
        file["main"] = volume
    znni.infer(source, network, out, weights=weights, border="same", threads=1)
    plain = _network(tmp_path, "{}")
    wanted = znni.Inferer(plain, weights, border="same", threads=1)(
        reference(volume.astype(np.float64)).astype(np.float32)
    )
    with h5py.File(out) as file:
        found = file["main"][()]
        text = str(file["main"].attrs["network_file"])
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
    assert network_from_text(text, "attribute").scaling.is_fixed
    assert network_from_text(text, "attribute").scaling.normalize == network.scaling.normalize
    assert znni.verify(out, weights=weights).wrong == 0
    inferer = znni.Inferer(network, weights, border="same", threads=1)
    np.testing.assert_array_equal(inferer(volume), found)


def test_parts_take_the_numbers_that_the_first_has_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = _network(tmp_path, "{normalize: {percentiles: [1, 99]}}")
    weights = znni.random_weights(network, 1)
    volume = np.random.default_rng(0).random((24, 30, 60), np.float32)
    source, whole, out = tmp_path / "in.npy", tmp_path / "whole.zarr", tmp_path / "out.zarr"
    np.save(source, volume)
    options: Any = {"weights": weights, "border": "same", "threads": 1, "costs": "built-in"}
    report = znni.infer(source, network, whole, **options)
    passes: list[int] = []
    counted = statistics._blocks
    monkeypatch.setattr(statistics, "_blocks", lambda *given: passes.append(1) or counted(*given))
    znni.infer(source, network, out, part="0/2", **options)
    assert len(passes) == 2  # float32 values take two
    znni.infer(source, network, out, part="1/2", **options)
    assert len(passes) == 2
    znni.finish(out)
    found, wanted = open_volume(str(out)), open_volume(str(whole))
    box = Box(Vec3(0, 0, 0), wanted.size)
    np.testing.assert_array_equal(found.read(box), wanted.read(box))
    again = Plan.from_json(report.plan.to_json())
    assert again == report.plan
    assert again.network.scaling.statistics == report.plan.network.scaling.statistics != ()


def test_an_output_goes_on_with_its_own_numbers_only(tmp_path: Path) -> None:
    network = _network(tmp_path, "{normalize: zscore}")
    other = _network(tmp_path, "{normalize: zscore, statistics: {mean: 1, std: 2}}")
    assert other.scaling.fixed(1) == (Fixed(1, 2),)
    weights = znni.random_weights(network, 1)
    source, out = tmp_path / "in.npy", tmp_path / "out.zarr"
    np.save(source, np.random.default_rng(0).random((24, 30, 60), np.float32))
    znni.infer(source, network, out, weights=weights, part="0/2", threads=1)
    with pytest.raises(InvalidInput, match="other statistics"):
        znni.infer(source, other, out, weights=weights, part="1/2", threads=1)


def test_rules_are_kept_in_the_text_of_a_network(tmp_path: Path) -> None:
    entry = "{normalize: [zscore, {percentiles: [0, 100]}, {mean: 1, std: 2, clip: [0, 3]}]}"
    network = _network(tmp_path, entry, maps=3)
    assert network.scaling.normalize == (ZScore(), Percentiles(0, 100), Fixed(1, 2, (0, 3)))
    assert network_from_text(network_text(network), "text") == network


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{normalize: zscores}", "give zscore, {percentiles"),
        ("{normalize: {percentiles: [5]}}", "give zscore, {percentiles"),
        ("{normalize: {percentiles: [5, 1]}}", "percentiles 5.0 and 1.0"),
        ("{normalize: {mean: 1, std: 0}}", "std above 0"),
        ("{normalize: {mean: 1, std: 1.0e-50}}", "std above 0 as float32"),
        ("{normalize: {mean: 1, std: 1, clip: [3, 1]}}", "[lower, higher]"),
        ("{normalize: {mean: 1, std: 1, clip: 3}}", "give zscore, {percentiles"),
        ("{normalize: []}", "list is empty"),
        ("{normalize: zscore, scale: 2}", "give one of them"),
        ("{within: nonzero}", "leave out within"),
        ("{statistics: {mean: 1, std: 2}}", "leave out its statistics"),
        ("{normalize: zscore, statistics: zscore}", "numbers of each map"),
        ("{normalize: zscore, statistics: [{mean: 1, std: 2}, {mean: 1, std: 2}]}", "1 map"),
        ("{normalize: [zscore, zscore]}", "1 map"),
    ],
)
def test_wrong_rules_are_refused(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        _network(tmp_path, entry)
    assert message in str(error.value)


def test_volumes_without_statistics_are_refused() -> None:
    with pytest.raises(InvalidInput, match="0 everywhere"):
        _by((ZScore(),), np.zeros((1, 3, 3, 3)), "nonzero")
    values = np.ones((1, 3, 3, 3), np.float32)
    values[0, 1, 2, 0] = np.nan
    with pytest.raises(UnusableValues, match="z=1, y=2, x=0"):
        _by((ZScore(),), values)
    assert _by((ZScore(),), np.ones((1, 3, 3, 3))) == (Fixed(1.0, 1e-8),)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_values_that_are_clipped_must_be_finite_too(tmp_path: Path, value: float) -> None:
    network = _network(tmp_path, "{normalize: {mean: 1, std: 2, clip: [0, 9]}}")
    volume = np.ones((6, 7, 8), np.float32)
    volume[2, 3, 4] = value
    inferer = znni.Inferer(network, znni.random_weights(network, 1), threads=1, costs="built-in")
    with pytest.raises(UnusableValues, match=f"holds {value} at voxel z=2, y=3, x=4"):
        inferer(volume)


def test_what_overflows_when_scaled_is_told_apart(tmp_path: Path) -> None:
    network = _network(tmp_path, "{scale: 1.0e+30}")
    volume = np.ones((6, 7, 8), np.float32)
    volume[2, 3, 4] = 1e20
    inferer = znni.Inferer(network, znni.random_weights(network, 1), threads=1, costs="built-in")
    with pytest.raises(UnusableValues, match="z=2, y=3, x=4, which is infinite when scaled"):
        inferer(volume)


def test_blocks_are_no_larger_for_more_maps() -> None:
    class Noting(ArrayVolume):
        largest = 0

        def read(self, box: Box) -> NDArray[Any]:
            values = super().read(box)
            Noting.largest = max(Noting.largest, values.size)
            return values

    maps = 16
    network = network_from_text(NET.format(maps=maps, input="{normalize: zscore}"), "net.yaml")
    values = np.broadcast_to(np.arange(70, dtype=np.uint8)[:, None, None], (maps, 70, 300, 300))
    found = normalized(network, Noting(values)).scaling.fixed(maps)
    assert found[-1].mean == pytest.approx(34.5)
    assert Noting.largest <= statistics.BLOCK.volume


def test_plans_of_other_networks_are_refused_as_such(tmp_path: Path) -> None:
    plain = _network(tmp_path, "{}")
    plan = znni.plan(plain, (24, 30, 60), threads=1, costs="built-in")
    for entry, maps in (("{normalize: zscore}", 1), ("{normalize: zscore}", 2)):
        network = _network(tmp_path, entry, maps)
        volume = np.ones((maps, 24, 30, 60), np.uint8)
        volume[:, 0] = 0
        with pytest.raises(InvalidInput, match="the plan is for network net, as it was then"):
            znni.infer(volume, network, tmp_path / "out.zarr", random_seed=1, plan=plan, threads=1)


def test_what_cannot_run_is_refused_before_the_volume_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = _network(tmp_path, "{normalize: zscore}")

    def unread(*_given: object) -> None:
        raise AssertionError("the volume was read")

    monkeypatch.setattr(statistics, "_blocks", unread)
    with pytest.raises(DoesNotFit):
        znni.infer(
            np.ones((24, 30, 60), np.uint8), network, tmp_path / "out.zarr", random_seed=1,
            threads=1, ram="10MiB",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "dtype", "passes"),
    [
        (ZScore(), np.float32, 1),
        (Percentiles(1, 99), np.float32, 2),
        (Percentiles(1, 99), np.uint8, 1),
        (Fixed(0, 2), np.float32, 0),
    ],
)
def test_reading_is_shown_and_predicted(
    rule: Normalization, dtype: type, passes: int, tmp_path: Path
) -> None:
    size, seen = Vec3(130, 20, 20), list[tuple[int, int]]()
    values = np.random.default_rng(0).integers(0, 99, size).astype(dtype)
    np.save(tmp_path / "in.npy", values)
    plain = network_from_text(NET.format(maps=1, input="{}"), "a.yaml")
    net = replace(plain, scaling=InputScaling(normalize=(rule,)))
    options: Any = {"device": "cpu", "costs": "built-in", "threads": 1}

    def note(done: int, total: int) -> None:
        seen.append((done, total))

    report = znni.infer(
        tmp_path / "in.npy", net, tmp_path / "out.h5", random_seed=0, progress=note, **options
    )
    voxels = size.volume
    reading = [done for done, total in seen if total == passes * voxels]
    blocks = [64 * 400, 128 * 400, voxels]
    assert reading == [done + before * voxels for before in range(passes) for done in blocks]
    normalizing, scaling = (
        znni.plan(each, size, input_dtype=values.dtype, **options).time.around.opening
        for each in (net, plain)
    )
    assert (normalizing > scaling) == (passes > 0)
    assert report.plan.time.around.opening == normalizing


@pytest.mark.parametrize("like", ["nnunet", "monai"])
@pytest.mark.parametrize("border", [0, 7])
def test_a_warning_of_borders_that_nnunet_cuts_off(
    like: Any, border: int, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.ones((1, 90, 20, 30), np.float32)
    values[:, :border], values[:, :, :, 30 - border :] = 0, 0
    values[:, 70] = 0  # within
    text = NET.format(maps=1, input="{normalize: zscore}").replace("kernel: 3", "kernel: 1")
    network = network_from_text(text, "net.yaml")
    windows = Window(Vec3(8, 8, 8), like=like)
    normalized(with_window(network, windows), ArrayVolume(values))
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == (like == "nnunet" and border > 0)
    if told:
        assert f"outside of {Box(Vec3(7, 0, 0), Vec3(90, 20, 23))}" in told[0]
