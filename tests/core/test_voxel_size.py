"""Extents of voxels: as users give them, and as plain TIFF notes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile
import zarr
from command_line import LONG_VOLUME, attributes, refused, succeeds, voxels, write_volume
from interrupted_runs import RUN as INTERRUPTED
from interrupted_runs import interrupt, resumed
from numpy.testing import assert_allclose

import znni as package
from znni.core.errors import InvalidInput
from znni.core.logged import warn_once
from znni.core.volume import Grid
from znni.core.voxel_size import VoxelSize, differ, trained_size, voxel_size
from znni.inference.viewing import viewer_program
from znni.volumes.locate import open_volume

pytestmark = pytest.mark.usefixtures("fake_primitives", "small_case")

RUN = ("--net", "tiny.yaml", "--overwrite")
MICROMETERS = ("micrometer",) * 3


@pytest.mark.parametrize(
    ("text", "extents", "unit"),
    [
        ("0.5,0.1,0.2um", (0.5, 0.1, 0.2), "micrometer"),
        ("30, 4, 4.5 nm", (30, 4, 4.5), "nanometer"),
        ("30x4x4nm", (30, 4, 4), "nanometer"),
        ("40nm", (40, 40, 40), "nanometer"),
        ("1e-3,.5,2.mm", (0.001, 0.5, 2), "millimeter"),
        ("1,1,2 µm", (1, 1, 2), "micrometer"),
        ("1,1,2 micrometers", (1, 1, 2), "micrometer"),
        ("2,1,1", (2, 1, 1), None),
    ],
)
def test_extents_are_read(text: str, extents: Any, unit: str | None) -> None:
    found = voxel_size(text)
    assert (found.extents, found.unit) == (extents, unit)


@pytest.mark.parametrize("text", ["any,0.5,2mm", "any,0.5,2", "0.5,2,anymm", "1,any,any"])
def test_a_network_may_take_voxels_of_any_extent_along_an_axis(text: str) -> None:
    assert trained_size(text).text.replace("millimeter", "mm") == text


def test_free_axes_are_not_compared() -> None:
    trained = trained_size("any,0.5,2")
    assert str(trained) == "any, 0.5, 2"
    assert trained.over((7.0, 8.0, 9.0)) == VoxelSize((7.0, 0.5, 2.0))
    assert not differ(trained, Grid((7.0, 0.5, 2.0)))
    assert differ(trained, Grid((0.5, 7.0, 2.0)))
    with pytest.raises(InvalidInput, match="no size of a voxel"):
        trained_size("any")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2", "no size of a voxel"),
        ("1,2,3,4", "no size of a voxel"),
        ("wide", "no size of a voxel"),
        ("-1,1,1um", "no size of a voxel"),
        ("", "no size of a voxel"),
        ("0,1,1um", "a voxel of no extent"),
        ("1e999um", "a voxel of no extent"),
        ("1,1,1 parsec", "unknown unit 'parsec'; use one of nm, um"),
    ],
)
def test_other_texts_are_errors(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        open_volume(np.zeros((3, 3, 3)), voxel_size=text)
    assert said in refused("export", "volume.h5", "copy.npy", f"--voxel-size={text}")


def test_volumes_begin_as_many_voxels_from_0_and_the_unit_of_the_file_holds() -> None:
    grid = Grid((2, 2, 2), (1000, 500, 0), ("nanometer",) * 3)
    assert voxel_size("4,5,6").given_to(grid) == Grid((4, 5, 6), (2000, 1250, 0), grid.units)
    found = voxel_size("4,5,6um").given_to(grid)
    assert found.units == MICROMETERS
    assert_allclose(found.translation, (2000, 1250, 0))


def test_cut_outs_of_a_corrected_size_lie_where_pages_show_them() -> None:
    np.save("in.npy", voxels())
    size = ("--voxel-size", "10,4,5um")
    succeeds("infer", "in.npy", *RUN, "--out", "out.tif", "--roi", "1:6,4:16,4:18")
    succeeds("export", "out.tif", "copy.tif", *size)
    assert_grid(open_volume("copy.tif").grid, (10, 4, 5), (10, 16, 20))
    program = viewer_program("napari", "in.npy", "copy.tif", voxel_size=size[1])
    assert "translate=[0.0, 10.0, 16.0, 20.0]" in program
    assert "is a copy that znni export has made of out.tif" in refused("verify", "copy.tif")


@pytest.mark.parametrize("name", ["out.h5", "out.zarr", "out.tif", "out.nii"])
def test_outputs_and_copies_have_it(name: str) -> None:
    np.save("in.npy", voxels())
    size = ("--voxel-size", "0.5,0.1,0.2um")
    succeeds("infer", "in.npy", *RUN, *size, "--out", name)
    place = (0, 2 * 0.1, 3 * 0.2)  # the first voxel with its whole context
    assert_grid(open_volume(name).grid, (0.5, 0.1, 0.2), place)
    succeeds("export", "in.npy", f"copy-{name}", *size)
    assert_grid(open_volume(f"copy-{name}").grid, (0.5, 0.1, 0.2), (0, 0, 0))


def assert_grid(found: Grid, scale: Any, translation: Any) -> None:
    assert found.units == MICROMETERS
    assert_allclose(found.scale, scale, rtol=1e-6)
    assert_allclose(found.translation, translation, rtol=1e-6)


def test_pages_have_the_shape_of_the_voxels() -> None:
    np.save("in.npy", voxels())
    succeeds("infer", "in.npy", *RUN, "--out", "out.h5")
    succeeds("view", "in.npy", "out.h5", "--voxel-size", "0.4,0.1,0.2um")
    shown = viewer_program("napari", "in.npy", "out.h5", voxel_size="0.4,0.1,0.2um")
    content = re.search(r"const data = (\{.*\});", Path("out.h5.html").read_text())
    assert content
    assert json.loads(content[1])["voxel"] == [4, 1, 2]
    assert "scale=[0.4, 0.1, 0.2]" in shown
    assert "translate=[0.0, 0.0, 0.2, 0.6]" in shown  # the output has two maps


def test_orientation_follows() -> None:
    affine = np.array([[0, 0, 3.0, 10], [0, -2, 0, 20], [1, 0, 0, 30], [0, 0, 0, 1]])
    image = nibabel.Nifti1Image(voxels().T, affine)
    image.header.set_xyzt_units("mm")
    image.to_filename("in.nii")
    succeeds("export", "in.nii", "copy.nii", "--voxel-size", "6,2,0.5")
    written = nibabel.load("copy.nii")
    expected = affine @ np.diag([0.5, 1, 2, 1])
    assert_allclose(written.affine, expected)
    succeeds("export", "in.nii", "small.nii", "--voxel-size", "6,2,0.5nm")
    written = nibabel.load("small.nii")
    assert written.header.get_xyzt_units()[0] == "micron"
    assert_allclose(written.header.get_zooms(), (0.0005, 0.002, 0.006), rtol=1e-6)
    assert_allclose(written.affine[:3, 3], (10_000, 20_000, 30_000))


def test_orientations_without_a_unit_begin_as_many_voxels_away() -> None:
    np.save("in.npy", voxels())
    succeeds("infer", "in.npy", *RUN, "--out", "out.nii", "--roi", "1:6,4:16,5:18")
    assert open_volume("out.nii").grid.affine is not None
    found = open_volume("out.nii", voxel_size="40,10,20nm").grid
    assert_allclose(found.translation, (40, 40, 100))
    assert found.affine
    assert_allclose(np.reshape(found.affine.rows, (3, 4))[:, 3], (100, 40, 40), atol=1e-9)


def test_coarser_resolutions_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.formats.zarr.pyramid.SMALLEST", 8)
    values = np.zeros((64, 64, 64), np.uint8)
    np.save("in.npy", values)
    succeeds("export", "in.npy", "in.zarr", "--voxel-size", "1,1,1um", "--pyramid")
    volume = open_volume("in.zarr", voxel_size="40,10,20nm")
    plain = open_volume("in.zarr")
    assert len(plain.coarser()) == len(volume.coarser()) > 0
    for fine, found in zip(plain.coarser(), volume.coarser(), strict=True):
        times = np.array([40, 10, 20])
        assert_allclose(found.grid.scale, times * fine.grid.scale)
        assert_allclose(found.grid.translation, times * fine.grid.translation)
        assert found.grid.units == ("nanometer",) * 3


def test_a_run_with_another_size_is_not_gone_on_with(caplog: pytest.LogCaptureFixture) -> None:
    write_volume(voxels(LONG_VOLUME))
    interrupt("out.h5", voxel_size="40nm")
    run = (*INTERRUPTED, "--out", "out.h5", "--voxel-size")
    assert "the voxel size (then: 40, 40, 40 nanometer; now: 50, 50, 50 nanometer)" in refused(
        *run, "50nm"
    )
    resumed(caplog, "out.h5", "--voxel-size", "40,40,40 nm")
    assert_allclose(attributes()["voxel_size"], (40, 40, 40))


@pytest.mark.parametrize(
    ("resolution", "unit", "extents"),
    [
        ((1e5, 5e4), "CENTIMETER", (0.1, 0.2, 0.1)),
        ((127_000, 254_000), "INCH", (0.2, 0.1, 0.2)),
        ((1000, 1000), "MILLIMETER", (1, 1, 1)),
    ],
)
def test_resolutions_of_plain_tiff_are_read(resolution: Any, unit: str, extents: Any) -> None:
    tifffile.imwrite("in.tif", voxels(), resolution=resolution, resolutionunit=unit)
    assert_grid(open_volume("in.tif").grid, extents, (0, 0, 0))


@pytest.mark.parametrize(
    "options",
    [
        {"resolution": (72, 72), "resolutionunit": "INCH"},
        {"resolution": (118.11, 118.11), "resolutionunit": "CENTIMETER"},  # 300 pixels an inch
        {"resolution": (5, 5), "resolutionunit": "NONE"},
        {"resolution": (1, 1), "resolutionunit": "CENTIMETER"},
        {"resolution": (1e5, 72 / 2.54), "resolutionunit": "CENTIMETER"},
        {"resolution": (0, 0), "resolutionunit": "INCH"},
        {},
    ],
)
def test_resolutions_of_screens_and_printers_say_nothing(options: Any) -> None:
    tifffile.imwrite("in.tif", voxels(), **options)
    assert open_volume("in.tif").grid == Grid()
    assert not open_volume("in.tif").assumed


def test_imagej_counts_in_inches_too() -> None:
    about = {"axes": "ZYX", "spacing": 0.01, "unit": "inch"}
    tifffile.imwrite("in.tif", voxels(), imagej=True, metadata=about, resolution=(254, 508))
    assert_grid(open_volume("in.tif").grid, (254, 50, 100), (0, 0, 0))


def test_an_assumed_distance_of_planes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tifffile.imwrite("in.tif", voxels(), resolution=(1e5, 1e5), resolutionunit="CENTIMETER")
    command = ("infer", "in.tif", *RUN, "--out", "out.zarr")
    succeeds(*command)
    (warned,) = caplog.messages
    assert "0.1 micrometers are assumed" in warned
    assert "--voxel-size 0.3,0.1,0.1um" in warned
    caplog.clear()
    warn_once.cache_clear()
    succeeds(*command, "--voxel-size", "0.3,0.1,0.1um")
    assert not caplog.messages
    group: Any = zarr.open_group("out.zarr", mode="r")
    steps = group.attrs["ome"]["multiscales"][0]["datasets"][0]["coordinateTransformations"]
    assert steps[0]["scale"] == [1, 0.3, 0.1, 0.1]
    tifffile.imwrite("plane.tif", voxels()[0], resolution=(1e5, 1e5), resolutionunit="CENTIMETER")
    package.export("plane.tif", "plane.npy")
    assert not open_volume("plane.tif").assumed
