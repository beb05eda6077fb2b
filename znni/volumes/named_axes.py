"""Arrays with named axes in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.volumes.array import ArrayLike

ORDER = "czyx"


class NamedAxes:
    """An array with named axes, seen as (c, z, y, x).

    Axes that a volume does not have, such as time, must have the extent 1. A missing c or z axis
    gets the extent 1; y and x are required.

    Attributes:
        shape: extents (c, z, y, x).
        dtype: type of the values.

    Raises:
        InvalidInput: the names do not match the array, or it holds more than one volume.
    """

    def __init__(self, array: ArrayLike, axes: Sequence[str], name: str) -> None:
        given = f"{name} has axes ({', '.join(axes)})"
        if len(axes) != len(array.shape):
            raise InvalidInput(
                f"{given} and shape {array.shape}; its metadata must name each axis once"
            )
        if len(set(axes)) < len(axes) or not {"y", "x"} <= set(axes):
            raise InvalidInput(f"{given}; a volume needs y and x, and each axis once; rename them")
        extents = dict(zip(axes, array.shape, strict=True))
        for axis, extent in extents.items():
            if axis not in ORDER and extent != 1:
                what = "points in time" if axis == "t" else "positions"
                raise InvalidInput(
                    f"{given}, and {extent} {what} along {axis}; a run takes one: save it as a "
                    f"volume of its own, or from Python give it as an array"
                )
        self._array = array
        self._axes = tuple(axes)
        self._kept = [axis for axis in axes if axis in ORDER]
        self.shape = tuple(extents.get(axis, 1) for axis in ORDER)
        self.dtype = array.dtype

    def __getitem__(self, key: tuple[slice, slice, slice, slice], /) -> NDArray[Any]:
        """Return the values (c, z, y, x) of four slices."""
        wanted = dict(zip(ORDER, key, strict=True))
        block = np.asarray(self._array[tuple(wanted.get(axis, 0) for axis in self._axes)])
        block = block.transpose([self._kept.index(axis) for axis in ORDER if axis in self._kept])
        absent = [index for index, axis in enumerate(ORDER) if axis not in self._kept]
        return np.expand_dims(block, tuple(absent))
