"""Volumes in memory, and in any object with a shape, a dtype and slicing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.core.volume import Grid, LastSteps, ResumeState, at_once
from znni.plans.stored_values import InputChunks

ALL = slice(None)
LARGEST_EXTENT = 2**48  # far above any real extent, far below any overflow


class ArrayVolume:
    """A volume of shape (z, y, x) or (f, z, y, x) of integers or floats.

    Attributes:
        name: name used in messages.
        shape: extents of the array.
        dtype: type of its values.
        features: maps per voxel.
        size: voxels per axis.
        itemsize: bytes of one value.
        grid: position of its voxels in space.
        maps: names of its maps; empty if they have none.
        assumed: what its grid assumes beyond what is known of the volume; empty if nothing.
        chunks: its chunks as they are stored; None if it has none, or if they are not known.
        chunk_bytes: bytes that reading takes for a chunk, of which it needs a part; 0 if it reads
            only that part, or if that is not known.
        pieces: extents of the pieces that threads may read at the same time; None if the array has
            no attribute ``pieces``, with such extents for each of its axes.

    Raises:
        InvalidInput: the array has another number of axes, is empty or endless, or holds values
            that are not numbers.
    """

    assumed = ""
    chunks: InputChunks | None = None
    chunk_bytes = 0

    def __init__(self, array: ArrayLike, name: str = "the array", grid: Grid | None = None) -> None:
        self.name = name
        self.grid = grid or Grid()
        shape = _shape(array, name)
        if len(shape) not in (3, 4):
            raise InvalidInput(
                f"{name} has shape {shape}; a volume has axes (z, y, x) or (f, z, y, x)"
            )
        if min(shape) < 1:
            raise InvalidInput(f"{name} has shape {shape} and holds no voxels")
        if max(shape) > LARGEST_EXTENT:
            raise InvalidInput(
                f"{name} has shape {shape}, which no volume has; is its metadata damaged?"
            )
        self.dtype = _number_type(array, name)
        self._array = _from_zero(array)
        self._has_features = len(shape) == 4
        self.shape = shape
        self.features = shape[0] if self._has_features else 1
        self.size = Vec3(*shape[-3:])
        self.itemsize = self.dtype.itemsize
        self.maps: tuple[str, ...] = getattr(array, "maps", ())
        pieces: tuple[int, ...] | None = getattr(array, "pieces", None)
        self.pieces = Vec3(*pieces[-3:]) if pieces else None

    def _repr_html_(self) -> str:
        from znni.volumes.html_view import volume_html

        return volume_html(self)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.features} x {self.size}, {self.dtype}, {self.grid}>"

    def attribute(self, name: str) -> Any:
        """Return an attribute stored with the volume, or None."""
        return self.attributes().get(name)

    def attributes(self) -> dict[str, Any]:
        """Return all attributes that are stored with the volume; arrays in memory have none."""
        return {}

    def coarser(self) -> list[ArrayVolume]:
        """Return the coarser resolutions that are stored too, the finest first."""
        return []

    def read(self, box: Box, maps: slice = ALL) -> NDArray[Any]:
        """Return the values (f, z, y, x) of a box within the volume, of all maps or of some."""
        if self._has_features:
            return np.asarray(self._array[(maps, *box.slices)])
        return np.asarray(self._array[box.slices])[np.newaxis]


def _shape(array: ArrayLike, name: str) -> tuple[int, ...]:
    try:
        return tuple(int(extent) for extent in array.shape or ())
    except (AttributeError, TypeError, ValueError):
        raise InvalidInput(
            f"{name} is a {type(array).__name__} without a known shape; give a NumPy array, "
            f"or another with shape, dtype and slicing"
        ) from None


def _from_zero(array: Any) -> Any:
    """Return the same array, indexed from 0: a TensorStore's domain may begin elsewhere."""
    return array.translate_to[0] if hasattr(array, "translate_to") else array


def _number_type(array: ArrayLike, name: str) -> np.dtype[Any]:
    try:
        held = array.dtype
        dtype: np.dtype[Any] = np.dtype(getattr(held, "numpy_dtype", held))  # from TensorStore
    except (AttributeError, TypeError) as error:
        if type(array).__module__.partition(".")[0] == "torch":
            raise InvalidInput(
                f"{name} is a tensor of PyTorch; give tensor.detach().cpu().numpy()"
            ) from None
        raise InvalidInput(
            f"{name} holds values of a type that NumPy does not know ({error}); convert it"
        ) from None
    if dtype.kind not in "buif":
        raise InvalidInput(f"{name} holds {dtype}; a volume holds integers or floats; convert it")
    return dtype


class ArrayOutput:
    """An array (f', z, y, x) that the output is written into.

    Attributes:
        resume_state: always empty: an array is never resumed.

    Raises:
        InvalidInput: the array has another shape, or cannot hold values of the output's type.
    """

    def __init__(
        self, array: Any, features: int, size: Vec3, dtype: DTypeLike = np.float32
    ) -> None:
        name, needed = "the output array", (features, *size)
        if (shape := _shape(array, name)) != needed:
            raise InvalidInput(f"{name} has shape {shape}; it needs {needed}")
        if not hasattr(array, "__setitem__"):
            raise InvalidInput(f"{name} is a {type(array).__name__}, which cannot be written into")
        if not np.can_cast(dtype, (held := _number_type(array, name)), "same_kind"):
            raise InvalidInput(f"{name} holds {held}, and the output is {np.dtype(dtype)}")
        self._array = _from_zero(array)
        self.resume_state = ResumeState()

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a box."""
        self._array[(slice(None), *box.slices)] = values

    def read(self, box: Box) -> NDArray[Any]:
        """Return the values (f', z, y, x) of a box that was written."""
        return np.asarray(self._array[(slice(None), *box.slices)])

    def begin(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Do nothing: an array has no attributes."""

    def note_plan(self, plan: str) -> None:
        """Do nothing: an array keeps no plan."""

    def finish(self, measured: dict[str, Any], _last_steps: LastSteps = at_once) -> None:
        """Do nothing: the array belongs to the caller."""

    def abandon(self, _way_on: str = "", /) -> str:
        """Return a message that the array is incomplete; it belongs to the caller."""
        return "the output array is incomplete"
