"""Arrays for layers: coarse copies of volumes that have none, and values above a threshold."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.array_like import ArrayLike
from znni.core.volume import LARGE
from znni.inference.viewing.view import View, as_slice, whole_key

READ = 2**24  # most voxels of a map that are read at a time for a coarse copy
DEPTH = 64  # planes of such a box


class Derived:
    """An array whose values follow from those of another array."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)
        self.size = prod(shape)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return the values at integers and slices, at most one for each axis."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all values, in memory."""
        return np.array(self[:], dtype, copy=copy)


class EveryNth(Derived):
    """Every n-th voxel of a volume along z, y and x.

    It is read in boxes of at most ``READ`` voxels. They are as deep as chunks often are, so that
    few chunks are decoded twice.
    """

    def __init__(self, array: ArrayLike, step: int) -> None:
        *maps, z, y, x = array.shape
        super().__init__((*maps, *(ceil(extent / step) for extent in (z, y, x))), array.dtype)
        self._array = array
        self._step = step

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return the values at integers and slices of positive steps, at most one for each axis."""
        given = whole_key(key, self.ndim)
        wanted = [
            range(extent)[as_slice(each)] for each, extent in zip(given, self.shape, strict=True)
        ]
        values = np.empty([len(each) for each in wanted], self.dtype)
        *maps, z, y, x = wanted
        z, y, x = (self._finer(each) for each in (z, y, x))
        rows = max(1, READ // max(1, min(DEPTH, z.stop - z.start) * (x.stop - x.start)))
        for planes, z_part in _parts(z, DEPTH):
            for lines, y_part in _parts(y, rows):
                box = (slice(at.start, at.stop, at.step) for at in (*maps, z_part, y_part, x))
                values[..., planes, lines, :] = self._array[tuple(box)]
        return values[tuple(slice(None) if isinstance(each, slice) else 0 for each in given)]

    def _finer(self, places: range) -> range:
        """Return places of the volume for those of every n-th voxel."""
        step = self._step
        return range(places.start * step, places.stop * step, places.step * step)


class Above(Derived):
    """1 where the values of an array are above a threshold, and else 0.

    Args:
        array: the values. Integers stand for 0 to 1, as ``uint8`` outputs store them.
        threshold: the threshold, which all levels of a layer share.
    """

    def __init__(self, array: ArrayLike, threshold: Threshold) -> None:
        super().__init__(tuple(array.shape), np.dtype(np.uint8))
        self._array = array
        self._threshold = threshold

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return the labels at integers and slices."""
        values = np.asarray(self._array[key])
        whole = np.iinfo(values.dtype).max if values.dtype.kind in "iu" else 1
        return np.asarray(values > self._threshold.value * whole, np.uint8)


class Threshold:
    """A number that a slider changes."""

    def __init__(self, value: float) -> None:
        self.value = value


def with_coarse_levels(array: ArrayLike) -> list[View]:
    """Return a volume with coarse copies, so that a view of all of it is small.

    Without them, napari loads a whole volume to show it in 3D. A volume of at most 256 x 256 x 256
    voxels needs none.
    """
    levels, step = [View(array)], 1
    while prod(levels[-1].shape[-3:]) > LARGE:
        step *= 2
        levels.append(View(EveryNth(array, step)))
    return levels


def _parts(places: range, extent: int) -> Iterator[tuple[slice, range]]:
    """Yield places in groups within an extent, each with its slice among all places."""
    many = max(1, extent // places.step)
    for first in range(0, len(places), many):
        yield slice(first, first + many), places[first : first + many]
