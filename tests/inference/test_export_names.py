"""Names of channels in copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from command_line import succeeds, voxels
from numpy.typing import NDArray
from yaozarrs import validate_zarr_store

from znni.volumes.locate import open_volume

SIZE = (7, 20, 23)

pytestmark = pytest.mark.usefixtures("own_folder", "nothing_partial")


@pytest.mark.parametrize("source", ["named.zarr", "named.ome.tif"])
@pytest.mark.parametrize("target", ["copy.zarr", "copy.tif", "copy.h5"])
def test_names_of_channels_stay(source: str, target: str) -> None:
    values = np.stack([voxels(SIZE), np.full(SIZE, 7, np.uint8)])
    write_named(values)
    succeeds("export", source, target)
    assert open_volume(target).maps == ("nuclei", "µ membrane")
    succeeds("export", target, "one.zarr", "--channel", "µ membrane", "--pyramid")
    assert open_volume("one.zarr").maps == ("µ membrane",)
    validate_zarr_store("one.zarr")
    (channel,) = zarr.open_group("one.zarr").attrs["ome"]["omero"]["channels"]  # type: ignore[index, call-overload]
    assert channel["window"] == {"start": 7, "end": 8, "min": 7, "max": 8}
    for plain in ("plain.zarr", "plain.h5"):
        succeeds("export", target, plain, "--labels")
        assert open_volume(plain).maps == ()
    assert "maps 0 (nuclei), 1 (µ membrane)" in succeeds("info", target)


def write_named(values: NDArray[Any]) -> None:
    """Write values (c, z, y, x) with names of the channels, as an OME-TIFF and as an OME-Zarr."""
    names = ["nuclei", "µ membrane"]
    metadata = {"axes": "CZYX", "Channel": {"Name": names}}
    tifffile.imwrite("named.ome.tif", values, photometric="minisblack", metadata=metadata)
    axes = [{"name": name} for name in "czyx"]
    image = {"axes": axes, "datasets": [{"path": "0"}]}
    channels = {"channels": [{"label": name} for name in names]}
    ome = {"version": "0.5", "multiscales": [image], "omero": channels}
    zarr.create_group("named.zarr", attributes={"ome": ome}).create_array("0", data=values)


def test_the_range_of_a_map_is_that_of_its_finest_resolution() -> None:
    values = np.indices(SIZE).sum(axis=0).astype(np.uint8) % 2 * 200
    write_named(np.stack([values, values]))
    succeeds("export", "named.zarr", "fine.zarr", "--pyramid")
    channels = zarr.open_group("fine.zarr").attrs["ome"]["omero"]["channels"]  # type: ignore[index, call-overload]
    assert [(one["window"]["start"], one["window"]["end"]) for one in channels] == [(0, 200)] * 2


def test_a_map_without_numbers_has_a_range() -> None:
    values = np.full((1, *SIZE), np.nan, np.float32)
    metadata = {"axes": "CZYX", "Channel": {"Name": ["nothing"]}}
    tifffile.imwrite("none.ome.tif", values, photometric="minisblack", metadata=metadata)
    succeeds("export", "none.ome.tif", "none.zarr")
    validate_zarr_store("none.zarr")
    assert open_volume("none.zarr").maps == ("nothing",)
