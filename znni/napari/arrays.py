"""Arrays for layers: coarse copies of volumes that have none, and values above a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from znni.core.volume import LARGE


class Sliceable(Protocol):
    """An array that reads its values when it is sliced."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its values."""

    def __getitem__(self, key: Any, /) -> NDArray[Any]:
        """Return the values at integers and slices."""


class Derived:
    """An array whose values follow from those of another array.

    Attributes:
        shape: its extents.
        dtype: the type of its values.
        ndim: the number of its axes.
        size: the number of its values.
    """

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
    """Every n-th voxel of a volume along z, y and x. Reading takes the memory of one plane more.

    Args:
        array: the volume, of axes (z, y, x) or (f, z, y, x).
        step: the step n.
    """

    def __init__(self, array: Sliceable, step: int) -> None:
        *maps, z, y, x = array.shape
        super().__init__((*maps, *(ceil(extent / step) for extent in (z, y, x))), array.dtype)
        self._array = array
        self._step = step

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return the values at integers and slices, at most one for each axis."""
        given = _whole_key(key, self.ndim)
        *maps, z, y, x = (each if isinstance(each, slice) else int(each) for each in given)
        y, x = (
            self._finer(each, extent) for each, extent in zip((y, x), self.shape[-2:], strict=True)
        )
        planes = range(self.shape[-3])[z]
        if isinstance(planes, int):
            return np.asarray(self._array[(*maps, planes * self._step, y, x)])
        read = [np.asarray(self._array[(*maps, at * self._step, y, x)]) for at in planes]
        place = sum(isinstance(each, slice) for each in maps)  # of the axis z in the result
        return np.stack(read, axis=place)

    def _finer(self, key: int | slice, extent: int) -> int | slice:
        """Return an index of the volume in place of one of every n-th voxel."""
        chosen = range(extent)[key]
        if isinstance(chosen, int):
            return chosen * self._step
        start, stop, step = (each * self._step for each in (chosen.start, chosen.stop, chosen.step))
        return slice(start, stop, step)


class Above(Derived):
    """1 where the values of an array are above a threshold, and else 0.

    Args:
        array: the values. Integers stand for 0 to 1, as ``uint8`` outputs store them.
        threshold: the threshold, which all levels of a layer share.
    """

    def __init__(self, array: Sliceable, threshold: Threshold) -> None:
        super().__init__(tuple(array.shape), np.dtype(np.uint8))
        self._array = array
        self._threshold = threshold

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return the labels at integers and slices."""
        values = np.asarray(self._array[key])
        whole = np.iinfo(values.dtype).max if values.dtype.kind in "iu" else 1
        return np.asarray(values > self._threshold.value * whole, np.uint8)


class Threshold:
    """A number that a slider changes.

    Attributes:
        value: the number.
    """

    def __init__(self, value: float) -> None:
        self.value = value


def with_coarse_levels(array: Sliceable) -> list[Sliceable]:
    """Return a volume with coarse copies, so that a view of all of it is small.

    Without them, napari loads a whole volume to show it in 3D. A volume of at most 256 x 256 x 256
    voxels needs none.
    """
    levels: list[Sliceable] = [array]
    step = 1
    while prod(levels[-1].shape[-3:]) > LARGE:
        step *= 2
        levels.append(EveryNth(array, step))
    return levels


def _whole_key(key: Any, axes: int) -> tuple[Any, ...]:
    """Return an index for each axis."""
    given: Sequence[Any] = key if isinstance(key, tuple) else (key,)
    at = next((place for place, each in enumerate(given) if each is Ellipsis), len(given))
    before, after = given[:at], given[at + 1 :]
    return (*before, *[slice(None)] * (axes - len(before) - len(after)), *after)
