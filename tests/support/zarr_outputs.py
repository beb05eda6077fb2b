"""Small OME-Zarr outputs in two blocks, on disk and at URLs."""

from __future__ import annotations

from typing import Any

import fsspec
import numpy as np

from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.volumes.formats.zarr.output import ZarrOutput

PLACES = ("out.zarr", "memory://out.zarr")
SIZE = Vec3(3, 70, 9)
FIRST, SECOND = Box(Vec3(0, 0, 0), Vec3(3, 40, 9)), Box(Vec3(0, 40, 0), SIZE)


def new_output(place: str, **options: Any) -> ZarrOutput:
    return ZarrOutput(place, NewOutput(2, SIZE, **options))


def begun(place: str, **options: Any) -> ZarrOutput:
    output = new_output(place, **options)
    output.begin({"plan": "long", "voxel_offset": (1, 2, 3), "seconds": 0.0}, FIRST.size)
    return output


def write(output: ZarrOutput, box: Box, value: float) -> None:
    output.write(box, np.full((2, *box.size), value, np.float32))


def exists(place: str) -> bool:
    files, path = fsspec.core.url_to_fs(place)
    found: bool = files.exists(path)
    return found


def as_written(place: str) -> str:
    """Return the place where an output is written until it is whole."""
    return place if "://" in place else f"{place}.partial"
