"""Packed arrays: values of a network on a GPU in float16, 8 maps of a voxel together.

Tensor cores read them as they are. Numbers are stored times a scale, a power of two. A record for
each group of 8 maps has the bits of the largest number, without the scale, and those of the scale.
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


class PackedArray(NamedTuple):
    """A packed value, or a part of one.

    Attributes:
        voxels: float16 (n, group, z, y, x, map of the group); the last axis has no gaps, and along
            x there are none either.
        records: uint32 (group, largest number or scale).
        sums: float64 (part, map, sum or sum of squares), if the layer that made the value also
            added up its maps.
    """

    voxels: Any
    records: Any
    sums: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (n, f, z, y, x)."""
        n, groups, *size, _ = self.voxels.shape
        return n, GROUP * groups, *size

    @property
    def words(self) -> Any:
        """The voxels as float32 (n, group, z, y, 4 x), to be copied or set to zero."""
        n, groups, z, y, x, _ = self.voxels.shape
        shape = n, groups, z, y, x * VOXEL_BYTES // 4
        return cupy().ndarray(shape, np.float32, self.voxels.data, (*self.voxels.strides[:4], 4))

    def maps(self, first: int, count: int) -> PackedArray:
        """Return some of the maps, which are whole groups."""
        groups = slice(first // GROUP, (first + count) // GROUP)
        return PackedArray(self.voxels[:, groups], self.records[groups])

    def lies_with(self, other: PackedArray) -> bool:
        """Return whether this and another value have the same memory, with equal shapes."""
        one, two = self.voxels, other.voxels
        return bool(one.data.ptr == two.data.ptr) and one.strides == two.strides

    def within(self, box: Box) -> PackedArray:
        """Return the voxels of a box."""
        return self._replace(voxels=self.voxels[:, :, *box.slices])


def in_words(box: Box) -> Box:
    """Return the box of the words of a box's voxels."""
    words = VOXEL_BYTES // 4
    start, stop = (corner._replace(x=corner.x * words) for corner in (box.start, box.stop))
    return Box(start, stop)


def packed_bytes(shape: Shape5) -> int:
    """Return the bytes of a packed value, without its records."""
    return shape.n * -(-shape.f // GROUP) * shape.size.volume * VOXEL_BYTES


def packed_array(shape: Shape5) -> PackedArray:
    """Return a new packed array, whose maps are whole groups and whose records are zero."""
    voxels = cupy().empty(voxel_shape(shape), np.float16)
    return PackedArray(voxels, cupy().zeros((shape.f // GROUP, 2), np.uint32))


def packed_copy(x: Any) -> PackedArray:
    """Return the numbers of an array on the GPU, packed with a scale of 1.

    Args:
        x: float32 (n, f, z, y, x), whose maps are whole groups.
    """
    made = packed_array(Shape5(*x.shape))
    n, f, *size = x.shape
    grouped = x.reshape(n, f // GROUP, GROUP, *size)
    for index in range(GROUP):
        made.voxels[..., index] = grouped[:, :, index]
    records = np.array((max(x.max().item(), -x.min().item()), 1), np.float32).view(np.uint32)
    made.records[...] = cupy().asarray(records)
    return made


def voxel_shape(shape: Shape5) -> tuple[int, ...]:
    """Return the shape of the voxels of a packed value, whose maps are whole groups."""
    return shape.n, shape.f // GROUP, *shape.size, GROUP
