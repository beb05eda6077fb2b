"""Copies of volumes and outputs in other formats."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import zarr
from command_line import read_main, refused, succeeds, voxels, write_volume
from interrupted_runs import Interrupted
from numpy.typing import NDArray

import znni
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.core.volume import Affine, Grid
from znni.inference import exporting
from znni.volumes.grid_attributes import in_unit
from znni.volumes.locate import open_volume
from znni.volumes.partial_file import PartialFile

SIZE = (7, 20, 23)
GRID = Grid((2.0, 0.5, 0.25), units=("micrometer",) * 3)
NAMES = ("v.h5", "v.zarr", "v.tif", "v.nii.gz")

pytestmark = pytest.mark.usefixtures("own_folder", "nothing_partial")


def all_of(name: str) -> NDArray[Any]:
    volume = open_volume(name)
    return volume.read(Box(Vec3(0, 0, 0), volume.size))


def write_source() -> NDArray[Any]:
    """Write ``volume.h5`` as PlantSeg and ilastik do, with the size of its voxels."""
    values = voxels(SIZE)
    write_volume(values)
    with h5py.File("volume.h5", "a") as file:
        file["raw"].attrs["element_size_um"] = GRID.scale
    return values


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_every_pair_keeps_values_and_spacing(first: str, second: str) -> None:
    values = write_source()
    succeeds("export", "volume.h5", first)
    target = second.replace("v.", "w.")
    assert succeeds("export", first, target) == f"{target}: 1 map of 7x20x23, uint8\n"
    np.testing.assert_array_equal(all_of(target)[0], values)
    grid = open_volume(target).grid
    assert grid.units == GRID.units
    np.testing.assert_allclose(grid.scale, GRID.scale, rtol=1e-6)


def test_other_libraries_read_the_copies() -> None:
    values = write_source()
    for name in NAMES:
        succeeds("export", "volume.h5", name)
    np.testing.assert_array_equal(tifffile.imread("v.tif"), values)
    np.testing.assert_array_equal(nibabel.load("v.nii.gz").get_fdata().T, values)
    np.testing.assert_array_equal(zarr.open_array("v.zarr/0", mode="r")[0], values)  # type: ignore[arg-type]
    with h5py.File("v.h5") as file:
        np.testing.assert_array_equal(file["main"][0], values)
        assert file["main"].attrs["element_size_um"].tolist() == [2, 0.5, 0.25]


def test_nifti_to_nifti_keeps_the_affine_of_a_region() -> None:
    affine = np.array([[-2, 0, 0, 90], [0, 0, 3, -126], [0, 2.5, 0, -72], [0, 0, 0, 1.0]])
    image = nibabel.Nifti1Image(voxels(SIZE).T, affine)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, "v.nii")
    for between in ("v.h5", "v.zarr", "v.tif"):
        succeeds("export", "v.nii", between)
        target = between.replace("v.", "of-") + ".nii.gz"
        succeeds("export", between, target, "--roi", "1:5,2:,3:")
        found = nibabel.load(target)
        moved = affine @ [3, 2, 1, 1]
        np.testing.assert_allclose(found.affine[:, 3], moved)
        np.testing.assert_array_equal(found.affine[:, :3], affine[:, :3])
        assert int(found.header["sform_code"]) == 2
        np.testing.assert_array_equal(found.get_fdata(), voxels(SIZE).T[3:, 2:, 1:5])
    succeeds("export", "v.nii", "part.nii.gz", "--roi", "1:5,2:,3:")
    succeeds("export", "part.nii.gz", "part.zarr")
    assert open_volume("part.zarr").grid.translation == (3, 5, 6), "its place in v.nii"
    assert "voxel_origin" in succeeds("info", "part.nii.gz")
    part = nibabel.load("part.nii.gz")
    part.affine[0, 3] += 7  # by another program, which keeps what it does not know
    nibabel.save(nibabel.Nifti1Image(part.get_fdata(), part.affine, part.header), "moved.nii")
    assert open_volume("moved.nii").grid.translation == (0, 0, 0)


def test_several_points_in_time_are_described() -> None:
    image = nibabel.Nifti1Image(np.zeros((5, 6, 7, 2), np.uint8), np.eye(4))
    image.header.set_xyzt_units("mm", "sec")
    nibabel.save(image, "times.nii")
    assert "at each of 2 points in time" in succeeds("info", "times.nii")


def test_networks_of_others_are_no_volumes() -> None:
    Path("net.onnx").write_bytes(b"")
    assert "onnxruntime" in refused("info", "net.onnx")  # reads it, or is to be installed


def test_zarr_to_zarr_keeps_the_origin() -> None:
    write_source()
    succeeds("export", "volume.h5", "v.zarr", "--roi", "1:,2:,4:")
    succeeds("export", "v.zarr", "w.zarr", "--roi", "1:,:,:")
    assert open_volume("w.zarr").grid == Grid(GRID.scale, (4, 1, 1), GRID.units)
    succeeds("export", "w.zarr", "w.tif")
    assert open_volume("w.tif").grid == Grid(GRID.scale, (4, 1, 1), GRID.units)


@pytest.mark.usefixtures("small_case", "fake_primitives")
@pytest.mark.parametrize("name", ["o.zarr", "o.tif", "o.nii.gz", "o.nrrd", "o.mha", "o.npy"])
def test_a_run_writes_what_its_output_is_exported_to(name: str) -> None:
    write_source()
    run = ("infer", "volume.h5", "--net", "tiny.yaml")
    succeeds(*run, "--out", "o.h5")
    assert succeeds(*run, "--out", name).startswith(f"{name}: ")
    np.testing.assert_array_equal(all_of(name), read_main("o.h5"))
    if name == "o.npy":
        return
    np.testing.assert_allclose(
        in_unit(open_volume(name).grid, "micrometer").scale, in_unit(GRID, "micrometer").scale
    )
    assert f"{name}.html" in succeeds("view", "volume.h5", name)
    assert "32 voxels" in succeeds("verify", name)


@pytest.mark.usefixtures("small_case", "fake_primitives")
def test_outputs_in_other_types_and_parts() -> None:
    succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "o.h5")
    values = read_main("o.h5")
    succeeds("export", "o.h5", "u.tif", "--dtype", "uint8", "--roi", "1:4,:,5:", "--channel", 1)
    stored = np.rint(values[1:, 1:4, :, 5:] * np.float32(255)).astype("uint8")
    np.testing.assert_array_equal(all_of("u.tif"), stored)
    volume: Any = open_volume("u.tif")
    assert volume.attribute("scale") == 1 / 255
    assert volume.attribute("voxel_offset") == [1, 2, 8]
    assert "1:4,2:17,8:19" in succeeds("view", "volume.h5", "u.tif")
    succeeds("export", "u.tif", "f.h5", "--dtype", "float32")
    np.testing.assert_allclose(read_main("f.h5"), stored / 255, atol=1e-7)

    succeeds("export", "o.h5", "l.zarr", "--labels")
    np.testing.assert_array_equal(all_of("l.zarr")[0], values.argmax(axis=0))
    succeeds("export", "o.h5", "t.nii", "--threshold", "0.5")
    np.testing.assert_array_equal(all_of("t.nii"), values > 0.5)
    succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "m.zarr", "--labels")
    np.testing.assert_array_equal(all_of("m.zarr"), all_of("l.zarr"))


def test_exported_arrays_and_narrower_integers() -> None:
    values = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    made = znni.export(values, "v.h5", dtype="uint8")
    assert str(made) == "v.h5: 2 maps of 3x4x5, uint8"
    np.testing.assert_array_equal(read_main("v.h5"), values)
    with pytest.raises(
        InvalidInput,
        match="0 to 255; give another type, such as dtype='int64' ",
    ):
        znni.export(values + 1000, "w.h5", dtype="uint8")
    with pytest.raises(InvalidInput, match="holds -1, and uint16 holds 0 to 65535"):
        znni.export(values - 1, "w.tif", dtype="uint16")
    assert not list(Path().glob("w*"))


def test_a_copy_that_stops_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    values = voxels((200, 70, 66))
    write_volume(values)

    def stop(done: int, total: int) -> None:
        if done > total / 2:
            raise Interrupted

    for name in ("v.zarr", "v.h5"):
        with pytest.raises(Interrupted):
            znni.export("volume.h5", name, progress=stop)
        assert Path(f"{name}.partial").exists()
        read: list[Box] = []
        with monkeypatch.context() as patch:
            patch.setattr(exporting._Copy, "read", noting(read))
            znni.export("volume.h5", name)
        assert 0 < sum(box.size.volume for box in read) < values.size / 2
        np.testing.assert_array_equal(all_of(name)[0], values)
    with pytest.raises(Interrupted):
        znni.export("volume.h5", "v.tif", progress=stop)
    assert not list(Path().glob("v.tif*"))


def test_a_copy_that_stops_when_it_has_its_name_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_source()
    take_name = PartialFile.take_name

    def stopped_later(file: PartialFile) -> None:
        take_name(file)
        raise KeyboardInterrupt

    monkeypatch.setattr(PartialFile, "take_name", stopped_later)
    with pytest.raises(KeyboardInterrupt) as stopped:
        znni.export("volume.h5", "v.tif")
    assert stopped.value.__notes__ == ["v.tif is complete"]
    np.testing.assert_array_equal(all_of("v.tif"), all_of("volume.h5"))


def noting(read: list[Box]) -> Callable[..., NDArray[Any]]:
    """Return the method that reads a box of a copy, which also notes it."""
    original = exporting._Copy.read

    def noted(copy: Any, box: Box, *rest: Any) -> NDArray[Any]:
        read.append(box)
        return original(copy, box, *rest)

    return noted


def test_a_region_beyond_a_volume_names_the_volume_alone() -> None:
    write_source()
    said = refused("export", "volume.h5", "v.tif", "--roi", "0:8,:,:").strip()
    assert said.endswith("is not within 0:7,0:20,0:23, the voxels of this 7x20x23 volume")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--roi", "0:8,:,:"), "roi 0:8,0:20,0:23 is not within 0:7,0:20,0:23"),
        (("--dtype", "complex64"), "dtype is 'complex64'; choose one of uint8"),
        (("--labels",), "has 1 map, whose labels need a threshold"),
        (("--labels", "--threshold", "1"), "without a threshold; leave out --threshold 1.0"),
        (("--channel", "1"), "volume.h5:/raw has 1 map; leave it out"),
        (("--time", "0"), "has no dataset with axes (t, z, y, x) or (t, c, z, y, x)"),
        (("--ram", "1MiB"), "an export needs 64 MiB beside the"),
        (("--ram", "16"), "16 is 16 bytes; did you mean 16GiB?"),
        (("--sharded",), "TIFF takes no --sharded"),
        (("--dataset", "none"), "has no dataset 'none'"),
    ],
)
def test_refused_copies(options: tuple[str, ...], said: str) -> None:
    write_source()
    assert said in refused("export", "volume.h5", "v.tif", *options)
    assert not list(Path().glob("v.*"))


def test_a_copy_does_not_replace_its_source_or_another_file() -> None:
    write_source()
    before = Path("volume.h5").read_bytes()
    assert "is the input" in refused("export", "volume.h5", "volume.h5", "--overwrite")
    Path("v.npy").touch()
    assert "exists; give --overwrite" in refused("export", "volume.h5", "v.npy")
    assert Path("volume.h5").read_bytes() == before


PEAK = """
import sys, znni, resource
from znni.machine.arrays import high_water_mark, resident_memory, reset_high_water_mark
import nibabel, tifffile, zarr, h5py
znni.export("small.h5", sys.argv[1], overwrite=True)
reset_high_water_mark()
before = resident_memory()
znni.export("large.h5", sys.argv[1], overwrite=True, ram=before + 2**27)
print((high_water_mark() - before) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v.zarr", "v.tif"])
def test_the_memory_of_a_copy_keeps_its_limit(name: str) -> None:
    for stem, depth in (("small", 64), ("large", 192)):
        with h5py.File(f"{stem}.h5", "w") as file:
            file.create_dataset("raw", (depth, 512, 512), "f4", chunks=(64, 64, 64), fillvalue=0.3)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, name],
        env=environment, check=True, text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert float(done.stdout) < 128  # of 192 MiB


def test_orientation_shifts_with_a_region() -> None:
    affine = Affine((1, 0, 0, 5, 0, 2, 0, 6, 0, 0, 3, 7), 1)
    assert affine.starting_at(Vec3(10, 20, 30)).rows[3::4] == (35, 46, 37)
