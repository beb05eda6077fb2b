"""Reading NRRD files as volumes, and the entry for this format."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from znni.core.option_types import Moment
from znni.core.volume import Grid
from znni.volumes.formats import Functions, describe_image
from znni.volumes.formats.nrrd import NAME
from znni.volumes.formats.nrrd.header import Header, read_header
from znni.volumes.grid_attributes import grid_of
from znni.volumes.orientation import affine_from_lps, origin_of
from znni.volumes.stored import StoredVolume, check_no_dataset, local_file
from znni.volumes.values_in_file import damage_of, unpacked

KEY = "znni"  # under which an output notes how it was made


def open_nrrd(place: str, dataset: str | None, time: Moment | None = None) -> StoredVolume:
    """Open the image of a file, with its axes in the order (c, z, y, x).

    Voxels keep their stored order. The orientation of the file is kept for outputs.

    Raises:
        InvalidInput: there is no such file, or it is not NRRD, damaged, or of a kind that znni does
            not read; or a dataset was named.
    """
    check_no_dataset(place, dataset)
    with _damage(place):
        header = read_header(local_file(place, NAME))
        attributes = stored_in(header).get("attributes", {})
        return header.values.volume(place, _grid(header, attributes), attributes, time)


def _damage(place: str) -> AbstractContextManager[None]:
    return damage_of(place, NAME, ".nrrd or .nhdr file")


def _grid(header: Header, attributes: dict[str, Any]) -> Grid:
    """Return the place of an image's voxels."""
    steps = header.steps
    if steps is None:
        known = header.spacings
        z, y, x = (known.get(axis, 1.0) for axis in "zyx")
        if (z, y, x) == (1.0, 1.0, 1.0) and not known:
            return Grid()
        noted = grid_of(attributes)
        return Grid((z, y, x), noted.translation, header.units)
    x, y, z = (float(np.sqrt(np.square(step).sum())) for step in steps)
    affine = affine_from_lps(steps, header.origin)
    return Grid((z, y, x), origin_of(affine, (z, y, x), attributes), header.units, affine)


def stored_in(header: Header) -> dict[str, Any]:
    """Return how an output was made, as it says in its header."""
    try:
        return dict(json.loads(header.keys.get(KEY, "{}").replace("\\\\", "\\")))
    except ValueError:  # a key of another program
        return {}


def describe_nrrd(place: str, dataset: str | None) -> str:
    """Describe a file: its shape, type, voxels, orientation, and how outputs were made."""
    with _damage(place):
        header = read_header(local_file(place, NAME))
        moments = dict(zip(header.axes, header.sizes, strict=True)).get("t", 1)
    volume = open_nrrd(place, dataset, 0 if moments > 1 else None)
    return describe_image(place, volume, moments)


def unpack_nrrd(place: str, copy: Path) -> Path:
    """Return a file with the same image that is not compressed, as ``Functions`` has it."""
    with _damage(place):
        header = read_header(local_file(place, NAME))
        values = header.values
    if not values.packed:
        return Path(place)
    return unpacked(place, copy.with_suffix(".nrrd"), header.plain, values)


def files_of_nrrd(place: str) -> list[Path]:
    """Return the file of the header, and that of the values if it is another one."""
    with _damage(place):
        header = read_header(local_file(place, NAME))
        return header.values.files(header.path)


FUNCTIONS = Functions(open_nrrd, describe_nrrd, unpack_nrrd, files_of_nrrd)
