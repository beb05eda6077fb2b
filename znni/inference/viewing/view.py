"""Parts of arrays that are read only when their values are needed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.array_like import ArrayLike


class View:
    """A part of an array. Slicing it reads nothing; NumPy's functions read its values.

    napari cuts a tile through all planes out of each level, before it takes the plane that it
    shows. If the volume is larger than memory, that tile must not be read.

    Args:
        array: the array.
        places: the places along each axis of the array; None: all.
        dropped: the axes of the array, with one place each, that the view does not have.

    Attributes:
        shape: the extents.
        dtype: the type of the values.
        ndim: the number of axes.
        size: the number of values.
    """

    def __init__(
        self,
        array: ArrayLike,
        places: Sequence[range] | None = None,
        dropped: frozenset[int] = frozenset(),
    ) -> None:
        self._array = array
        self._places = tuple(map(range, array.shape)) if places is None else tuple(places)
        self._kept = [axis for axis in range(len(self._places)) if axis not in dropped]
        self._dropped = dropped
        self.shape = tuple(len(self._places[axis]) for axis in self._kept)
        self.dtype = array.dtype
        self.ndim = len(self.shape)
        self.size = prod(self.shape)

    def __getitem__(self, key: Any) -> View:
        """Return the part at integers and slices of positive steps, at most one for each axis."""
        places, dropped = list(self._places), set(self._dropped)
        for axis, each in zip(self._kept, whole_key(key, self.ndim), strict=True):
            places[axis] = places[axis][as_slice(each)]
            if not isinstance(each, slice):
                dropped.add(axis)
        return View(self._array, places, frozenset(dropped))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the values."""
        box = tuple(slice(each.start, each.stop, each.step) for each in self._places)
        values = np.asarray(self._array[box])
        kept = (0 if axis in self._dropped else slice(None) for axis in range(len(self._places)))
        return np.array(values[tuple(kept)], dtype, copy=copy)


def whole_key(key: Any, axes: int) -> tuple[Any, ...]:
    """Return an index for each axis."""
    given: Sequence[Any] = key if isinstance(key, tuple) else (key,)
    at = next((place for place, each in enumerate(given) if each is Ellipsis), len(given))
    before, after = given[:at], given[at + 1 :]
    return (*before, *[slice(None)] * (axes - len(before) - len(after)), *after)


def as_slice(key: Any) -> slice:
    """Return the slice that has the place of an integer, or the slice itself."""
    return key if isinstance(key, slice) else slice(int(key), int(key) + 1 or None)
