"""Copies between all pairs of formats, opened by the formats' own libraries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any
from xml.etree import ElementTree

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import yaozarrs
import zarr
from numpy.typing import NDArray

import znni
from znni.core.volume import Grid

VALUES = np.arange(2 * 5 * 6 * 7).reshape(2, 5, 6, 7).astype(np.uint16)
SCALE, ORIGIN = (2.0, 0.5, 0.25), (4.0, -1.0, 1.5)
Seen = tuple[NDArray[Any], list[float], list[float], list[str]]

pytestmark = pytest.mark.usefixtures("own_folder", "nothing_partial")


def write_source(grid: Grid) -> None:
    """Write ``source.zarr``, an OME-Zarr of two channels."""
    units = [{"unit": unit} if unit else {} for unit in grid.units]
    space = [{"name": n, "type": "space"} | u for n, u in zip("zyx", units, strict=True)]
    places = [
        {"type": "scale", "scale": [1, *grid.scale]},
        {"type": "translation", "translation": [0, *grid.translation]},
    ]
    image = {
        "axes": [{"name": "c", "type": "channel"}, *space],
        "datasets": [{"path": "0", "coordinateTransformations": places}],
    }
    ome: Any = {"ome": {"version": "0.5", "multiscales": [image]}}
    group = zarr.create_group("source.zarr", attributes=ome)
    group.create_array("0", data=VALUES, dimension_names=list("czyx"))


def by_h5py(name: str) -> Seen:
    with h5py.File(name) as file:
        found, about = file["main"][()], file["main"].attrs
        units = about["voxel_units"].split(",")
        return found, list(about["voxel_size"]), list(about["voxel_origin"]), units


def by_zarr(name: str) -> Seen:
    yaozarrs.validate_zarr_store(name)
    group: Any = zarr.open_group(name, mode="r")
    image = group.attrs["ome"]["multiscales"][0]
    assert [axis["name"] for axis in image["axes"]] == list("czyx")
    (level,) = image["datasets"]
    scale, translation = level["coordinateTransformations"]
    units = [axis.get("unit", "") for axis in image["axes"][1:]]
    return group["0"][:], scale["scale"][1:], translation["translation"][1:], units


def by_tifffile(name: str) -> Seen:
    with tifffile.TiffFile(name) as file:
        assert file.series[0].axes == "CZYX"
        found, text = file.series[0].asarray(), str(file.ome_metadata)
    pixels: Any = ElementTree.fromstring(text).find("{*}Image/{*}Pixels")
    units = [pixels.get(f"PhysicalSize{axis}Unit", "") for axis in "ZYX"]
    plane = pixels.find("{*}Plane")
    return (
        found,
        [float(pixels.get(f"PhysicalSize{axis}", 1)) for axis in "ZYX"],
        [float(plane.get(f"Position{axis}")) for axis in "ZYX"],
        [{"µm": "micrometer", "pixel": ""}.get(unit, unit) for unit in units],
    )


def by_nibabel(name: str) -> Seen:
    image = nibabel.load(name)
    unit = {"micron": "micrometer", "unknown": ""}[image.header.get_xyzt_units()[0]]
    found = np.asarray(image.dataobj)[:, :, :, 0].T
    affine = image.affine
    assert not (affine[:3, :3] - np.diag(np.diag(affine)[:3])).any()
    np.testing.assert_allclose(image.header.get_zooms()[:3], np.diag(affine)[:3])
    scale = [float(each) for each in np.diag(affine)[2::-1]]
    return found, scale, [float(each) for each in affine[2::-1, 3]], [unit] * 3


READERS: dict[str, Callable[[str], Seen]] = {
    "h5": by_h5py, "zarr": by_zarr, "tif": by_tifffile, "nii": by_nibabel, "nii.gz": by_nibabel
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("scale", [SCALE, (1.0, 1.0, 1.0)])
@pytest.mark.parametrize("unit", ["micrometer", None])
def test_all_pairs_keep_values_spacing_units_and_origin(scale: Any, unit: str | None) -> None:
    write_source(Grid(scale, ORIGIN, (unit,) * 3))
    for first, second in product(READERS, repeat=2):
        if second == next(iter(READERS)):
            znni.export("source.zarr", f"a.{first}")
        znni.export(f"a.{first}", f"b.{second}", overwrite=True)
        values, found, origin, units = READERS[second](f"b.{second}")
        np.testing.assert_array_equal(values, VALUES)
        assert values.dtype == VALUES.dtype
        assert found == pytest.approx(scale), (first, second)
        assert origin == pytest.approx(ORIGIN), (first, second)
        assert units == [unit or ""] * 3, (first, second)


def test_numpy_files_keep_values_alone() -> None:
    write_source(Grid(SCALE, ORIGIN))
    for ending in READERS:
        znni.export("source.zarr", f"a.{ending}")
        znni.export(f"a.{ending}", "v.npy", overwrite=True)
        found = np.load("v.npy")
        np.testing.assert_array_equal(found, VALUES)
        assert found.dtype == VALUES.dtype
        znni.export("v.npy", f"b.{ending}")
        volume = znni.open_volume(f"b.{ending}")
        assert (volume.grid.scale, volume.grid.translation) == ((1, 1, 1), (0, 0, 0))
