"""Volumes in NIfTI files, common in magnetic resonance and computed tomography."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.volume import Grid
from znni.volumes.formats import Format, library
from znni.volumes.named_axes import NamedAxes
from znni.volumes.stored import StoredVolume, local_file, reason

NAME = "NIfTI"
AXES = "xyztc"  # a file has the first three to five of them
UNITS = {"meter": "meter", "mm": "millimeter", "micron": "micrometer"}


class _Scaled:
    """The true values of an image: stored values times its slope, plus its intercept."""

    def __init__(self, image: Any) -> None:
        self._stored = image.dataobj
        self.shape = tuple(image.shape)
        plain = (self._stored.slope, self._stored.inter) == (1, 0)
        self.dtype = np.dtype(self._stored.dtype if plain else np.float64)

    def __getitem__(self, key: Any, /) -> NDArray[Any]:
        return np.asarray(self._stored[key], self.dtype)


def open_nifti(place: str, dataset: str | None) -> StoredVolume:
    """Open the image of a file. Its stored axes are transposed to the order (c, z, y, x).

    Voxels keep their stored order, whatever orientation the file gives. Only the extents of a voxel
    are read from its position in space.

    Raises:
        InvalidInput: there is no such file, or it is not NIfTI, damaged, or holds several volumes;
            or a dataset was named.
    """
    nibabel = library("nibabel", "nifti")
    path = local_file(place, NAME)
    if dataset:
        raise InvalidInput(f"{place}: holds one image, and no dataset {dataset!r}; leave it out")
    try:
        image = nibabel.load(path)
        zooms = [float(zoom) for zoom in image.header.get_zooms()]
        unit = UNITS.get(image.header.get_xyzt_units()[0])
        values = _Scaled(image)
    except Exception as error:  # nibabel and gzip raise all kinds of errors
        raise InvalidInput(
            f"{place}: cannot be read as NIfTI: {reason(error)}; give a whole .nii or .nii.gz file"
        ) from error
    axes = AXES[: len(values.shape)]
    z, y, x = (zooms[axes.index(axis)] if axis in axes else 1.0 for axis in "zyx")
    return StoredVolume(
        NamedAxes(values, axes, place), place, Grid((z, y, x), units=(unit, unit, unit))
    )


def describe_nifti(place: str, dataset: str | None) -> str:
    """Describe a file: its shape, type and extents of a voxel."""
    volume = open_nifti(place, dataset)
    return f"{place}\n  {volume.shape} {volume.dtype}, {volume.grid}"


FORMAT = Format(NAME, (".nii", ".nii.gz"), open_nifti, describe_nifti)
