"""Volumes in memory, and anything else with a shape, a dtype and slicing."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from znni.errors import InvalidInput
from znni.shapes import Box, Vec3


class ArrayLike(Protocol):
    """The part of NumPy's array interface that h5py, zarr and dask arrays share."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, (z, y, x) or (f, z, y, x)."""

    @property
    def dtype(self) -> Any:
        """Type of the values."""

    def __getitem__(self, key: Any, /) -> Any: ...


class ArrayVolume:
    """A volume of shape (z, y, x) or (f, z, y, x) of integers or floats.

    Raises:
        InvalidInput: another number of axes, an empty one, or values that are not numbers.
    """

    def __init__(self, array: ArrayLike, name: str = "the array") -> None:
        shape = tuple(int(extent) for extent in array.shape)
        if len(shape) not in (3, 4):
            raise InvalidInput(
                f"{name} has shape {shape}; a volume has axes (z, y, x) or (f, z, y, x)"
            )
        if min(shape) < 1:
            raise InvalidInput(f"{name} has shape {shape} and holds no voxels")
        dtype = np.dtype(array.dtype)
        if dtype.kind not in "buif":
            raise InvalidInput(f"{name} holds {dtype}; a volume holds integers or floats")
        self._array = array
        self._has_features = len(shape) == 4
        self.features = shape[0] if self._has_features else 1
        self.size = Vec3(*shape[-3:])
        self.itemsize = dtype.itemsize

    def read(self, box: Box) -> NDArray[Any]:
        """The values (f, z, y, x) of a box within the volume."""
        if self._has_features:
            return np.asarray(self._array[(slice(None), *box.slices)])
        return np.asarray(self._array[box.slices])[np.newaxis]


class ArrayOutput:
    """An array (f', z, y, x) that output is written into."""

    def __init__(self, array: Any, features: int, size: Vec3) -> None:
        shape = (features, *size)
        if tuple(array.shape) != shape:
            raise InvalidInput(f"the output array has shape {tuple(array.shape)}; it needs {shape}")
        self._array = array

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a box."""
        self._array[(slice(None), *box.slices)] = values

    def finish(self, attributes: dict[str, Any]) -> None:
        """Nothing to do: the array is the caller's."""

    def abandon(self) -> None:
        """Nothing to do: the array is the caller's."""
