"""Reading NIfTI files as volumes, and the entry for this format."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from zlib_ng import gzip_ng

from znni.core.errors import InvalidInput
from znni.core.option_types import Moment
from znni.core.volume import Affine, Grid
from znni.volumes.formats import Functions, describe_image, library
from znni.volumes.formats.nifti import NAME
from znni.volumes.mapped_array import MappedArray
from znni.volumes.named_axes import NamedAxes
from znni.volumes.orientation import origin_of
from znni.volumes.stored import (
    StoredVolume,
    check_no_dataset,
    decompressed,
    errors_as,
    local_file,
    reason,
)

UNITS = {"meter": "meter", "mm": "millimeter", "micron": "micrometer"}
COMMENT = 6  # NIfTI's number of a header extension that is a comment
MARK = "znni:"  # a comment with an output's attributes begins like this
COPIED = 2**20  # bytes at a time that are decompressed
AXES = "xyztc"  # a file has the first three to five of them
MAPS_FOURTH = "xyzc"  # those of a file that says nothing about time


def _mapped(path: Path, image: Any) -> MappedArray | None:
    """Return the values of a file as it lies on the disk, last axis first, which threads may read.

    None if the file is compressed, or its values are scaled.
    """
    stored = image.dataobj
    if path.suffix == ".gz" or (stored.slope, stored.inter) != (1, 0):
        return None
    return MappedArray(path, stored.dtype, stored.offset, image.shape[::-1])


class _Scaled:
    """The true values of an image: stored values times its slope, plus its intercept."""

    def __init__(self, image: Any) -> None:
        self._stored = image.dataobj
        self.shape = tuple(image.shape)
        plain = (self._stored.slope, self._stored.inter) == (1, 0)
        self.dtype = np.dtype(self._stored.dtype if plain else np.float64)

    def __getitem__(self, key: Any, /) -> NDArray[Any]:
        return np.asarray(self._stored[key], self.dtype)


def _damage(place: str) -> AbstractContextManager[None]:
    """Return a ``with`` block that turns errors of nibabel and gzip into one of a damaged file."""
    return errors_as(
        lambda error: InvalidInput(
            f"{place}: cannot be read as NIfTI: {reason(error)}; give a whole .nii or .nii.gz file"
        )
    )


def open_nifti(place: str, dataset: str | None, time: Moment | None = None) -> StoredVolume:
    """Open the image of a file. Its stored axes are transposed to the order (c, z, y, x).

    Voxels keep their stored order, whatever orientation the file gives. The orientation is kept for
    outputs.

    Raises:
        InvalidInput: there is no such file, or it is not NIfTI, damaged, or holds several volumes;
            or a dataset was named.
    """
    path = local_file(place, NAME)
    check_no_dataset(place, dataset)
    with _damage(place):
        image = library("nibabel", "nifti").load(path)
        zooms = [float(zoom) for zoom in image.header.get_zooms()]
        unit = UNITS.get(image.header.get_xyzt_units()[0])
        mapped = _mapped(path, image)
        affine, stored = _affine(image), stored_in(image)
    axes = _axes(image, time)
    z, y, x = (zooms[axes.index(axis)] if axis in axes else 1.0 for axis in "zyx")
    attributes = stored.get("attributes", {})
    grid = Grid((z, y, x), origin_of(affine, (z, y, x), attributes), (unit, unit, unit), affine)
    if mapped:
        values = NamedAxes(mapped, axes[::-1], place, time)
        return StoredVolume(values, place, grid, attributes, chunks=("mapped", None, mapped.row))
    return StoredVolume(NamedAxes(_Scaled(image), axes, place, time), place, grid, attributes)


def _axes(image: Any, time: Moment | None) -> str:
    """Return the axes of an image; the fourth one is maps, unless the file or the user says time.

    Many programs store modalities there, and do not use the fifth axis, which NIfTI has for them.
    """
    has_time = time is not None or image.header.get_xyzt_units()[1] != "unknown"
    return MAPS_FOURTH if image.ndim == len(MAPS_FOURTH) and not has_time else AXES[: image.ndim]


def _affine(image: Any) -> Affine | None:
    """Return the orientation of an image, if its header gives one."""
    for found, code in (image.header.get_sform(coded=True), image.header.get_qform(coded=True)):
        if code > 0:
            return Affine(tuple(float(number) for number in found[:3].ravel()), int(code))
    return None


def stored_in(image: Any) -> dict[str, Any]:
    """Return how an output was made, as it says in its header."""
    for extension in image.header.extensions:
        content = extension.get_content() if extension.get_code() == COMMENT else b""
        text = content if isinstance(content, str) else bytes(content).decode(errors="replace")
        if text.startswith(MARK):
            found: dict[str, Any] = json.loads(text.removeprefix(MARK).rstrip("\0"))
            return found
    return {}


def describe_nifti(place: str, dataset: str | None) -> str:
    """Describe a file: its axes, shape, type, extents of a voxel, and how outputs were made."""
    image = library("nibabel", "nifti").load(local_file(place, NAME))
    axes = _axes(image, None)
    moments = image.shape[axes.index("t")] if "t" in axes else 1
    volume = open_nifti(place, dataset, 0 if moments > 1 else None)
    return describe_image(place, volume, moments)


def unpack_nifti(place: str, copy: Path | None) -> Path:
    """Return a file with the same image that is not compressed, as ``Functions`` has it."""
    if not place.lower().endswith(".gz"):
        return Path(place)

    with _damage(place):
        stored = library("nibabel", "nifti").load(place).dataobj
    end = stored.offset + prod(stored.shape) * stored.dtype.itemsize

    def write(file: IO[bytes]) -> None:
        with gzip_ng.open(place) as packed:  # type: ignore[no-untyped-call]
            shutil.copyfileobj(packed, file, COPIED)
            if missing := max(0, end - packed.tell()):
                raise EOFError(f"its last {missing} bytes are missing")

    return decompressed(place, copy, ".nii", write)


FUNCTIONS = Functions(open_nifti, describe_nifti, unpack_nifti)
