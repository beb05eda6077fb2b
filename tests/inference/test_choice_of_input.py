"""One map, one point in time, and light and dark exchanged: what of a file is the input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import zarr
from command_line import (
    LONG_VOLUME,
    attributes,
    read_main,
    refused,
    succeeds,
    voxels,
    write_volume,
    znni,
)
from hypothesis import given
from hypothesis import strategies as st
from interrupted_runs import RUN as INTERRUPTED
from interrupted_runs import interrupt
from tiny_network import close, expected
from zarr_images import SIZE, VALUES, write_image

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.core.volume import Grid
from znni.inference.viewing import view
from znni.volumes.locate import open_volume

pytestmark = pytest.mark.usefixtures("fake_primitives", "small_case")

TIMES = np.random.default_rng(3).integers(0, 200, (3, 2, 7, 20, 23)).astype(np.uint8)
BOX = Box(Vec3(1, 2, 3), Vec3(5, 7, 11))
RUN = ("--net", "tiny.yaml", "--out", "out.h5", "--overwrite")


def write_five_axes() -> None:
    """Write TIMES (t, c, z, y, x) as an OME-Zarr, a TIFF and an HDF5 file."""
    root = zarr.create_group("five.zarr")
    root.create_array("0", shape=TIMES.shape, dtype="u1", chunks=(1, 1, 4, 9, 9))[...] = TIMES
    kinds = {"t": "time", "c": "channel"}
    axes = [{"name": name, "type": kinds.get(name, "space")} for name in "tczyx"]
    for axis in axes[2:]:
        axis["unit"] = "micrometer"
    scale = [{"type": "scale", "scale": [9, 1, 2, 0.5, 0.25]}]
    datasets = [{"path": "0", "coordinateTransformations": scale}]
    channels = [{"label": name} for name in ("nuclei", "membrane")]
    multiscales: Any = [{"axes": axes, "datasets": datasets}]
    ome: Any = {"version": "0.5", "multiscales": multiscales, "omero": {"channels": channels}}
    root.attrs["ome"] = ome
    tifffile.imwrite(
        "five.ome.tif",
        TIMES,
        photometric="minisblack",
        metadata={"axes": "TCZYX", "Channel": {"Name": ["nuclei", "membrane"]}},
    )
    write_volume(TIMES)
    Path("volume.h5").rename("five.h5")


@pytest.mark.parametrize("name", ["five.zarr", "five.ome.tif", "five.h5"])
def test_one_map_at_one_time(name: str) -> None:
    write_five_axes()
    whole = open_volume(name, time=2)
    assert (whole.features, whole.size) == (2, (7, 20, 23))
    np.testing.assert_array_equal(whole.read(BOX), TIMES[(2, slice(None), *BOX.slices)])
    one = open_volume(name, time=1, channel=1, invert=True)
    np.testing.assert_array_equal(one.read(BOX), 255 - TIMES[(1, slice(1, 2), *BOX.slices)])

    said = refused("infer", name, *RUN, "--time", 1)
    names = "" if name == "five.h5" else " (0 nuclei, 1 membrane)"
    assert f"takes 1; choose one of them{names}, such as --channel 0; axes" in said
    succeeds("infer", name, *RUN, "--time", 1, "--channel", 1)
    assert close(read_main("out.h5"), expected(TIMES[1, 1]))
    noted = attributes()
    assert (noted["time"], noted["channel"], bool(noted["invert"])) == ("1", "1", False)
    assert "32 voxels" in succeeds("verify", "out.h5")


def test_points_in_time_that_are_not_there() -> None:
    write_five_axes()
    said = refused("infer", "five.zarr", *RUN)
    assert "and 3 points in time along t; a run takes one: choose it with --time 0" in said
    said = refused("infer", "five.zarr", *RUN, "--time", 3)
    assert "--time 3: five.zarr:/0 has axes (t, c, z, y, x), and 3 points in time" in said
    assert said.endswith("give a number from 0 to 2")
    said = refused("infer", "five.zarr", *RUN, "--time", 0, "--channel", 2)
    assert said.endswith("has 2 maps; choose one of 0 (nuclei), 1 (membrane)")
    with pytest.raises(InvalidInput, match=r"shape \(7, 20, 23\); with time, its axes are \(t, z,"):
        open_volume(voxels(), time=0)


@pytest.mark.parametrize("axes", ["CYX", "TYX"])
def test_planes_that_are_called_channels_or_points_in_time(axes: str) -> None:
    values = voxels()
    tifffile.imwrite("planes.tif", values, imagej=True, metadata={"axes": axes})
    said = refused("infer", "planes.tif", *RUN)
    assert said.endswith("; if they are the planes of a stack, save that axis as z")
    tifffile.imwrite("stack.tif", tifffile.imread("planes.tif"))
    succeeds("infer", "stack.tif", *RUN)
    assert close(read_main("out.h5"), expected(values))


def test_points_in_time_that_are_the_maps_of_the_network(small_case: Path) -> None:
    """As the modalities of a NIfTI whose header calls its fourth axis time."""
    image = nibabel.Nifti1Image(TIMES[:, 0].T, np.diag([0.5, 0.5, 2, 1]))
    image.header.set_xyzt_units("mm", "sec")
    nibabel.save(image, "modalities.nii")
    text = (small_case / "tiny.yaml").read_text()
    (small_case / "three.yaml").write_text(f"in_features: 3\n{text}")
    run = ("--net", "three.yaml", "--random-weights", 2, "--overwrite")
    said = refused("infer", "modalities.nii", *run, "--out", "out.h5")
    assert said.endswith("or give --time all if they are the maps that the network takes")
    succeeds("infer", "modalities.nii", *run, "--out", "out.h5", "--time", "all")
    np.save("maps.npy", TIMES[:, 0])
    succeeds("infer", "maps.npy", *run, "--out", "same.h5")
    np.testing.assert_array_equal(read_main("out.h5"), read_main("same.h5"))
    assert attributes()["time"] == "all"
    assert "32 voxels" in succeeds("verify", "out.h5")
    assert "napari" in succeeds("view", "modalities.nii", "out.h5")
    planned = ("plan", "--net", "three.yaml", "--volume", "modalities.nii")
    assert "patch" in succeeds(*planned, "--time", "all")
    succeeds("export", "modalities.nii", "modalities.npy", "--time", "all")
    np.testing.assert_array_equal(np.load("modalities.npy"), TIMES[:, 0])
    np.testing.assert_array_equal(
        open_volume(TIMES[:, 0], time="all").read(BOX), TIMES[:, 0][:, *BOX.slices]
    )
    write_five_axes()
    said = refused("infer", "five.zarr", *run, "--out", "out.h5", "--time", "all")
    assert said.endswith("or one point, as --time 0")
    assert "2 maps at each point in time; choose one of them, as --channel 0" in said
    one = ("--time", "all", "--channel", "membrane")
    succeeds("infer", "five.zarr", *run, "--out", "out.h5", *one)
    np.save("maps.npy", TIMES[:, 1])
    succeeds("infer", "maps.npy", *run, "--out", "same.h5")
    np.testing.assert_array_equal(read_main("out.h5"), read_main("same.h5"))
    assert "32 voxels" in succeeds("verify", "out.h5")
    assert "napari" in succeeds("view", "five.zarr", "out.h5", "--overwrite")
    said = refused("infer", "five.zarr", *run, "--out", "out.h5", "--time", "first")
    assert said == "--time first: give a number from 0 on, or all"


@pytest.mark.parametrize("name", ["five.zarr", "five.ome.tif", "five.h5"])
def test_one_map_at_all_times(name: str) -> None:
    write_five_axes()
    found = open_volume(name, time="all", channel=1, invert=True)
    np.testing.assert_array_equal(found.read(BOX), 255 - TIMES[:, 1][:, *BOX.slices])
    assert (found.features, found.maps) == (3, ())
    with pytest.raises(InvalidInput, match="has 2 maps; choose one of 0"):
        open_volume(name, time="all", channel=2)
    if name != "five.h5":
        with pytest.raises(InvalidInput, match=r"no map of this name; choose one of 0 \(nuclei\)"):
            open_volume(name, time="all", channel="axons")
        succeeds("export", name, "times.npy", "--time", "all", "--channel", "membrane")
        np.testing.assert_array_equal(np.load("times.npy"), TIMES[:, 1])


def test_the_only_map_with_a_name_at_all_times() -> None:
    metadata = {"axes": "TCZYX", "Channel": {"Name": ["nuclei"]}}
    tifffile.imwrite("one.ome.tif", TIMES[:, :1], photometric="minisblack", metadata=metadata)
    found = open_volume("one.ome.tif", time="all", channel="nuclei")
    np.testing.assert_array_equal(found.read(BOX), TIMES[:, 0][:, *BOX.slices])


@given(st.sampled_from(["uint8", "int16", "uint16", "int64", "float32", "float64", "bool"]))
def test_light_and_dark_exchanged(dtype: str) -> None:
    values = (np.random.default_rng(0).random((2, 3, 4, 5)) * 100 - 20).astype(dtype)
    found = open_volume(values, invert=True).read(Box(Vec3(0, 0, 0), Vec3(3, 4, 5)))
    assert found.dtype == dtype
    if dtype.startswith("float"):
        np.testing.assert_array_equal(found, 1 - values)
    elif dtype == "bool":
        np.testing.assert_array_equal(found, ~values)
    else:
        limits = np.iinfo(dtype)
        np.testing.assert_array_equal(found, limits.min + (limits.max - values))


def test_an_inverted_run_is_that_of_the_inverted_volume() -> None:
    succeeds("infer", "volume.h5", *RUN, "--invert")
    inverted = read_main("out.h5")
    assert close(inverted, expected(255 - voxels()))
    assert "32 voxels" in succeeds("verify", "out.h5")
    assert bool(attributes()["invert"])


def test_a_run_of_another_map_does_not_go_on_with_this_one(long_case: Path) -> None:
    assert long_case
    write_volume(np.stack([voxels(LONG_VOLUME)] * 2))  # no value tells them apart
    interrupt("out.h5", channel=0)
    said = refused(*INTERRUPTED, "--out", "out.h5", "--channel", 1)
    assert "of another run, which differs in the channel (then: 0; now: 1); give" in said
    succeeded = znni(*INTERRUPTED, "--out", "out.h5", "--channel", 0)
    assert succeeded.code == 0


def test_where_voxels_of_hdf5_lie() -> None:
    write_volume(voxels())
    assert open_volume("volume.h5").grid == Grid()
    with h5py.File("volume.h5", "a") as file:
        file.attrs["element_size_um"] = (0.04, 0.004, 0.004)
    grid = Grid((0.04, 0.004, 0.004), units=("micrometer",) * 3)
    assert open_volume("volume.h5").grid == grid
    with h5py.File("volume.h5", "a") as file:
        file["raw"].attrs["element_size_um"] = (2, 1, 1)
    assert open_volume("volume.h5").grid.scale == (2, 1, 1)
    assert "voxels of (2 micrometer, 1 micrometer, 1 micro" in succeeds("info", "volume.h5")
    succeeds("infer", "volume.h5", *RUN)
    assert attributes()["element_size_um"].tolist() == [2, 1, 1]
    found = open_volume("out.h5").grid
    assert (found.scale, found.translation) == ((2, 1, 1), (0, 2, 3))
    assert "scale=[1.0, 2.0, 1.0, 1.0]" in view("volume.h5", "out.h5").napari


@pytest.mark.parametrize("wrong", ["a", (1, 2), (0, 1, 1), (1, -1, 1)])
def test_attributes_of_another_meaning_are_ignored(wrong: Any) -> None:
    with h5py.File("volume.h5", "a") as file:
        file["raw"].attrs["element_size_um"] = wrong
        file["raw"].attrs["voxel_size"] = wrong
    assert open_volume("volume.h5").grid == Grid()


def test_levels_of_an_image_with_time() -> None:
    write_image("v.zarr")
    assert open_volume("v.zarr", time=0).size == SIZE
    assert open_volume("v.zarr:/1", channel=2).features == 1
    box = Box(Vec3(0, 0, 0), Vec3(*SIZE))
    np.testing.assert_array_equal(open_volume("v.zarr", channel=2).read(box)[0], VALUES[2])


@pytest.mark.parametrize(
    ("names", "likely"),
    [
        (("labels/cells", "raw"), "/raw"),
        (("a", "b"), "/a"),
        (("prediction", "volumes/em"), "/volumes/em"),
        (("x", "y:int64", "z:uint8"), "/x"),
        (("x:int64", "y:int64", "z:uint8"), "/z"),
    ],
)
def test_the_likely_image_is_suggested(names: tuple[str, ...], likely: str) -> None:
    with h5py.File("several.h5", "w") as file:
        for name in names:
            path, _, dtype = name.partition(":")
            file.create_dataset(path, data=np.zeros((3, 4, 5), dtype or "uint8"))
    said = refused("infer", "several.h5", *RUN)
    assert said.endswith(f"name one, as several.h5:{likely}")


@pytest.mark.parametrize("name", ["five.zarr", "five.ome.tif"])
def test_maps_are_chosen_by_their_names(name: str) -> None:
    write_five_axes()
    assert "    maps 0 (nuclei), 1 (membrane)" in succeeds("info", name)
    one = ("--time", "2", "--channel")
    succeeds("export", name, "named.npy", *one, "membrane")
    np.testing.assert_array_equal(np.load("named.npy")[0], TIMES[2, 1])
    succeeds("infer", name, *RUN, *one, "membrane")
    assert attributes()["channel"] == "1"
    succeeds("view", name, "out.h5")
    assert "channel 1 (membrane); point in time 2" in Path("out.h5.html").read_text()
    said = refused("export", name, "other.npy", *one, "cells")
    assert "has no map of this name; choose one of 0 (nuclei), 1 (membrane)" in said
    several = ("infer", name, "--net", "tiny.yaml", "--out", "out/", "--suffix", "-m.h5")
    succeeds(*several, *one, "membrane")
    with h5py.File(next(Path("out").iterdir())) as file:
        np.testing.assert_array_equal(file["main"][:], read_main("out.h5"))
    values = open_volume(name, time=2, channel="membrane").read(Box(Vec3(0, 0, 0), Vec3(7, 20, 23)))
    np.testing.assert_array_equal(values[0], TIMES[2, 1])
    assert "output voxels" in succeeds("plan", "--net", "tiny.yaml", "--volume", name, *one, 1)


def test_names_of_maps_where_there_are_none() -> None:
    said = refused("export", "volume.h5", "other.npy", "--channel", "nuclei")
    assert "maps of volume.h5:/raw have no names; give a number" in said
