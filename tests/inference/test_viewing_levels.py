"""Tests of output pages: labels in colours, and coarser resolutions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import VOLUME, refused, succeeds, voxels
from hypothesis import given
from hypothesis import strategies as st
from pages import read_page

import znni
from znni.core.shapes import Box, Vec3
from znni.core.volume import Grid
from znni.inference.viewing.pictures import colours_of
from znni.inference.viewing.resolutions import Resolutions
from znni.volumes.array import ArrayVolume

pytestmark = pytest.mark.usefixtures("fake_primitives", "small_output")
INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.zarr")


class Stored(ArrayVolume):
    """A volume with coarser resolutions in memory."""

    def __init__(self, *levels: ArrayVolume) -> None:
        super().__init__(levels[0].read(Box(Vec3(0, 0, 0), levels[0].size)))
        self._levels = levels

    def coarser(self) -> list[ArrayVolume]:
        return list(self._levels[1:])


def stored(path: str) -> Any:
    zarr = pytest.importorskip("zarr")
    return zarr.open(path, mode="r")


def test_labels_have_names_and_colours() -> None:
    text = Path("tiny.yaml").read_text()
    Path("tiny.yaml").write_text(f"{text}labels: {{nothing: 0, cell: 700}}\n")
    succeeds(*INFER, "--labels")
    succeeds("view", "volume.h5", "out.zarr")
    data, (_, made) = read_page("out.zarr.html")
    (described,) = data["maps"]
    assert described["labels"] == ["0", "700"]
    assert described["names"] == ["nothing", "cell"]
    assert described["colours"] == [list(c) for c in colours_of(np.uint16([0, 700]))]
    values = stored("out.zarr/0")[0]
    assert np.unique(values).size == 2
    np.testing.assert_array_equal(np.array([0, 700])[made], values)


def test_labels_of_other_programs() -> None:
    labels = np.arange(np.prod(VOLUME), dtype=np.uint64).reshape(VOLUME) + 2**60
    np.save("other.npy", labels)
    np.save("masks.npy", voxels())
    succeeds("view", "volume.h5", "other.npy")
    data, (_, made) = read_page("other.npy.html")
    found = np.array([int(label) for label in data["maps"][0]["labels"]], np.uint64)
    np.testing.assert_array_equal(found[made], labels)
    succeeds("view", "volume.h5", "masks.npy")
    assert "labels" not in read_page("masks.npy.html")[0]["maps"][0]
    succeeds("view", "volume.h5", "masks.npy", "--labels", "--overwrite")
    assert len(read_page("masks.npy.html")[0]["maps"][0]["labels"]) == np.unique(voxels()).size
    succeeds("view", "volume.h5", "other.npy", "--values", "--overwrite")
    assert "high" in read_page("other.npy.html")[0]["maps"][0]


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf])
def test_values_that_are_no_labels_are_refused(value: float) -> None:
    np.save("values.npy", np.full(VOLUME, value, np.float32))
    said = refused("view", "volume.h5", "values.npy", "--labels")
    assert f"holds {value}, and labels are whole numbers" in said


def test_labels_above_a_threshold() -> None:
    succeeds(*INFER, "--threshold", "0.5")
    succeeds("view", "volume.h5", "out.zarr")
    data, (_, *maps) = read_page("out.zarr.html")
    for described, made, values in zip(data["maps"], maps, stored("out.zarr/0"), strict=True):
        labels = np.array([int(label) for label in described["labels"]])
        np.testing.assert_array_equal(labels[made], values)


def test_colours_differ_and_stay() -> None:
    labels = np.arange(100)
    colours = colours_of(labels)
    assert len(set(colours)) == 100
    assert colours_of(labels[40:41]) == colours[40:41]
    assert colours_of(labels.astype(np.uint8)) == colours
    assert colours_of(np.array([-5, 2**62])) == colours_of(np.array([-5, 2**62]))
    assert colours_of(np.array([False, True])) == colours[:2]


def test_the_coarsest_resolution_that_is_fine_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.formats.zarr.pyramid.SMALLEST", 4)
    succeeds(*INFER, "--pyramid")
    assert [stored(f"out.zarr/{i}").shape[1:] for i in range(3)] == [
        (6, 15, 16),
        (3, 8, 8),
        (2, 4, 4),
    ]
    succeeds("view", "volume.h5", "out.zarr")
    np.testing.assert_array_equal(read_page("out.zarr.html")[0]["stride"], 1)
    monkeypatch.setattr("znni.inference.viewing.region.EXTENT", 5)
    said = succeeds("view", "volume.h5", "out.zarr", "--overwrite")
    assert "0:6,2:17,3:19, one in 2x3x4\nnote: out.zarr: shown from its resolution of 3x8x8" in said
    data, (given, made, _) = read_page("out.zarr.html")
    level = stored("out.zarr/1")[0][np.ix_([0, 1, 2], [0, 1, 3, 4, 6], [0, 2, 4, 6])]
    np.testing.assert_allclose(made / 255, level, rtol=0, atol=0.51 / 255)
    low, high = data["input"]["low"], data["input"]["high"]
    wanted = voxels()[0:6:2, 2:17:3, 3:19:4].clip(low, high)
    np.testing.assert_allclose(low + given / 255 * (high - low), wanted, rtol=0, atol=0.5)


def test_a_pyramid_shows_all_of_a_large_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.formats.zarr.pyramid.SMALLEST", 4)
    monkeypatch.setattr("znni.inference.viewing.region.EXTENT", 8)
    monkeypatch.setattr("znni.inference.viewing.region.WHOLE", 480)
    whole = np.random.default_rng(1).random(VOLUME).astype(np.float32)
    np.save("whole.npy", whole)
    znni.export("whole.npy", "plain.zarr", pyramid=False)
    znni.export("whole.npy", "pyramid.zarr", pyramid=True)
    said = succeeds("view", "plain.zarr", "plain.zarr", "--out", "part.html")
    assert said.startswith("part.html: 448 input voxels, 0:7,6:14,7:15\n")
    assert "note: to see all of it at once, run znni pyramid plain.zarr\n" in said
    said = succeeds("view", "pyramid.zarr", "pyramid.zarr", "--out", "all.html")
    assert said.startswith("all.html: 3,220 input voxels, 0:7,0:20,0:23, one in 2x3x3\n")
    assert "run znni pyramid" not in said


@given(
    size=st.tuples(*[st.integers(1, 40)] * 3),
    halvings=st.integers(0, 4),
    start=st.tuples(*[st.floats(0, 0.9)] * 3),
    stride=st.tuples(*[st.integers(1, 20)] * 3),
    told=st.booleans(),
)
def test_samples_of_resolutions_lie_where_they_should(
    size: tuple[int, int, int],
    halvings: int,
    start: tuple[float, float, float],
    stride: tuple[int, int, int],
    *,
    told: bool,
) -> None:
    """Values tell their place: each is the place of the first voxel that it stands for."""
    extents = Vec3(*size)
    z, y, x = np.indices(size)
    finest = z * 10_000 + y * 100 + x
    levels = []
    for halving in range(halvings + 1):
        step = 2**halving
        grid = Grid(scale=(step, step, step)) if told else None
        levels.append(ArrayVolume(finest[::step, ::step, ::step], grid=grid))
    volumes = Resolutions(Stored(*levels))
    begin = Vec3(*(int(share * extent) for share, extent in zip(start, extents, strict=True)))
    chosen = volumes.at(Vec3(*stride))
    found = volumes.sampled(0, Box(begin, extents), Vec3(*stride))
    factors = zip(begin, extents, stride, chosen.factor, strict=True)
    places = [np.arange(first, stop, step) for first, stop, step, _ in factors]
    assert all(f <= s * 1.001 for f, s in zip(chosen.factor, stride, strict=True))
    wanted = finest[np.ix_(*places)]
    for divisor in (10_000, 100, 1):
        apart = np.abs(found // divisor % 100 - wanted // divisor % 100)
        assert apart.max() <= max(chosen.factor)
    if told:
        coarse = round(max(chosen.factor))
        firsts = [place // coarse * coarse for place in places]
        np.testing.assert_array_equal(found, finest[np.ix_(*firsts)])


def test_the_input_is_seen_as_the_network_saw_it() -> None:
    np.save("two.npy", voxels((2, *VOLUME)))
    infer = ("infer", "two.npy", "--net", "tiny.yaml", "--out", "one.h5", "--channel", "1")
    succeeds(*infer)
    succeeds("view", "two.npy", "one.h5")
    data, (given, *_) = read_page("one.h5.html")
    low, high = data["input"]["low"], data["input"]["high"]
    wanted = voxels((2, *VOLUME))[1, :6, 2:17, 3:19].clip(low, high)
    np.testing.assert_allclose(low + given / 255 * (high - low), wanted, rtol=0, atol=0.5)


def test_a_resolution_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr("znni.volumes.formats.zarr.pyramid.SMALLEST", 8)
    succeeds(*INFER, "--pyramid")
    shutil.rmtree("out.zarr/1")
    message = refused("view", "volume.h5", "out.zarr")
    assert re.search("a resolution '1' that is not there; copy it again", message)
