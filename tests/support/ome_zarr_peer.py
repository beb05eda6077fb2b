"""Reading and writing of images by ome-zarr and its validator, in another environment.

    python ome_zarr_peer.py write IMAGE.npy       writes 0.4.zarr and 0.5.zarr, of axes (z, y, x)
    python ome_zarr_peer.py read PLACE.zarr...    prints a line of JSON for each

ome-zarr and ome-zarr-models need an older pydantic than the tests do. The tests therefore run this
with the Python that ``ZNNI_OME_ZARR_PYTHON`` names, from an environment with ``pip install
ome-zarr``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import zarr
from ome_zarr.format import FormatV04, FormatV05
from ome_zarr.io import parse_url
from ome_zarr.reader import Reader
from ome_zarr.writer import write_image
from ome_zarr_models import open_ome_zarr

SCALE = {"z": 2.0, "y": 0.5, "x": 0.25}
UNITS = dict.fromkeys(SCALE, "micrometer")


def write(path: str) -> None:
    """Write an image with ome-zarr, with a second resolution."""
    for version in (FormatV04(), FormatV05()):
        write_image(
            np.load(path),
            f"{version.version}.zarr",
            axes=list(SCALE),
            scale=SCALE,
            axes_units=UNITS,
            scale_factors=[{"z": 1, "y": 2, "x": 2}],
            fmt=version,
        )


def read(place: str) -> dict[str, Any]:
    """Read an image with ome-zarr, after ome-zarr-models has approved its metadata and arrays."""
    model = open_ome_zarr(zarr.open_group(place, mode="r"))
    (node,) = Reader(parse_url(place))()
    (transformations,) = node.metadata["coordinateTransformations"]
    np.save(f"{place}.npy", node.data[0].compute())
    return {
        "model": f"{type(model).__name__} {model.ome_zarr_version}",
        "name": node.metadata["name"],
        "axes": [axis["name"] for axis in node.metadata["axes"]],
        "units": [axis.get("unit") for axis in node.metadata["axes"]],
        "scale": transformations[0]["scale"],
        "translation": transformations[1]["translation"],
    }


if __name__ == "__main__":
    what, *places = sys.argv[1:]
    for place in places:
        if what == "write":
            write(place)
        else:
            print(json.dumps(read(place)), flush=True)
