"""Every format is found by its ending and read correctly; a damaged file gives a one-line error."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile
from command_line import cut, read_main, refused, succeeds, voxels
from numpy.typing import NDArray

import znni
from znni.core.errors import InvalidInput, RunFailed
from znni.core.option_types import PointInTime
from znni.core.shapes import Box, Vec3
from znni.core.volume import Affine, Grid
from znni.volumes.formats import formats
from znni.volumes.formats.tiff.format import _complaints
from znni.volumes.locate import describe_volume, open_volume

SIZE = Vec3(5, 6, 7)
BOX = Box(Vec3(1, 2, 0), Vec3(4, 3, 7))
VALUES = np.random.default_rng(0).integers(0, 250, (3, *SIZE)).astype(np.uint8)


pytestmark = pytest.mark.usefixtures("own_folder")


def check(
    place: str,
    expected: NDArray[Any],
    dataset: str | None = None,
    time: PointInTime | None = None,
) -> None:
    """Check that a volume has these values (f, z, y, x), in parts and as a whole."""
    volume = open_volume(place, dataset, time=time)
    assert (volume.features, *volume.size) == expected.shape
    assert volume.itemsize == expected.itemsize
    box = Box(Vec3(0, 0, 0), volume.size)
    np.testing.assert_array_equal(volume.read(box), expected)
    np.testing.assert_array_equal(volume.read(BOX), expected[:, *BOX.slices])


def write_nifti(
    path: str, values: NDArray[Any], slope: float = 1.0, time: str | None = None
) -> None:
    """Write values (..., z, y, x) with voxels of 2 x 0.5 x 0.25 mm."""
    image = nibabel.Nifti1Image(values.T, np.diag([-0.25, 0.5, 2, 1]))
    image.header.set_xyzt_units("mm", time)
    image.header.set_slope_inter(slope, 0)
    nibabel.save(image, path)


def write_by_export(path: str, values: NDArray[Any]) -> None:
    """Write compressed values, which are read from the start."""
    znni.export(values, path, compression="gzip")


def write_tiff(path: str, values: NDArray[Any], **options: Any) -> None:
    tifffile.imwrite(path, values, photometric="minisblack", **options)


@pytest.mark.parametrize("dtype", ["uint8", ">u2", "float16", "float64", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy(dtype: str, order: Any) -> None:
    values = np.asarray(VALUES % 2, dtype, order)
    np.save("v.npy", values)
    check("v.npy", values)
    np.save("one.npy", values[0])
    check("one.npy", values[:1])
    assert describe_volume("v.npy") == f"v.npy\n  (3, 5, 6, 7) {values.dtype}"


def test_numpy_keeps_no_page_that_it_has_read() -> None:
    np.save("v.npy", VALUES)
    part = open_volume("v.npy").read(BOX)
    try:
        maps = Path("/proc/self/maps").read_text()
    except FileNotFoundError:
        pytest.skip("only Linux tells which files are mapped")
    assert "v.npy" not in maps
    assert part.flags.owndata or part.base.flags.owndata


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz", "V.NII"])
def test_nifti(name: str) -> None:
    write_nifti(name.lower(), VALUES[0])
    Path(name.lower()).rename(name)
    check(name, VALUES[:1])
    grid = open_volume(name).grid
    assert replace(grid, affine=None) == Grid((2, 0.5, 0.25), units=("millimeter",) * 3)
    assert grid.affine == Affine((-0.25, 0, 0, 0, 0, 0.5, 0, 0, 0, 0, 2, 0), 2)
    described = describe_volume(name)
    assert "(1, 5, 6, 7) uint8, voxels of (2 millimeter, 0.5 mill" in described
    assert "orientation LAS of its axes x, y and z, first voxel at (0, 0, 0) in" in described


def test_nifti_of_several_maps_and_of_scaled_values() -> None:
    write_nifti("maps.nii", VALUES[:, np.newaxis])
    check("maps.nii", VALUES)
    write_nifti("scaled.nii", VALUES[0], slope=0.5)
    check("scaled.nii", VALUES[:1] * 0.5)
    write_nifti("modalities.nii", VALUES)
    check("modalities.nii", VALUES)  # nothing says that the fourth axis is time
    third = open_volume("modalities.nii", time=2).read(BOX)
    np.testing.assert_array_equal(third, VALUES[2:, *BOX.slices])
    write_nifti("times.nii", VALUES, time="sec")
    with pytest.raises(InvalidInput, match=r"axes \(t, z, y, x\), and 3 points in time along t; a"):
        open_volume("times.nii")
    check("times.nii", VALUES, time="all")


@pytest.mark.parametrize(
    ("options", "axes"),
    [
        ({}, "QYX"),
        ({"metadata": {"axes": "ZYX"}}, "ZYX"),
        ({"imagej": True, "metadata": {"axes": "ZYX"}}, "ZYX"),
        ({"compression": "zlib", "tile": (16, 16)}, "QYX"),
        ({"rowsperstrip": 2}, "QYX"),
    ],
)
def test_tiff_stacks(options: dict[str, Any], axes: str) -> None:
    for values in (VALUES[0], VALUES[0].astype(np.float32)):
        write_tiff("v.tif", values, **options)
        check("v.tif", values[np.newaxis])
        assert f"0 {axes} (5, 6, 7) {values.dtype}" in describe_volume("v.tif")


def test_tiff_of_several_maps() -> None:
    moved = np.moveaxis(VALUES, 0, 1)  # ImageJ has z before the channels
    write_tiff("ij.tif", moved, imagej=True, metadata={"axes": "ZCYX"})
    check("ij.tif", VALUES)
    write_tiff("ome.ome.tif", VALUES, metadata={"axes": "CZYX"})
    check("ome.ome.tif", VALUES)
    tifffile.imwrite("rgb.tiff", np.moveaxis(VALUES, 0, -1).copy(), photometric="rgb")
    check("rgb.tiff", VALUES)
    write_tiff("times.tif", VALUES, imagej=True, metadata={"axes": "TZYX"})
    with pytest.raises(InvalidInput, match="3 points in time along t; a run takes one"):
        open_volume("times.tif")
    check("times.tif", VALUES, time="all")


def test_where_the_voxels_of_a_tiff_lie() -> None:
    sizes = {"axes": "ZYX", "PhysicalSizeZ": 40.0, "PhysicalSizeZUnit": "nm", "PhysicalSizeX": 0.5}
    write_tiff("ome.ome.tif", VALUES[0], metadata=sizes)
    grid = Grid((40, 1, 0.5), units=("nanometer", None, "micrometer"))
    assert open_volume("ome.ome.tif").grid == grid
    about = {"axes": "ZYX", "spacing": 2.5, "unit": "um"}
    write_tiff("ij.tif", VALUES[0], imagej=True, metadata=about, resolution=(4, 2))
    assert open_volume("ij.tif").grid == Grid((2.5, 0.5, 0.25), units=("micrometer",) * 3)
    assert "voxels of (2.5 micrometer, 0.5 micrometer, 0.25" in describe_volume("ij.tif")
    write_tiff("plain.tif", VALUES[0])
    assert open_volume("plain.tif").grid == Grid()


def test_a_series_of_several() -> None:
    with tifffile.TiffWriter("v.tif") as file:
        file.write(VALUES[0], photometric="minisblack")
        file.write(VALUES[1, :, 1:], photometric="minisblack")
    with pytest.raises(InvalidInput, match=r"0 QYX \(5, 6, 7\) uint8, 1 QYX .* as v.tif:/0$"):
        open_volume("v.tif")
    check("v.tif", VALUES[:1], "0")
    check("v.tif:1", VALUES[1:2, :, 1:])
    for dataset in ("2", "raw"):
        with pytest.raises(InvalidInput, match=f"has no dataset '{dataset}'; it has 0 QYX"):
            open_volume("v.tif", dataset)


def unknown_codec() -> None:
    """Write a TIFF said to be compressed by SGILOG, which no library reads here."""
    write_tiff("v.tif", VALUES[0])
    with tifffile.TiffFile("v.tif") as file:
        offsets = [page.tags["Compression"].valueoffset for page in file.pages]
    content = bytearray(Path("v.tif").read_bytes())
    for offset in offsets:
        content[offset : offset + 2] = (34676).to_bytes(2, "little")
    Path("v.tif").write_bytes(content)


FAULTS: dict[str, tuple[Callable[[], object], str, str]] = {
    "npy cut": (lambda: cut("v.npy", 0.9), "v.npy", "cannot be read as .npy: mmap length"),
    "npy empty": (lambda: cut("v.npy", 0), "v.npy", "cannot be read as .npy: .*; give a whole"),
    "npy objects": (
        lambda: np.save("v.npy", np.full(SIZE, "a", object)),
        "v.npy",
        "cannot be read as .npy: .*[Oo]bject",
    ),
    "npy complex": (
        lambda: np.save("v.npy", np.zeros(SIZE, complex)),
        "v.npy",
        "^v.npy holds complex128; a volume holds integers or floats; convert it$",
    ),
    "npy flat": (
        lambda: np.save("v.npy", np.zeros((5, 6))),
        "v.npy",
        r"^v.npy has shape \(5, 6\); a volume has axes \(z, y, x\) or \(f, z, y, x\)$",
    ),
    "npy none": (
        lambda: np.save("v.npy", np.zeros((5, 0, 6))),
        "v.npy",
        r"^v.npy has shape \(5, 0, 6\) and holds no voxels$",
    ),
    "npy missing": (lambda: Path("v.npy").unlink(), "v.npy", "no such file; check the path"),
    "npy dataset": (lambda: None, "v.npy:raw", "holds one array, and no dataset 'raw'"),
    "nifti cut": (lambda: cut("v.nii", 0.3), "v.nii", "cannot be read as NIfTI: .*; give a whole"),
    "nifti empty": (lambda: cut("v.nii", 0), "v.nii", "cannot be read as NIfTI: Empty file"),
    "nifti zipped": (lambda: cut("v.nii.gz", 0.5), "v.nii.gz", "cannot be read as NIfTI"),
    "nifti dataset": (lambda: None, "v.nii:raw", "holds one image, and no dataset 'raw'"),
    "tiff cut": (lambda: cut("v.tif", 0.4), "v.tif", "cannot be read as TIFF: .*; give a file"),
    "tiff empty": (lambda: cut("v.tif", 0), "v.tif", "cannot be read as TIFF: not a TIFF file"),
    "tiff codec": (
        unknown_codec,
        "v.tif",
        "compressed by SGILOG, .*; pip install imagecodecs, or save it",
    ),
    "folder": (lambda: (Path("v.npy").unlink(), Path("v.npy").mkdir()), "v.npy", "is a folder"),
    "URL": (lambda: None, "https://host/v.tif", "TIFF files are read from this machine only"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_read_is_refused(name: str) -> None:
    np.save("v.npy", VALUES)
    write_nifti("v.nii", VALUES[0])
    write_nifti("v.nii.gz", VALUES[0])
    write_tiff("v.tif", VALUES[0])
    spoil, place, said = FAULTS[name]
    spoil()
    with pytest.raises(InvalidInput, match=said):
        open_volume(place)


def test_a_file_that_was_cut_behind_its_header() -> None:
    write_nifti("v.nii", VALUES[0])
    cut("v.nii", 0.8)
    with pytest.raises(InvalidInput, match=r"v.nii: cannot be read as NIfTI: its last \d+ "):
        open_volume("v.nii")


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("dtype", ["u1", "u2", "f4"])
def test_tiffs_in_one_piece_are_mapped(dtype: str, byteorder: str) -> None:
    values = np.random.default_rng(0).integers(0, 200, (5, 6, 7)).astype(byteorder + dtype)
    tifffile.imwrite("v.tif", values, byteorder=byteorder)
    volume = open_volume("v.tif")
    assert (volume.read(BOX)[0] == values[BOX.slices]).all()
    cut("v.tif", 0.3)
    with pytest.raises(RunFailed, match=r"v.tif: cannot be read at 1:4,2:3,0:7: .*; check or copy"):
        volume.read(BOX)
    with pytest.raises(InvalidInput, match=r"v.tif: cannot be read as TIFF: "):
        open_volume("v.tif")


def test_a_damaged_tiff_is_refused_while_another_thread_opens_a_file() -> None:
    write_tiff("v.tif", VALUES[0])
    cut("v.tif", 0.4)
    elsewhere = list[str]()
    with _complaints(elsewhere), ThreadPoolExecutor(1) as other:
        error = other.submit(open_volume, "v.tif").exception()
    assert isinstance(error, InvalidInput)
    assert not elsewhere


def test_a_page_of_a_tiff_that_was_damaged() -> None:
    write_tiff("v.tif", VALUES[0], compression="zlib")
    with tifffile.TiffFile("v.tif") as file:
        page = file.pages[2]
        offset, count = page.dataoffsets[0], page.databytecounts[0]
    with Path("v.tif").open("r+b") as raw:
        raw.seek(offset)
        raw.write(b"\xff" * count)
    volume = open_volume("v.tif")
    with pytest.raises(RunFailed, match=r"v.tif: cannot be read at 1:4,2:3,0:7: .*; check or copy"):
        volume.read(BOX)
    assert (volume.read(Box(Vec3(0, 0, 0), Vec3(2, 6, 7))) == VALUES[:1, :2]).all()


@pytest.mark.parametrize(
    ("module", "place", "extra"),
    [("nibabel", "v.nii", "nifti"), ("tifffile", "v.tif", "tiff"), ("zarr", "v.tif", "tiff")],
)
def test_libraries_that_are_not_installed(
    module: str, place: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_nifti("v.nii", VALUES[0])
    write_tiff("v.tif", VALUES[0], compression="zlib")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        InvalidInput, match=rf"{module} is needed .*; pip install 'znni\[{extra}\]'"
    ):
        open_volume(place)


def test_the_table_of_formats() -> None:
    found = {form.name: form for form in formats()}
    images = {"MetaImage", "NIfTI", "NRRD"}
    assert set(found) == images | {"HDF5", "NumPy", "TIFF", "Zarr", "folder of slices"}
    endings = [ending for form in formats() for ending in form.endings]
    assert len(set(endings)) == len(endings)
    assert all(ending.startswith(".") and ending == ending.lower() for ending in endings)
    assert {name for name, form in found.items() if not form.writer} == {"folder of slices"}
    staged = {name for name, form in found.items() if form.writer and form.writer.is_staged}
    assert staged == {"MetaImage", "NIfTI", "NRRD", "NumPy", "TIFF"}


@pytest.mark.parametrize(
    "name", ["volume.npy", "volume.nii.gz", "volume.tif", "volume.nrrd", "volume.mha"]
)
@pytest.mark.usefixtures("small_case", "fake_primitives")
def test_a_run_over_any_format_gives_the_same(name: str) -> None:
    writers: dict[str, Callable[..., object]] = {
        "volume.npy": np.save,
        "volume.nii.gz": write_nifti,
        "volume.tif": write_tiff,
        "volume.nrrd": write_by_export,
        "volume.mha": write_by_export,
    }
    writers[name](name, voxels())
    succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5")
    assert succeeds("infer", name, "--net", "tiny.yaml").startswith("volume-tiny.h5: ")
    np.testing.assert_array_equal(read_main("volume-tiny.h5"), read_main("out.h5"))
    assert "memory" in succeeds("plan", "--net", "tiny.yaml", "--volume", name)
    assert "is the input" in refused("infer", name, "--net", "tiny.yaml", "--out", name)


def test_a_format_is_imported_when_a_file_of_it_is_met() -> None:
    code = (
        "import sys; from znni.volumes.locate import names_folder, stem, writer_at; "
        "assert stem('a.nii.gz') == 'a' and not names_folder('b.zarr'); "
        "print(*sys.modules); writer_at('c.npy'); print(*sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    before, after = (
        {
            name.removeprefix("znni.volumes.formats.")
            for name in line.split()
            if re.fullmatch(r"znni\.volumes\.formats\.\w+\.(format|writer)", name)
        }
        for line in shown.stdout.splitlines()
    )
    assert not before
    # Blocks of a .npy are gathered in a Zarr.
    assert after == {"numpy_file.writer", "zarr.format", "zarr.writer"}
