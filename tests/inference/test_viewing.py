"""Tests of output pages: their content, and errors for volumes that cannot be shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
from command_line import LONG_VOLUME, read_main, refused, succeeds, voxels, write_volume
from interrupted_runs import interrupt
from pages import picture, read_page

import znni
from znni.core.png import png
from znni.core.shapes import Box, Vec3
from znni.inference.viewing.pictures import planes_in_grid, range_of
from znni.inference.viewing.region import least_steps, quick_steps, shown_box
from znni.inference.viewing.resolutions import Resolutions
from znni.volumes.array import ArrayVolume

pytestmark = pytest.mark.usefixtures("fake_primitives", "small_output")


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 7)])
def test_pictures_are_png(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(picture(png(values)).reshape(*shape, -1)[..., 0], values)


def test_a_page_holds_input_and_output() -> None:
    said = succeeds("view", "volume.h5", "out.h5")
    assert said.startswith("out.h5.html: 1,440 input voxels, 0:6,2:17,3:19\nnapari: znni view ")
    data, (given, *maps) = read_page("out.h5.html")
    assert (data["title"], data["start"], data["stride"]) == (
        "out.h5 over volume.h5",
        [0, 2, 3],
        [1, 1, 1],
    )
    assert [one["name"] for one in data["maps"]] == ["map 0 of 2", "map 1 of 2"]
    low, high = data["input"]["low"], data["input"]["high"]
    wanted = voxels()[:6, 2:17, 3:19].clip(low, high)
    np.testing.assert_allclose(low + given / 255 * (high - low), wanted, rtol=0, atol=0.5)
    for shades, values, limits in zip(maps, read_main("out.h5"), data["maps"], strict=True):
        assert (limits["low"], limits["high"]) == (0, 1)
        np.testing.assert_allclose(shades / 255, values, rtol=0, atol=0.51 / 255)


def test_a_page_needs_nothing_from_elsewhere() -> None:
    succeeds("view", "volume.h5", "out.h5")
    text = Path("out.h5.html").read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert set(re.findall(r'(?:src|href)="(.{5})', text)) == {"data:"}
    assert "default-src 'none'" in text


def test_part_of_it_at_a_stride() -> None:
    roi = ("--roi", "1:6,3:,:12")
    said = succeeds("view", "volume.h5", "out.h5", "--out", "p.html", "--stride", 2, *roi)
    assert "p.html: 630 input voxels, 1:6,3:17,3:12, one in 2 along each axis" in said
    data, (_, first, _) = read_page("p.html")
    assert (data["start"], data["stride"], data["size"]) == ([1, 3, 3], [2, 2, 2], [3, 7, 5])
    values = read_main("out.h5")[0, 1:6:2, 1:15:2, 0:9:2]
    np.testing.assert_allclose(first / 255, values, rtol=0, atol=0.51 / 255)


def test_scaled_values_of_uint8() -> None:
    succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "u.h5", "--dtype", "uint8")
    succeeds("view", "volume.h5", "u.h5")
    data, (_, first, _) = read_page("u.h5.html")
    assert data["maps"][0]["high"] == 1
    with h5py.File("u.h5") as file:
        np.testing.assert_array_equal(first, file["main"][0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "out.h5.html: exists; give --overwrite"),
        (("--out", "p.html", "--roi", "0:7,:,:"), "region 0:7,2:17,3:19 is not within"),
        (("--out", "p.html", "--roi", "3:3,:,:"), "is not within 0:6,2:17,3:19"),
        (("--out", "none/p.html"), "cannot be written"),
        (("--out", "p.html", "--dataset", "other"), "no dataset 'other'"),
        (("--out", "p.html", "--stride", "0"), "0 is less than 1"),
    ],
)
def test_what_cannot_be_shown(options: tuple[str, ...], said: str) -> None:
    Path("out.h5.html").write_text("precious")
    assert said in refused("view", "volume.h5", "out.h5", *options)
    assert Path("out.h5.html").read_text() == "precious"
    assert not Path("p.html").exists()


@pytest.mark.parametrize("extents", [(5, 6, 7), (70, 200, 230)])
def test_outputs_of_other_inputs(extents: tuple[int, int, int]) -> None:
    np.save("other.npy", np.zeros(extents, np.uint8))
    message = refused("view", "other.npy", "out.h5")
    found = "x".join(map(str, extents))
    assert f"the input is {found} voxels, and the output was computed from one of 7x20" in message
    assert not Path("out.h5.html").exists()


def test_outputs_of_other_programs() -> None:
    with h5py.File("out.h5", "r+") as file:
        del file["main"].attrs["source_extents"]
    np.save("small.npy", np.zeros((5, 6, 7), np.uint8))
    message = refused("view", "small.npy", "out.h5")
    assert "the output is 6x15x16 voxels from 0x2x3 on, and the input is 5x6x7" in message
    assert "no attribute 'voxel_offset' or origin" in refused("view", "volume.h5", "small.npy")
    np.save("same.npy", np.zeros((5, 6, 7), np.uint8))
    said = succeeds("view", "small.npy", "same.npy")
    assert "210 input voxels, 0:5,0:6,0:7\nnote: same.npy does not say what it was" in said


@pytest.mark.parametrize("named", [("two.h5", "--dataset", "b/raw"), ("two.h5:/b/raw",)])
def test_dataset_and_voxel_size_are_those_of_the_run(named: tuple[str, ...]) -> None:
    with h5py.File("two.h5", "w") as file:
        file["a"], file["b/raw"] = np.zeros((2, 3, 4)), voxels()
    size = ("--voxel-size", "5,1,2um")
    succeeds("infer", *named, "--net", "tiny.yaml", "--out", "second.h5", *size)
    said = znni.view("two.h5", "second.h5").napari
    assert "scale=[5.0, 1.0, 2.0]" in said
    assert "scale=[1.0, 5.0, 1.0, 2.0]" in said  # of two maps
    assert 'units=["micrometer", "micrometer", "micrometer"]' in said
    data, (given, *_) = read_page("second.h5.html")
    assert data["voxel"] == [5, 1, 2]
    low, high = data["input"]["low"], data["input"]["high"]
    wanted = voxels()[:6, 2:17, 3:19].clip(low, high)
    np.testing.assert_allclose(low + given / 255 * (high - low), wanted, rtol=0, atol=0.5)
    page = znni.view("two.h5:/b/raw", "second.h5", voxel_size="7um", overwrite=True)
    assert "scale=[7.0, 7.0, 7.0]" in page.napari


def test_a_file_of_another_name_may_have_its_own_datasets() -> None:
    with h5py.File("two.h5", "w") as file:
        file["a"], file["raw"] = np.zeros((2, 3, 4)), voxels()
    succeeds("infer", "two.h5:/raw", "--net", "tiny.yaml", "--out", "second.h5")
    np.save("copy.npy", voxels())
    assert "copy.npy" in succeeds("view", "copy.npy", "second.h5")


@pytest.mark.parametrize("name", ["long.h5", "long.zarr", "long.tif", "long.nii.gz"])
def test_unfinished_outputs_and_voxels_are_called_so(name: str) -> None:
    write_volume(voxels(LONG_VOLUME))
    interrupt(name)
    partial = f"{name}.partial"
    for command in (("view", "volume.h5"), ("info",)):
        said = refused(*command, name)
        assert said.startswith(f"{name}: is not finished; run the command that makes it again, ")
        assert said.endswith(f"give {partial} for what there is")
    said = succeeds("view", "volume.h5", partial, "--voxel-size", "5,1,2um")
    assert f"note: {partial} is not finished: blocks that are missing are shown as 0" in said
    data, (_, first, _) = read_page(f"{partial}.html")
    assert data["subtitle"].endswith("; voxels of 5 x 1 x 2 micrometer")
    assert data["start"] == [0, 2, 3]
    finished = first.reshape(len(first), -1).any(axis=1)
    assert finished[0]
    assert not finished[-1]
    assert "(2, 139, 15, 16) float32" in succeeds("info", partial)


def test_parts_of_other_volumes_lie_where_they_were_cut_out() -> None:
    np.save("labels.npy", voxels())
    for name in ("first.h5", "first.zarr", "first.tif", "first.nii"):
        succeeds("export", "labels.npy", name, "--roi", "0:6,4:18,5:")
        second = f"second-{name}"
        succeeds("export", name, second, "--roi", "1:5,2:,:9")
        said = succeeds("view", "volume.h5", second)
        assert f"{second}.html: 432 input voxels, 1:5,6:18,5:14\nnapari" in said
        data, (given, made) = read_page(f"{second}.html")
        wanted = voxels()[1:5, 6:18, 5:14]
        for described, shades in ((data["input"], given), (data["maps"][0], made)):
            low, high = described["low"], described["high"]
            values = low + shades / 255 * (high - low)
            np.testing.assert_allclose(values, wanted.clip(low, high), rtol=0, atol=0.5)


def test_parts_by_other_programs_are_placed_by_their_origin() -> None:
    grid = {"axes": "ZYX", "spacing": 2.0, "unit": "um"}
    resolution = (4, 4)
    tifffile.imwrite("in.tif", voxels(), imagej=True, metadata=grid, resolution=resolution)
    cut = np.ascontiguousarray(voxels()[1:4, 5:15, 6:])
    origin = {"zorigin": -1, "yorigin": -5, "xorigin": -6}
    about = grid | origin
    tifffile.imwrite("cut.tif", cut, imagej=True, metadata=about, resolution=resolution)
    said = succeeds("view", "in.tif", "cut.tif")
    assert "1:4,5:15,6:23\nnote: cut.tif is placed by its origin: its first voxel is 1x5x6" in said
    for wrong in ({"xorigin": -6.5}, {"xorigin": -60}, {"spacing": 2.1}):
        tifffile.imwrite("cut.tif", cut, imagej=True, metadata=about | wrong, resolution=resolution)
        assert "the output is 3x10x17 voxels" in refused("view", "in.tif", "cut.tif", "--overwrite")
    tifffile.imwrite("cut.tif", cut, imagej=True, metadata=grid, resolution=resolution)
    assert "or origin to tell where" in refused("view", "in.tif", "cut.tif", "--overwrite")


def test_pages_of_files_in_one_folder_have_names_of_their_own() -> None:
    with h5py.File("two.h5", "w") as file:
        file["raw/a"], file["raw/b"] = voxels(), voxels() // 2
    succeeds("export", "out.h5", "out.zarr")
    for name in ("out.h5", "out.zarr/", "two.h5:/raw/a", "two.h5:/raw/b"):
        succeeds("view", "volume.h5", name)
    pages = {"out.h5.html", "out.zarr.html", "two.h5-raw-a.html", "two.h5-raw-b.html"}
    assert {path.name for path in Path().glob("*.html")} == pages


@pytest.mark.parametrize("name", ["scale", "voxel_offset", "source_extents", "labels"])
def test_damaged_attributes(name: str) -> None:
    with h5py.File("out.h5", "r+") as file:
        del file["main"].attrs[name]
        file["main"].attrs[name] = "three"
    assert f"attribute '{name}' is 'three'" in refused("view", "volume.h5", "out.h5")


def test_huge_outputs_are_seen_in_their_middle() -> None:
    huge = Box(Vec3(10, 20, 30), Vec3(10, 20, 30) + Vec3(2000, 3000, 100))
    small = Box(Vec3(0, 0, 0), Vec3(400, 300, 100))
    one = Vec3(1, 1, 1)
    middle = Box(Vec3(914, 1424, 30), Vec3(1106, 1616, 130))
    assert shown_box(huge, None, None, lambda *_: None) == (middle, one)
    wider = Box(Vec3(626, 1136, 30), Vec3(1394, 1904, 130))
    assert shown_box(huge, None, 4, lambda *_: None) == (wider, one * 4)
    assert shown_box(huge, None, None, lambda *_: Vec3(11, 16, 2)) == (huge, Vec3(11, 16, 2))
    assert shown_box(small, None, None, lambda *_: one) == (small, Vec3(2, 1, 1))
    assert shown_box(small, None, 2, lambda *_: one) == (small, one * 2)
    with pytest.raises(znni.ZnniError, match=r"give stride=2 \(--stride 2\)"):
        shown_box(small, None, 1, lambda *_: one)


@pytest.mark.parametrize(
    ("size", "steps"),
    [
        ((192, 192, 192), (1, 1, 1)),
        ((15, 512, 512), (1, 1, 1)),  # a thin stack is shown as it is
        ((15, 768, 614), (1, 1, 1)),
        ((15, 769, 100), (1, 2, 1)),
        ((193, 193, 193), (2, 2, 2)),
        ((30, 2048, 2048), (1, 5, 5)),
        ((2000, 2000, 2000), (11, 11, 11)),
    ],
)
def test_thin_volumes_are_shown_at_more_of_their_resolution(size: Any, steps: Any) -> None:
    found = least_steps(Vec3(*size))
    assert found == Vec3(*steps)
    assert Vec3(*size).ceil_div(found).volume <= 192**3


def test_steps_at_which_all_can_be_read() -> None:
    factors = [Vec3(4, 4, 4), Vec3(2, 2, 2)]

    def cost(box: Box, step: Vec3) -> int:
        usable = (one for one in factors if one.within(step))
        return box.size.volume // max((one.volume for one in usable), default=1)

    box = Box(Vec3(0, 0, 0), Vec3(150, 4096, 4096))
    assert quick_steps(box, 1, factors, cost) == Vec3(4, 19, 19)
    assert quick_steps(box, 6, factors, cost) == Vec3(6, 19, 19)
    assert quick_steps(box, 1, [], cost) is None
    assert quick_steps(Box(Vec3(0, 0, 0), Vec3(20, 800, 190)), 1, [], cost) == Vec3(1, 2, 1)


def test_samples_are_read_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.inference.viewing.resolutions.SLAB", 200)
    values = voxels((2, 13, 11, 10))
    box = Box(Vec3(1, 2, 3), Vec3(13, 9, 10))
    volumes = Resolutions(ArrayVolume(values))
    for stride in (Vec3(1, 1, 1), Vec3(2, 3, 1), Vec3(3, 1, 2), Vec3(5, 20, 5)):
        found = volumes.sampled(1, box, stride)
        steps = tuple(slice(None, None, step) for step in stride)
        np.testing.assert_array_equal(found, values[1, 1:13, 2:9, 3:10][steps])


def test_shades() -> None:
    assert range_of(np.float32([0, 0.1]), output=True) == (0, 1)
    assert range_of(np.float32([0, 0.1]), output=False) == pytest.approx((0.0005, 0.0995))
    assert range_of(np.float32([5, 5, np.nan]), output=True) == (5, 6)
    assert range_of(np.float32([np.inf]), output=True) == (0, 1)
    grid = planes_in_grid(np.ones((5, 2, 3), np.uint8))
    assert grid.shape == (6, 6)
    assert grid.sum() == 5 * 2 * 3


def test_a_page_lies_beside_its_output() -> None:
    Path("results").mkdir()
    for name in ("out.h5", "out.zarr"):
        succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", f"results/{name}")
        assert f"results/{name}.html: " in succeeds("view", "volume.h5", f"results/{name}")
        assert Path(f"results/{name}.html").exists()
