"""Reading folders of slices as volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.option_types import Codec, Form, Moment
from znni.core.text import counted
from znni.core.volume import Grid
from znni.volumes.formats import Functions
from znni.volumes.formats.slices.files import slice_files
from znni.volumes.formats.slices.plane import Plane, plane_of
from znni.volumes.formats.tiff.format import chunks_of, opened, values_of
from znni.volumes.formats.tiff.grids import assumed_distance, grid_of, of_ome
from znni.volumes.formats.zarr.chunk_reader import ChunkedZarr
from znni.volumes.named_axes import NamedAxes
from znni.volumes.stored import StoredVolume


class Stack:
    """An array of slices, the first axis counting them. Several threads may read it.

    Only the slices of a part are opened, one after the other.

    Attributes:
        shape: the extents.
        dtype: the type of the values.
        pieces: the extents of a slice, which threads may read at the same time; None if slices
            are decoded.
    """

    def __init__(self, planes: Sequence[Plane]) -> None:
        first = planes[0]
        self._planes = planes
        self.shape = (len(planes), *first.shape)
        self.dtype = first.dtype.newbyteorder("=")
        mapped = all(plane.start is not None for plane in planes)
        self.pieces = (1, *first.shape) if mapped else None

    def __getitem__(self, key: tuple[slice, ...], /) -> NDArray[Any]:
        first, *rest = (
            range(*part.indices(extent)) for part, extent in zip(key, self.shape, strict=True)
        )
        found = np.empty([len(along) for along in (first, *rest)], self.dtype)
        for values, index in zip(found, first, strict=True):
            values[...] = self._planes[index].read(key[1:])
        return found


def open_slices(place: str, dataset: str | None, time: Moment | None = None) -> StoredVolume:
    """Open a folder of slices, in the natural order of their names.

    Raises:
        InvalidInput: the folder has no slices, or a dataset was named. Slices differ in extents or
            type, or one of them is damaged or has several planes.
    """
    if dataset:
        raise InvalidInput(
            f"{place}: is a folder of slices, and has no dataset {dataset!r}; leave it out"
        )
    planes = [plane_of(path) for path in slice_files(place)]
    _check_alike(place, planes)
    first, stack = planes[0], Stack(planes)
    named = NamedAxes(stack, ["z", *first.axes], place, time)
    chunks, taken = _chunks(first)
    grid, assumed = (Grid(), "") if first.is_png else _grid(first.path)
    volume = StoredVolume(named, place, grid, chunks=chunks, chunk_bytes=taken)
    volume.assumed = assumed
    return volume


def describe_slices(place: str, dataset: str | None) -> str:
    """Describe a folder: its first and last slice, the extents, the type and the voxels."""
    volume, files = open_slices(place, dataset), slice_files(place)
    named = f"{counted(len(files), 'slice')}, {files[0].name} to {files[-1].name}"
    return f"{place}\n  {named}\n  {volume.shape} {volume.dtype}, {volume.grid}"


def _check_alike(place: str, planes: Sequence[Plane]) -> None:
    first = planes[0]
    others = [plane for plane in planes if plane.described != first.described]
    if others:
        raise InvalidInput(
            f"{place}: slices differ: {first.path.name} is {first.described}, and "
            f"{others[0].path.name} is {others[0].described} ({len(others)} of {len(planes)} are "
            f"unlike the first); give a folder whose slices are all alike"
        )


def _chunks(first: Plane) -> tuple[tuple[Form, Codec | None, tuple[int, ...]], int]:
    """Return what reads the chunks of slices, and the bytes that decoding one takes."""
    if first.start is not None:
        return ("mapped", None, (1, 1, first.shape[first.axes.index("x")])), 0
    if first.is_png or first.is_small:  # it is decoded whole, from a copy of the file
        y, x = (first.shape[first.axes.index(axis)] for axis in "yx")
        values = 2 * prod(first.shape) + y * x * first.is_png  # a PNG may have transparency too
        return ("zarr", "deflate", (1, y, x)), values * first.dtype.itemsize
    with opened(str(first.path), is_ome=False) as file:
        (series,) = file.series
        array = values_of(series, 0, str(first.path))
        assert isinstance(array, ChunkedZarr)
        form, codec, extents = chunks_of(array, series.keyframe)
        return (form, codec, (1, *extents)), array.chunk_bytes


def _grid(path: Path) -> tuple[Grid, str]:
    """Return the grid of voxels, and what it assumes beyond what the first slice tells."""
    with opened(str(path), is_ome=False) as file:
        page = file.pages.first
        if page.is_ome:
            return of_ome(page.description, 0), ""
        grid = grid_of(file, file.series[0])
        if file.is_imagej and "spacing" in file.imagej_metadata:
            return grid, ""
    if grid == Grid():
        return grid, ""
    _, y, x = grid.scale
    grid = replace(grid, scale=(x, y, x))
    return grid, assumed_distance(grid)


FUNCTIONS = Functions(open_slices, describe_slices, files=slice_files)
