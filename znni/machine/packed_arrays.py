"""Packed arrays: values of a network on a GPU in float16, 8 maps of a voxel together.

Tensor cores read them as they are. Numbers are stored times a scale, a power of two. A record for
each group of 8 maps has the bits of the largest number, without the scale, and those of the scale.

A number has one part or two. The high part is the float16 nearest to the number, and the low part
is the one nearest to the rest. Their sum is nearly as exact as float32. All low parts of a group
lie behind its high parts.

If maps do not fill their last group, the group has further numbers that belong to no map. They are
finite if the maps' numbers are, and not larger than the largest of these. No layer's result depends
on them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from znni.core.shapes import Box, Shape5
from znni.machine.cuda import cupy

# Maps of a voxel that lie together, their bytes, and the bytes of their record.
GROUP = 8
VOXEL_BYTES = 16
RECORD_BYTES = 8

# Bytes of a map's sum and its sum of squares, of one part of its voxels.
SUMS_BYTES = 16


class LeftNorm(NamedTuple):
    """A norm that the layer which reads a packed value still has to apply.

    Attributes:
        scaling: float32 (n, factor or shift, map of all groups).
        slopes: float32 (map of all groups), of the activation after it.
        largest: a bound on the normalized numbers.
    """

    scaling: Any
    slopes: Any
    largest: np.float32


class PackedArray(NamedTuple):
    """A packed value, or a part of one.

    Attributes:
        voxels: float16 (n, group and part, z, y, x, map of the group); the last axis has no gaps,
            and along x there are none either. The parts of a group follow each other.
        records: uint32 (group, largest number or scale).
        features: the number of maps.
        sums: float64 (n, part, map of all groups, sum or sum of squares), if the layer that made
            the value also added up its maps.
        norm: a norm that is not yet applied to the numbers.
    """

    voxels: Any
    records: Any
    features: int
    sums: Any = None
    norm: LeftNorm | None = None

    @property
    def parts(self) -> int:
        """The parts of a number, one or two."""
        return int(self.voxels.shape[1] // self.records.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (n, f, z, y, x)."""
        n, _, *size, _ = self.voxels.shape
        return n, self.features, *size

    @property
    def words(self) -> Any:
        """The voxels as float32 (n, group and part, z, y, 4 x), to be copied or set to zero."""
        n, groups, z, y, x, _ = self.voxels.shape
        shape = n, groups, z, y, x * VOXEL_BYTES // 4
        return cupy().ndarray(shape, np.float32, self.voxels.data, (*self.voxels.strides[:4], 4))

    def maps(self, first: int, count: int) -> PackedArray:
        """Return some of the maps, from the first one of a group on."""
        groups = slice(first // GROUP, first // GROUP + groups_for(count))
        return PackedArray(self.voxels[:, stored(groups, self.parts)], self.records[groups], count)

    def lies_with(self, other: PackedArray) -> bool:
        """Return whether this and another value have the same memory, with equal shapes."""
        one, two = self.voxels, other.voxels
        return bool(one.data.ptr == two.data.ptr) and one.strides == two.strides

    def within(self, box: Box) -> PackedArray:
        """Return the voxels of a box."""
        return self._replace(voxels=self.voxels[:, :, *box.slices])


def groups_for(maps: int) -> int:
    """Return the groups that hold a number of maps."""
    return -(-maps // GROUP)


def in_whole_groups(maps: int) -> int:
    """Return the numbers of a voxel in the groups that hold a number of maps."""
    return GROUP * groups_for(maps)


def in_words(box: Box) -> Box:
    """Return the box of the words of a box's voxels."""
    words = VOXEL_BYTES // 4
    start, stop = (corner._replace(x=corner.x * words) for corner in (box.start, box.stop))
    return Box(start, stop)


def stored(groups: slice, parts: int) -> slice:
    """Return where the parts of some groups lie along the second axis of voxels."""
    return slice(parts * groups.start, parts * groups.stop)


def strides_in_voxels(array: PackedArray) -> tuple[np.int64, ...]:
    """Return the strides of images, groups with all parts of their numbers, planes and rows."""
    n, part, z, y = (stride // VOXEL_BYTES for stride in array.voxels.strides[:4])
    return np.int64(n), np.int64(part * array.parts), np.int64(z), np.int64(y)


def packed_bytes(shape: Shape5, parts: int) -> int:
    """Return the bytes of a packed value whose numbers have so many parts, without its records."""
    return parts * shape.n * groups_for(shape.f) * shape.size.volume * VOXEL_BYTES


def packed_array(shape: Shape5, parts: int) -> PackedArray:
    """Return a new packed array, whose records are zero."""
    voxels = cupy().empty(voxel_shape(shape, parts), np.float16)
    return PackedArray(voxels, cupy().zeros((groups_for(shape.f), 2), np.uint32), shape.f)


def packed_copy(x: Any, parts: int) -> PackedArray:
    """Return the numbers of an array on the GPU, packed with a scale of 1.

    Args:
        x: float32 (n, f, z, y, x).
        parts: the parts of a number.
    """
    made = packed_array(Shape5(*x.shape), parts)
    made.voxels.fill(0)
    for index in range(min(GROUP, x.shape[1])):
        left = x[:, index::GROUP]
        for part in range(parts):
            rounded = left.astype(np.float16)
            made.voxels[:, part::parts][:, : left.shape[1], ..., index] = rounded
            left = left - rounded
    records = np.array((max(x.max().item(), -x.min().item()), 1), np.float32).view(np.uint32)
    made.records[...] = cupy().asarray(records)
    return made


def voxel_shape(shape: Shape5, parts: int) -> tuple[int, ...]:
    """Return the shape of the voxels of a packed value."""
    return shape.n, groups_for(shape.f) * parts, *shape.size, GROUP
