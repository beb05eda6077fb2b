"""Arrays that are composed of other arrays, and compute a part when it is sliced.

All have axes (f, z, y, x), and take one slice of step 1 for each axis. ``pieces`` are the extents
of parts that threads may read at the same time, as a ``Volume`` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.cases.label_kernels import overlay, renumber
from znni.core.array_like import ArrayLike
from znni.core.shapes import ZERO, Box, Vec3
from znni.volumes.array import ArrayVolume

Slices: TypeAlias = tuple[slice, slice, slice, slice]


class Maps:
    """A volume as an array with all four axes, even if it has one map."""

    def __init__(self, volume: ArrayVolume) -> None:
        self._volume = volume
        self.shape = (volume.features, *volume.size)
        self.dtype = volume.dtype
        self.pieces = volume.pieces

    def __getitem__(self, key: Slices, /) -> NDArray[Any]:
        """Return a part (f, z, y, x)."""
        maps, *box = key
        return self._volume.read(_box(box, self._volume.size), maps)


def _box(slices: Sequence[slice], size: Sequence[int]) -> Box:
    """Return the box of voxels that slices select."""
    ends = [part.indices(extent) for part, extent in zip(slices, size, strict=True)]
    return Box(Vec3(*(end[0] for end in ends)), Vec3(*(end[1] for end in ends)))


class Stacked:
    """The maps of volumes of equal extents: first all maps of the first volume, and so on."""

    def __init__(self, arrays: Sequence[ArrayLike]) -> None:
        self._arrays = arrays
        self._maps = [array.shape[0] for array in arrays]
        self.shape = (sum(self._maps), *arrays[0].shape[1:])
        self.dtype = np.result_type(*(np.dtype(array.dtype) for array in arrays))
        pieces = {getattr(array, "pieces", None) for array in arrays}
        self.pieces = pieces.pop() if len(pieces) == 1 else None

    def __getitem__(self, key: Slices, /) -> NDArray[Any]:
        """Return a part (f, z, y, x)."""
        wanted, *box = key
        maps = range(*wanted.indices(self.shape[0]))
        part = np.empty((len(maps), *_box(box, self.shape[1:]).size), self.dtype)
        before = 0
        for array, count in zip(self._arrays, self._maps, strict=True):
            own = slice(max(maps.start - before, 0), min(maps.stop - before, count))
            if own.start < own.stop:
                at = before + own.start - maps.start
                part[at : at + own.stop - own.start] = array[own, *box]
            before += count
        return part


class OneHot:
    """A volume of labels as maps of 0 and 1. Each map is 1 where the volume has its label."""

    def __init__(self, array: ArrayLike, labels: Sequence[int]) -> None:
        self._array = array
        self._labels = labels
        self.shape = (len(labels), *array.shape[1:])
        self.dtype = np.dtype(np.float32)
        self.pieces = getattr(array, "pieces", None)

    def __getitem__(self, key: Slices, /) -> NDArray[Any]:
        """Return a part (f, z, y, x)."""
        maps, *box = key
        labels = np.asarray(self._array[slice(None), *box])[0]
        wanted = self._labels[maps]
        part = np.empty((len(wanted), *labels.shape), self.dtype)
        for one, label in zip(part, wanted, strict=True):
            np.equal(labels, label, out=one)
        return part


class Turn(NamedTuple):
    """An exchange and reversal of the axes of a volume.

    Attributes:
        axes: the axis (0 for z) of the volume that becomes each axis of the turned one.
        reversed: whether each axis of the turned volume runs backward.
    """

    axes: tuple[int, int, int]
    reversed: tuple[bool, bool, bool]

    @property
    def inverse(self) -> Turn:
        """The turn that undoes this one."""
        z, y, x = (self.axes.index(axis) for axis in range(3))
        back = self.reversed[z], self.reversed[y], self.reversed[x]
        return Turn((z, y, x), back)

    def extents(self, size: Sequence[int]) -> Vec3:
        """Return the extents of a volume after the turn."""
        return Vec3(*(size[axis] for axis in self.axes))


UNTURNED = Turn((0, 1, 2), (False, False, False))


class Turned:
    """A volume whose axes are exchanged and reversed."""

    def __init__(self, array: ArrayLike, turn: Turn) -> None:
        self._array = array
        self._turn = turn
        self.shape = (array.shape[0], *turn.extents(array.shape[1:]))
        self.dtype = np.dtype(array.dtype)
        pieces: Vec3 | None = getattr(array, "pieces", None)
        # On a reversed axis, pieces stay aligned if they span the axis, or one voxel of it.
        planes = pieces and all(
            own in (1, extent) for own, extent in zip(pieces, array.shape[1:], strict=True)
        )
        self.pieces = turn.extents(pieces) if pieces and planes else None

    def __getitem__(self, key: Slices, /) -> NDArray[Any]:
        """Return a part (f, z, y, x)."""
        maps, *box = key
        wanted = list[slice](box)
        for axis, (part, extent) in enumerate(zip(box, self.shape[1:], strict=True)):
            start, stop, _ = part.indices(extent)
            turned = (extent - stop, extent - start) if self._turn.reversed[axis] else (start, stop)
            wanted[self._turn.axes[axis]] = slice(*turned)
        oriented = np.asarray(self._array[maps, *wanted])
        oriented = oriented.transpose(0, *(axis + 1 for axis in self._turn.axes))
        back = tuple(
            axis + 1 for axis, is_reversed in enumerate(self._turn.reversed) if is_reversed
        )
        return np.flip(oriented, back) if back else oriented


class Pasted:
    """A volume that holds another volume in a box, and a value for each map around it.

    Args:
        array: the volume (f, z, y, x) in the box.
        size: the extents of the larger volume.
        start: the first voxel of the box.
        around: the value of each map around the box; None: 0.
    """

    def __init__(
        self, array: ArrayLike, size: Vec3, start: Vec3, around: Sequence[float] | None = None
    ) -> None:
        self._around = around or (0,) * array.shape[0]
        self._array = array
        self._box = Box(start, start + Vec3(*array.shape[1:]))
        self.shape = (array.shape[0], *size)
        self.dtype = np.dtype(array.dtype)

    def __getitem__(self, key: Slices, /) -> NDArray[Any]:
        """Return a part (f, z, y, x)."""
        maps, *box = key
        wanted = _box(box, self.shape[1:])
        around = self._around[maps]
        part = np.empty((len(around), *wanted.size), self.dtype)
        for one, value in zip(part, around, strict=True):
            one.fill(value)
        if common := wanted.intersection(self._box):
            inside = common.shifted(ZERO - self._box.start)
            at = common.shifted(ZERO - wanted.start)
            part[:, *at.slices] = self._array[maps, *inside.slices]
        return part


class Renumbered:
    """Labels with other numbers.

    Args:
        array: the labels (1, z, y, x).
        numbers: the number of each label, from 0 on. Its type is that of the result.
    """

    def __init__(self, array: ArrayLike, numbers: NDArray[Any]) -> None:
        self._array = array
        self._numbers = numbers
        self.shape = tuple(array.shape)
        self.dtype = numbers.dtype

    def __getitem__(self, key: Slices, /) -> NDArray[Any]:
        """Return a part (1, z, y, x)."""
        labels = np.ascontiguousarray(self._array[key])
        part = np.empty(labels.shape, self.dtype)
        renumber(labels.ravel(), self._numbers, part.ravel())
        return part


class Overlaid:
    """Labels of several volumes. Where several are not 0, the last one counts.

    The volumes have equal extents and one type.
    """

    def __init__(self, arrays: Sequence[ArrayLike]) -> None:
        self._arrays = arrays
        self.shape = tuple(arrays[0].shape)
        self.dtype = np.dtype(arrays[0].dtype)

    def __getitem__(self, key: Slices, /) -> NDArray[Any]:
        """Return a part (1, z, y, x)."""
        first, *others = self._arrays
        part = np.array(first[key], order="C")
        for array in others:
            overlay(np.ravel(array[key]), part.ravel())
        return part
