"""One slice of a volume: a TIFF of one plane, or a PNG."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.volumes.formats import library
from znni.volumes.formats.slices.files import PNG
from znni.volumes.formats.tiff.format import check_codec, opened, values_of
from znni.volumes.formats.zarr.chunk_reader import LEAST_ROOM
from znni.volumes.mapped_array import MappedArray
from znni.volumes.stored import errors_as, reason

AXES = {"Y": "y", "X": "x", "S": "c"}  # by tifffile's letters: S is that of colours
# A PNG begins with its signature, and then the length and name of the part that has these numbers.
START = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"
NUMBERS = 10  # bytes: width, height, bits of a value, and kind of colours
MOST_HEADERS = 2**16  # that are cached
COLOURS = {0: 1, 2: 3, 4: 2, 6: 4}  # values of a pixel, by the kind of colours


@dataclass(frozen=True)
class Plane:
    """A slice. Only its header has been read.

    Attributes:
        path: its file.
        axes: its axes: y, x, and c if it has colours.
        shape: its extents along them.
        dtype: the type of its values, in the file's order of bytes.
        start: the place of its values, if they lie in one piece; None: they are decoded.
    """

    path: Path
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int | None = None

    @property
    def is_png(self) -> bool:
        """True if its file is a PNG."""
        return self.path.suffix.lower() == PNG

    @property
    def is_small(self) -> bool:
        """True if it takes little memory to decode it whole."""
        return prod(self.shape) * self.dtype.itemsize <= LEAST_ROOM

    @property
    def described(self) -> str:
        """Its axes, extents and type in words."""
        extents = "x".join(map(str, self.shape))
        return f"{extents} ({', '.join(self.axes)}) of {self.dtype.newbyteorder('=')}"

    def read(self, key: tuple[slice, ...]) -> NDArray[Any]:
        """Return a part of its values. A PNG is decoded whole, and so is a small TIFF."""
        if self.start is not None:
            return MappedArray(self.path, self.dtype, self.start, self.shape)[key]
        if self.is_png:
            decode = library("imagecodecs", "tiff").png_decode
            pixels = np.asarray(decode(self.path.read_bytes()))
            colours = prod(self.shape[2:])  # a transparent colour (tRNS) adds a map behind these
            pixels = pixels.reshape(*self.shape[:2], -1)[..., :colours]
            return pixels.reshape(self.shape)[key]
        with opened(str(self.path), is_ome=False) as file:
            (series,) = file.series
            if self.is_small:  # faster than zarr, which decodes a part of a large slice
                return np.asarray(series.asarray()).reshape(self.shape)[key]
            array, parts = values_of(series, 0, str(self.path)), iter(key)
            whole = tuple(next(parts) if axis in AXES else slice(None) for axis in series.axes)
            kept = tuple(slice(None) if axis in AXES else 0 for axis in series.axes)
            return np.asarray(array[whole])[kept]


def plane_of(path: Path) -> Plane:
    """Return a slice by the header of its file.

    Raises:
        InvalidInput: the file cannot be read, is damaged, or has several planes.
    """
    with errors_as(
        lambda error: InvalidInput(
            f"{path}: cannot be read as a slice: {reason(error)}; remove it, or copy it again"
        )
    ):
        about = path.stat()
        return _plane_of(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=MOST_HEADERS)  # a run opens its input several times
def _plane_of(path: Path, _changed: int, _length: int) -> Plane:
    return _png(path) if path.suffix.lower() == PNG else _tiff(path)


def _png(path: Path) -> Plane:
    with path.open("rb") as file:
        start, numbers = file.read(len(START)), file.read(NUMBERS)
    if start != START or len(numbers) < NUMBERS:
        raise InvalidInput(f"{path}: cannot be read as PNG; give a file that is whole")
    width, height = (int.from_bytes(numbers[at : at + 4], "big") for at in (0, 4))
    bits, kind = numbers[8:]
    if kind not in COLOURS:
        raise InvalidInput(f"{path}: has a palette of colours; save slices in shades of grey")
    dtype = np.dtype(np.uint16 if bits > 8 else np.uint8)
    if (colours := COLOURS[kind]) == 1:
        return Plane(path, ("y", "x"), (height, width), dtype)
    return Plane(path, ("y", "x", "c"), (height, width, colours), dtype)


def _tiff(path: Path) -> Plane:
    with opened(str(path), is_ome=False) as file:
        series = file.series[0]
        check_codec(series, str(path))
        along = dict(zip(series.axes, series.shape, strict=True))
        others = [extent for axis, extent in along.items() if axis not in AXES]
        if len(file.series) > 1 or any(extent != 1 for extent in others):
            raise InvalidInput(
                f"{path}: has several planes, and a slice has one; to run over each file as a "
                f"volume, give {path.parent}/*{path.suffix}"
            )
        kept = [axis for axis in along if axis in AXES]
        dtype = series.dtype.newbyteorder(file.byteorder)
        axes, shape = (AXES[axis] for axis in kept), (along[axis] for axis in kept)
        return Plane(path, tuple(axes), tuple(shape), dtype, series.dataoffset)
