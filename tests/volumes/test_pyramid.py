"""Coarser resolutions of OME-Zarr outputs."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaozarrs
import zarr
from command_line import succeeds
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr_images import SCALE, change_metadata, write_image

from znni.core.errors import InvalidInput
from znni.core.option_types import Coarsening
from znni.core.shapes import Box, Vec3
from znni.core.volume import Grid, NewOutput
from znni.inference.pyramids import build_pyramid
from znni.volumes.formats.zarr import pyramid
from znni.volumes.formats.zarr.pyramid import coarser, coarser_grid, steps
from znni.volumes.locate import open_output, open_volume

SIZE = Vec3(20, 37, 45)
GRID = Grid((40.0, 8.0, 8.0), (4.0, 1.0, 2.0), ("nanometer",) * 3)


def one_by_one(values: NDArray[Any], step: Vec3, coarsening: Coarsening) -> NDArray[Any]:
    """Coarser values, each computed by itself in float64 or by counting."""
    size = Vec3(*values.shape).ceil_div(step)
    found = np.empty(size, values.dtype)
    for index in product(*map(range, size)):
        at = tuple(slice(i * s, (i + 1) * s) for i, s in zip(index, step, strict=True))
        part = values[at]
        if coarsening == "mode":
            labels, counts = np.unique(part, return_counts=True)
            found[index] = labels[counts.argmax()]
        else:
            mean = part.mean(dtype=np.float64)
            found[index] = np.rint(mean) if values.dtype.kind in "ui" else mean
    return found


@given(
    shape=st.tuples(*(st.integers(1, 7),) * 3),
    step=st.tuples(*(st.integers(1, 2),) * 3),
    dtype=st.sampled_from(["uint8", "int16", "uint32", "float16", "float32", "float64"]),
    coarsening=st.sampled_from(["mean", "mode"]),
    seed=st.integers(0, 99),
)
def test_coarser_values(
    shape: tuple[int, int, int], step: Any, dtype: str, coarsening: Coarsening, seed: int
) -> None:
    values = np.random.default_rng(seed).integers(0, 4, shape).astype(dtype)
    found = coarser(values, Vec3(*step), coarsening)
    assert found.dtype == values.dtype
    expected = one_by_one(values, Vec3(*step), coarsening)
    np.testing.assert_allclose(found, expected, rtol=1e-3 if dtype == "float16" else 1e-6)


@given(size=st.tuples(*(st.integers(1, 9000),) * 3), scale=st.tuples(*(st.floats(0.1, 50),) * 3))
def test_resolutions_end_and_become_cubes(size: Any, scale: Any) -> None:
    voxels, extents = Vec3(*size), np.array(scale)
    for step in steps(voxels, scale):
        assert max(voxels) > pyramid.SMALLEST
        assert max(step) == 2
        voxels, extents = voxels.ceil_div(step), extents * step
    assert max(voxels) <= pyramid.SMALLEST


def test_thick_sections_are_halved_later() -> None:
    found = list(steps(Vec3(200, 3000, 3000), (40, 4, 4)))
    assert found == [*(Vec3(1, 2, 2),) * 3, *(Vec3(2, 2, 2),) * 2]


def test_a_voxel_lies_in_the_middle_of_those_it_stands_for() -> None:
    found = coarser_grid(GRID, Vec3(1, 2, 4))
    assert found == Grid((40, 16, 32), (4, 1 + 4, 2 + 12), GRID.units)


@pytest.fixture
def small_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolutions go down to eight voxels, in blocks of a few files."""
    monkeypatch.setattr(pyramid, "SMALLEST", 8)


def make(place: str, values: NDArray[Any], **options: Any) -> None:
    wanted = NewOutput(len(values), SIZE, values.dtype.name, GRID, **options)  # type: ignore[arg-type]
    output = open_output(place, "none.h5", wanted)
    output.begin({"voxel_offset": (0, 0, 0)}, Vec3(8, 16, 16))
    for box in Box(Vec3(0, 0, 0), SIZE).cut(Vec3(8, 16, 16)):
        output.write(box, values[(slice(None), *box.slices)])
    output.finish({})


@pytest.mark.slow_cases
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("place", ["out.zarr", "memory://out.zarr"])
@pytest.mark.usefixtures("own_folder", "small_levels", "memory_files")
def test_resolutions_of_an_output(place: str, labels: bool, sharded: bool) -> None:
    values = np.random.default_rng(0).integers(0, 5, (2, *SIZE)).astype("uint8")
    make(place, values, pyramid=True, labels=labels, sharded=sharded)
    if "://" not in place:
        yaozarrs.validate_zarr_store(place)
    image = zarr.open_group(place, mode="r").attrs["ome"]["multiscales"][0]  # type: ignore[index,call-overload]
    assert image["type"] == ("mode" if labels else "mean")  # type: ignore[index,call-overload]
    finer, factor = values, Vec3(1, 1, 1)
    for level, step in enumerate(steps(SIZE, GRID.scale), start=1):
        factor *= step
        finer = np.stack([coarser(one, step, image["type"]) for one in finer])  # type: ignore[index,call-overload,arg-type]
        volume = open_volume(f"{place}/{level}")
        np.testing.assert_array_equal(volume.read(Box(Vec3(0, 0, 0), volume.size)), finer)
        assert volume.grid == coarser_grid(GRID, factor)
    assert len(image["datasets"]) == level + 1  # type: ignore[index,call-overload,arg-type]
    assert open_volume(place).size == SIZE


@pytest.mark.usefixtures("own_folder")
def test_only_large_outputs_have_them_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros((1, *SIZE), np.float32)
    monkeypatch.setattr(pyramid, "SMALLEST", 30)
    make("small.zarr", values)
    monkeypatch.setattr("znni.core.volume.LARGE", SIZE.volume - 1)
    make("large.zarr", values)
    make("without.zarr", values, pyramid=False)
    found = [
        sorted(p.name for p in Path(place).iterdir() if p.is_dir())
        for place in ("small.zarr", "large.zarr", "without.zarr")
    ]
    assert found == [["0"], ["0", "1"], ["0"]]


@pytest.mark.usefixtures("own_folder", "small_levels")
def test_a_run_stopped_among_them_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((1, *SIZE), np.float32)
    options: dict[str, Any] = {"pyramid": True, "resume": True, "identity": {"a": "b"}}
    make("out.zarr", values, **options)
    Path("out.zarr").rename("alone.zarr")
    fill = pyramid._fill
    for last in range(1, 3):
        calls = 0

        def stop(*arguments: Any) -> None:
            nonlocal calls
            calls += 1
            fill(*arguments)
            if calls == last:  # noqa: B023
                raise KeyboardInterrupt

        wanted = NewOutput(1, SIZE, "float32", GRID, **options)
        output = open_output("out.zarr", "none.h5", wanted)
        output.begin({"voxel_offset": (0, 0, 0)}, Vec3(8, 16, 16))
        finished = {box for box, _ in output.resume_state.history}
        assert bool(finished) == (last > 1)
        for box in set(Box(Vec3(0, 0, 0), SIZE).cut(Vec3(8, 16, 16))) - finished:
            output.write(box, values[(slice(None), *box.slices)])
        with monkeypatch.context() as patch:
            patch.setattr(pyramid, "_fill", stop)
            with pytest.raises(KeyboardInterrupt):
                output.finish({})
        output.abandon()
    output = open_output("out.zarr", "none.h5", wanted)
    output.begin({}, Vec3(8, 16, 16))
    output.finish({})
    files = {path.relative_to("alone.zarr") for path in Path("alone.zarr").rglob("*")}
    assert files == {path.relative_to("out.zarr") for path in Path("out.zarr").rglob("*")}
    for name in files:
        if (Path("alone.zarr") / name).is_file():
            one, other = ((Path(root) / name).read_bytes() for root in ("alone.zarr", "out.zarr"))
            assert one == other, name


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("letters", ["tczyx", "zyx"])
@pytest.mark.usefixtures("own_folder")
def test_resolutions_for_an_existing_image(
    version: str, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyramid, "SMALLEST", 3)
    write_image("cells.zarr", letters, version, levels=("s0",))
    finest = open_volume("cells.zarr")
    whole = Box(Vec3(0, 0, 0), finest.size)
    values = finest.read(whole)
    made = build_pyramid("cells.zarr")
    assert (made.coarsening, len(made.shapes)) == ("mean", 6)
    if version == "0.4":  # the arrays of the other one have no names of dimensions
        yaozarrs.validate_zarr_store("cells.zarr")
    np.testing.assert_array_equal(open_volume("cells.zarr").read(whole), values)
    finer, factor = values, Vec3(1, 1, 1)
    for level, step in enumerate(steps(finest.size, finest.grid.scale), start=1):
        factor *= step
        finer = np.stack([coarser(one, step, "mean") for one in finer])
        volume = open_volume(f"cells.zarr/s{level}")
        np.testing.assert_array_equal(volume.read(Box(Vec3(0, 0, 0), volume.size)), finer)
        assert volume.grid == coarser_grid(finest.grid, factor)
    with pytest.raises(InvalidInput, match="has 6 resolutions already; give overwrite=True"):
        build_pyramid("cells.zarr")
    assert "by the most frequent label" in str(
        build_pyramid("cells.zarr", labels=True, overwrite=True)
    )
    np.testing.assert_array_equal(
        open_volume("cells.zarr/s1").read(Box(Vec3(0, 0, 0), Vec3(1, 1, 1)))[0],
        coarser(values[0], Vec3(1, 1, 2), "mode")[:1, :1, :1],
    )


@pytest.mark.usefixtures("own_folder")
def test_coarser_resolutions_keep_time_and_what_the_image_says_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyramid, "SMALLEST", 3)
    write_image("cells.zarr", levels=("0",))
    of_all = {"type": "scale", "scale": [0.1, 1, 2, 2, 2]}
    change_metadata("cells.zarr", lambda one: one.update(coordinateTransformations=[of_all]))
    finest = open_volume("cells.zarr", time=0).grid
    build_pyramid("cells.zarr")
    image = zarr.open_group("cells.zarr", mode="r").attrs["ome"]["multiscales"][0]  # type: ignore[index,call-overload]
    factor = Vec3(1, 1, 1)
    for level, step in enumerate(steps(open_volume("cells.zarr", time=0).size, finest.scale), 1):
        factor *= step
        scale, _ = image["datasets"][level]["coordinateTransformations"]  # type: ignore[index,call-overload,misc]
        assert scale["scale"][:2] == [SCALE["t"], SCALE["c"]]  # type: ignore[index,call-overload]
        assert open_volume(f"cells.zarr/{level}", time=0).grid == coarser_grid(finest, factor)


@pytest.mark.usefixtures("own_folder")
def test_existing_images_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyramid, "SMALLEST", 3)
    write_image("other.zarr", "xyzc", levels=("0",))
    zarr.create_array("array.zarr", shape=(3, 4, 5), dtype="u1")
    zarr.create_group("plain.zarr")
    Path("stack.tif").write_bytes(b"II")
    write_image("taken.zarr", "zyx", levels=("0",))
    zarr.open_group("taken.zarr").create_array("1", shape=(3,), dtype="u1")
    said = {
        "other.zarr": r"has axes \(x, y, z, c\), and coarser resolutions need z, y and x last",
        "array.zarr": "is an array, and no group with an image",
        "plain.zarr": "has no OME metadata of an image; make one with znni export",
        "none.zarr": "there is no Zarr; give the folder",
        "stack.tif": "is a file, and no OME-Zarr; make one with znni export stack.tif OUT.zarr",
        "taken.zarr": "has a member '1', where the next resolution would be; move it",
    }
    for place, message in said.items():
        with pytest.raises(InvalidInput, match=message):
            build_pyramid(place)


@pytest.mark.usefixtures("own_folder", "small_levels")
def test_outputs_say_how_they_are_coarsened() -> None:
    values = np.random.default_rng(0).integers(0, 5, (1, *SIZE)).astype("uint8")
    make("out.zarr", values, pyramid=False)
    zarr.open_array("out.zarr/0").attrs["threshold"] = "0.5"
    assert "by the most frequent label" in succeeds("pyramid", "out.zarr")
    assert "by means" in succeeds("pyramid", "out.zarr", "--values", "--overwrite")
