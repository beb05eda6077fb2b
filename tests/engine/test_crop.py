"""Inputs cropped to what is not 0: windows, statistics and output are those of the part alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from window_networks import network

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.engine import statistics
from znni.engine.statistics import normalized
from znni.inference import api
from znni.inference.inferer import Inferer
from znni.inference.planning import search
from znni.inference.verify import verify
from znni.network.input_scaling import Fixed, InputScaling, Normalization, Percentiles, ZScore
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.network_file import network_from_text
from znni.network.weights import Float32, random_weights
from znni.network.window import Window
from znni.volumes.array import ArrayVolume
from znni.volumes.locate import open_volume

OPTIONS: Any = {"device": "cpu", "costs": "built-in", "threads": 1}
SIZE = Vec3(19, 21, 30)
BOX = Box(Vec3(3, 0, 8), Vec3(17, 13, 29))
WINDOW = Window(Vec3(8, 8, 8), like="nnunet")
Z_SCORE = ZScore()


def cropping(rule: Normalization = Z_SCORE, window: Window = WINDOW, **given: Any) -> Network:
    scaling = InputScaling(normalize=(rule,), crop="nonzero", **given)
    return replace(network(window), scaling=scaling)


def of_part(cropped: Network) -> Network:
    """Return the same network for the part alone."""
    return replace(cropped, scaling=replace(cropped.scaling, crop="none", box=None))


def volume(box: Box = BOX, dtype: type = np.float32) -> Any:
    """Return a volume of two maps that is 0 outside of a box, and here and there within."""
    generator = np.random.default_rng(1)
    values = np.zeros((2, *SIZE), dtype)
    inside = generator.integers(1, 200, (2, *box.size)).astype(dtype)
    inside[:, generator.random(box.size) < 0.3] = 0
    corners = tuple(slice(None, None, max(1, extent - 1)) for extent in box.size)
    inside[:, *corners] = 7  # so that the box is no smaller
    inside[1, ..., 2:3] = 0
    values[:, *box.slices] = inside
    return values


def infer(net: Network, values: Any, **options: Any) -> Float32:
    parameters = random_weights(net, 0)
    size = Vec3(*values.shape[1:])
    out = np.full((net.out_features, *size), np.nan, np.float32)
    api.infer(values, net, out, weights=parameters, **OPTIONS, **options)
    return out


RULES: list[Normalization] = [ZScore(), Percentiles(3, 97.5), Fixed(50, 12, (1, 150))]
BOXES = [BOX, Box(Vec3(2, 6, 25), Vec3(18, 9, 30)), Box(Vec3(9, 9, 9), Vec3(10, 10, 10))]


# All pairs of a rule, a box and what is looked at.
CROPS = [
    pytest.param(rule, box, within, id=f"{type(rule).__name__}-{box}-{within}")
    for (rule, box), within in zip(product(RULES, BOXES), cycle(["all", "nonzero"]), strict=False)
]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "box", "within"), CROPS)
def test_the_output_is_that_of_the_part_alone(rule: Normalization, box: Box, within: Any) -> None:
    values = volume(box)
    net = cropping(rule, within=within)
    found = infer(net, values)
    expected = infer(of_part(net), np.ascontiguousarray(values[:, *box.slices]))
    np.testing.assert_allclose(found[:, *box.slices], expected, rtol=0, atol=2e-5)
    found[:, *box.slices] = 0
    assert not found.any()


@pytest.mark.slow
@pytest.mark.parametrize("extents", [Vec3(4, 4, 4), Vec3(8, 12, 8), Vec3(20, 24, 12)], ids=str)
@pytest.mark.parametrize("mirror", ["", "x"])
def test_blocks_of_any_size_give_the_same_bytes(extents: Vec3, mirror: str) -> None:
    values, net = volume(), cropping(window=replace(WINDOW, mirror=mirror))
    opened = normalized(net, ArrayVolume(values))
    found = search(opened, SIZE, border="same", **OPTIONS).fastest_for(extents)
    assert found is not None
    in_blocks = infer(opened, values, plan=found)
    np.testing.assert_array_equal(in_blocks, infer(opened, values))


@pytest.mark.slow
def test_regions_and_masks_keep_the_part() -> None:
    values, net = volume(), cropping()
    whole = infer(net, values)
    roi = Box(Vec3(1, 5, 2), Vec3(9, 21, 20))
    out = np.full((net.out_features, *roi.size), np.nan, np.float32)
    parameters = random_weights(net, 0)
    api.infer(values, net, out, weights=parameters, roi=roi, **OPTIONS)
    np.testing.assert_array_equal(out, whole[:, *roi.slices])
    mask = np.random.default_rng(0).random(SIZE) < 0.02
    np.testing.assert_array_equal(infer(net, values, mask=mask), whole * mask)


def test_labels_outside_are_0_whatever_the_biases_are(tmp_path: Path) -> None:
    net = replace(cropping(), labels=(("a", 5), ("b", 6), ("c", 7)))
    np.save(tmp_path / "in.npy", volume())
    api.infer(
        tmp_path / "in.npy", net, tmp_path / "out.zarr", random_seed=0, labels=True, **OPTIONS
    )
    stored = open_volume(tmp_path / "out.zarr")
    labels = stored.read(Box(Vec3(0, 0, 0), SIZE))
    assert set(np.unique(labels[:, *BOX.slices])) <= {5, 6, 7}
    labels[:, *BOX.slices] = 0
    assert not labels.any()
    checked = verify(tmp_path / "out.zarr", voxels=40, seed=2)
    assert checked.agrees, checked
    assert checked.unneeded > 0


def test_the_output_notes_the_part_and_verifies(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", volume())
    net = cropping(within="nonzero")
    api.infer(tmp_path / "in.npy", net, tmp_path / "out.h5", random_seed=0, **OPTIONS)
    note = open_volume(tmp_path / "out.h5").attributes()["network_file"]
    noted = network_from_text(str(note), "noted.yaml").scaling
    assert noted.box == BOX
    assert noted.statistics
    result = verify(tmp_path / "out.h5", voxels=60, seed=3)
    assert result.agrees, result


def test_a_known_part_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    values = volume()
    found = normalized(cropping(), ArrayVolume(values))
    again = network_from_text(network_text(found), "net.yaml")
    assert again.scaling == found.scaling

    def unread(*_given: object) -> Iterator[Any]:
        raise AssertionError("the volume was read")

    monkeypatch.setattr(statistics, "_blocks", unread)
    np.testing.assert_array_equal(infer(again, values), infer(found, values))


def test_an_inferer_takes_the_part_of_each_array() -> None:
    net = cropping()
    run = Inferer(net, weights=random_weights(net, 0), **OPTIONS)
    for box in BOXES:
        values = volume(box)
        np.testing.assert_array_equal(run(values), infer(net, values))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: type(rule).__name__)
def test_statistics_are_those_of_the_part(
    rule: Normalization, dtype: type, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "BLOCK", Vec3(4, 7, 11))
    values = volume(dtype=dtype)
    net = cropping(rule, together=together)
    found = normalized(net, ArrayVolume(values)).scaling
    assert found.box == BOX
    inside = values[:, *BOX.slices].astype(np.float64)
    maps = [inside, inside] if together else list(inside)
    for numbers, counted in zip(found.statistics, maps, strict=True):
        if isinstance(rule, Percentiles):
            low, high = np.percentile(counted, [rule.low, rule.high])
            expected = low, high - low
        else:
            expected = counted.mean(), counted.std()
        np.testing.assert_allclose((numbers.mean, numbers.std), expected, rtol=1e-12)


def test_known_numbers_need_one_pass_for_the_part(caplog: pytest.LogCaptureFixture) -> None:
    seen = list[tuple[int, int]]()
    net = cropping(Fixed(0, 2))
    assert not net.scaling.is_fixed
    found = normalized(net, ArrayVolume(volume()), lambda *at: seen.append(at)).scaling
    assert (found.box, found.statistics) == (BOX, ())
    assert found.is_fixed
    assert seen == [(SIZE.volume, SIZE.volume)]
    assert not [it for it in caplog.records if it.levelno >= logging.WARNING]


def test_a_volume_of_0_is_not_cropped() -> None:
    nothing = np.zeros((2, *SIZE), np.float32)
    found = normalized(cropping(Fixed(0, 2)), ArrayVolume(nothing)).scaling
    assert found.box == Box(Vec3(0, 0, 0), SIZE)


@given(st.data())
def test_windows_over_a_part_are_those_of_a_volume_moved(data: st.DataObject) -> None:
    draw = data.draw
    three = st.builds(Vec3, *[st.integers(1, 9)] * 3)
    size, volume_size = draw(three), draw(three) + draw(three)
    start = Vec3(*(draw(st.integers(0, extent - 1)) for extent in volume_size))
    stop = Vec3(*(draw(st.integers(a + 1, b)) for a, b in zip(start, volume_size, strict=True)))
    part = Box(start, stop)
    overlap = draw(st.sampled_from([0.0, 0.25, 0.5, 0.8]))
    window = Window(size, overlap, like=draw(st.sampled_from(["monai", "nnunet"])))
    moved, alone = window.over(volume_size, part), window.over(part.size)
    for mine, theirs, first in zip(moved.starts, alone.starts, start, strict=True):
        assert mine == tuple(first + each for each in theirs)
    block = draw(three).minimum(volume_size)
    runs = reach = 0
    corners = product(*(range(0, e, b) for e, b in zip(volume_size, block, strict=True)))
    blocks = 0
    for corner in corners:
        blocks += 1
        box = Box(Vec3(*corner), (Vec3(*corner) + block).minimum(volume_size))
        touching = list(moved.touching(box))
        common = box.intersection(part)
        expected = list(alone.touching(common.shifted(Vec3(0, 0, 0) - start))) if common else []
        assert touching == [each + start for each in expected]
        around = moved.around(box)
        assert around.size.within(moved.most_around(block))
        assert bool(touching) == (common is not None)
        ends = [
            moved.along(axis).around(*map(np.array, each))
            for axis, each in enumerate(zip(*box, strict=True))
        ]
        if touching:
            assert ends == list(zip(*around, strict=True))
        else:
            assert any(low == high for low, high in ends)
        runs += sum(max(each.x, start.x) >= box.start.x for each in touching)
        if touching:
            last = min(max(each.x for each in touching) + size.x, stop.x)
            reach = max(reach, last - box.stop.x)
    assert moved.a_block(block) * blocks == pytest.approx(runs)
    assert moved.tail(block) >= reach or block.x >= volume_size.x


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{crop: nonzero}", "leave out crop"),
        ("{normalize: zscore, box: [[0, 0, 0], [2, 2, 2]]}", "leave out its box"),
        ("{normalize: zscore, crop: all}", "choose one of none, nonzero"),
        ("{normalize: zscore, crop: nonzero, box: [[0, 0, 0], [2, 0, 2]]}", "first voxel"),
        ("{normalize: zscore, crop: nonzero, box: [0, 2]}", "first voxel"),
    ],
)
def test_entries_that_make_no_sense_are_errors(entry: str, said: str) -> None:
    text = (
        f"name: a\nin_features: 1\ninput: {entry}\nlayers: [{{conv: {{features: 1, kernel: 1}}}}]\n"
    )
    with pytest.raises(InvalidInput, match=said):
        network_from_text(text, "a.yaml")


def test_a_part_needs_windows_zeros_around_it_and_the_volume() -> None:
    values, net = volume(), cropping()
    with pytest.raises(InvalidInput, match="not computed in windows"):
        normalized(replace(net, window=None), ArrayVolume(values))
    with pytest.raises(InvalidInput, match="leave out pad"):
        infer(net, values, border="same", pad="reflect")
    known = normalized(net, ArrayVolume(values))
    with pytest.raises(InvalidInput, match="not within the volume"):
        infer(known, values[:, :10])
