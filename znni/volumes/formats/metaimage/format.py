"""Reading MetaImage files as volumes, and the entry for this format."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from znni.core.option_types import Moment
from znni.core.volume import Grid
from znni.volumes.formats import Functions, describe_image
from znni.volumes.formats.metaimage import NAME
from znni.volumes.formats.metaimage.header import Header, read_header
from znni.volumes.grid_attributes import grid_of, in_unit
from znni.volumes.orientation import affine_from_lps, origin_of, steps_in_lps
from znni.volumes.stored import StoredVolume, check_no_dataset, local_file
from znni.volumes.values_in_file import ValuesInFile, damage_of, unpacked

NEAR = 1e-5  # share by which lengths in a header and in attributes may differ
MARK = b"\nznni:"  # behind the values, how an output was made begins like this


def open_metaimage(place: str, dataset: str | None, time: Moment | None = None) -> StoredVolume:
    """Open the image of a file, with its axes in the order (c, z, y, x).

    Voxels keep their stored order. The orientation of the file is kept for outputs. A fourth
    axis is maps, unless the user says time.

    Raises:
        InvalidInput: there is no such file, or it is no MetaImage, damaged, or of a kind that znni
            does not read; or a dataset was named.
    """
    check_no_dataset(place, dataset)
    with _damage(place):
        header = read_header(local_file(place, NAME))
        values = header.values(fourth="t" if time is not None or header.maps > 1 else "c")
        attributes = stored_in(header, values).get("attributes", {})
        return values.volume(place, _grid(header, attributes), attributes, time)


def _damage(place: str) -> AbstractContextManager[None]:
    return damage_of(place, NAME, ".mha or .mhd file")


def _grid(header: Header, attributes: dict[str, Any]) -> Grid:
    """Return the place of an image's voxels.

    Every header has directions. Only the attributes of an output say that nobody knows these.
    """
    if not header.has_spacing:
        return Grid()
    noted = grid_of(attributes)
    if noted != Grid() and noted.affine is None and _lies_at(header, noted):
        return noted
    unit = header.unit
    x, y, z = map(abs, map(float, header.spacing))
    affine = affine_from_lps(header.steps, header.origin)
    return Grid((z, y, x), origin_of(affine, (z, y, x), attributes), (unit, unit, unit), affine)


def _lies_at(header: Header, grid: Grid) -> bool:
    """Return whether a header has the steps and the origin of a grid."""
    steps, origin = steps_in_lps(in_unit(grid, "millimeter"))
    near = NEAR * np.abs(steps).max()
    same_steps = np.allclose(header.steps, steps, rtol=NEAR, atol=near)
    return same_steps and np.allclose(header.origin, origin, rtol=NEAR, atol=near)


def stored_in(header: Header, values: ValuesInFile) -> dict[str, Any]:
    """Return how an output was made, as it says behind its values."""
    with header.path.open("rb") as file:
        file.seek(header.behind(values))
        if file.read(len(MARK)) != MARK:
            return {}
        return dict(json.loads(file.read()))


def describe_metaimage(place: str, dataset: str | None) -> str:
    """Describe a file: its shape, type, voxels, orientation, and how outputs were made."""
    with _damage(place):
        header = read_header(local_file(place, NAME))
        time = 0 if header.maps > 1 and len(header.sizes) > 3 else None
    return describe_image(place, open_metaimage(place, dataset, time))


def unpack_metaimage(place: str, copy: Path) -> Path:
    """Return a file with the same image that is not compressed, as ``Functions`` has it."""
    with _damage(place):
        header = read_header(local_file(place, NAME))
        values = header.values(fourth="c")
    if not values.packed:
        return Path(place)
    return unpacked(place, copy.with_suffix(".mha"), header.plain, values)


def files_of_metaimage(place: str) -> list[Path]:
    """Return the file of the header, and that of the values if it is another one."""
    with _damage(place):
        header = read_header(local_file(place, NAME))
        return header.values(fourth="c").files(header.path)


FUNCTIONS = Functions(open_metaimage, describe_metaimage, unpack_metaimage, files_of_metaimage)
