"""Axes and resolutions that ilastik notes in HDF5 files."""

from __future__ import annotations

import json
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.core.volume import Grid
from znni.volumes.locate import describe_volume, open_volume

SIZE = Vec3(5, 6, 7)
BOX = Box(Vec3(1, 2, 0), Vec3(4, 3, 7))
VALUES = np.random.default_rng(0).integers(0, 250, (3, *SIZE)).astype(np.uint8)

pytestmark = pytest.mark.usefixtures("own_folder")


def write_tagged(axes: str, values: NDArray[Any], units: dict[str, str], size: float = 0) -> None:
    """Write ``v.h5`` as ilastik does, whose tags name the stored axes in order."""
    tags = [{"key": axis, "typeFlags": 2, "resolution": size, "description": ""} for axis in axes]
    with h5py.File("v.h5", "w") as file:
        stored = file.create_dataset("exported_data", data=values, chunks=True)
        stored.attrs["axistags"] = json.dumps({"axes": tags})
        if units:
            stored.attrs["axis_units"] = json.dumps(units)


@pytest.mark.parametrize("axes", ["czyx", "zyxc", "tzyxc", "xyzct", "cxyz", "tczyx"])
def test_axes_that_ilastik_names(axes: str) -> None:
    times = np.stack([VALUES, VALUES[::-1]] if "t" in axes else [VALUES])
    stored = times if "t" in axes else times[0]
    given = "tczyx" if "t" in axes else "czyx"
    write_tagged(axes, stored.transpose([given.index(axis) for axis in axes]), {})
    assert f"axes {' '.join(axes)}\n" in describe_volume("v.h5") + "\n"
    for time, values in enumerate(times):
        volume = open_volume("v.h5", time=time)
        np.testing.assert_array_equal(volume.read(BOX), values[:, *BOX.slices])
        assert volume.grid == Grid()
    if "t" in axes:
        with pytest.raises(InvalidInput, match="2 points in time along t; a run takes one"):
            open_volume("v.h5")


def test_ilastik_s_usual_export_has_five_axes() -> None:
    units = {"x": "um", "y": "µm", "z": "nm"}
    write_tagged("tzyxc", np.moveaxis(VALUES, 0, -1)[np.newaxis], units, 0.5)
    np.testing.assert_array_equal(open_volume("v.h5").read(BOX), VALUES[:, *BOX.slices])
    grid = Grid((0.5,) * 3, units=("nanometer", "micrometer", "micrometer"))
    assert open_volume("v.h5").grid == grid
    with h5py.File("v.h5", "a") as file:
        file["exported_data"].attrs["element_size_um"] = (2, 1, 1)
    assert open_volume("v.h5").grid == Grid((2, 1, 1), units=("micrometer",) * 3)
    with h5py.File("v.h5", "a") as file:  # tags of other axes than it has, and no JSON
        file["plain"] = VALUES
        file["plain"].attrs["axistags"] = '{"axes": [{"key": "x"}]}'
        file["exported_data"].attrs["axistags"] = "{"
        with pytest.raises(InvalidInput, match="has shape"):
            open_volume("v.h5", "exported_data")
    plain = open_volume("v.h5", "plain")
    np.testing.assert_array_equal(plain.read(BOX), VALUES[:, *BOX.slices])


def test_names_that_do_not_fit_count_as_none() -> None:
    with h5py.File("v.h5", "w") as file:
        file["main"] = VALUES
        for names, read in (
            (["a", "b"], ()),
            ([1, 2, 3], ()),
            ("abc", ()),
            (["a", "b", "c"], ("a", "b", "c")),
        ):
            file["main"].attrs["channel_names"] = names
            file.flush()
            assert open_volume("v.h5").maps == read
