"""Slabs in which a scan becomes the network's input, within the memory for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from znni.core.resampling import Resampling
from znni.core.shapes import FLOAT_BYTES, ZERO, Box, Vec3
from znni.engine.stages.read import COPIES_READ
from znni.resampling.box_resampling import resample_bytes
from znni.volumes.array import ArrayVolume

SLAB_BYTES = 2**29  # for a slab, if a plane takes no more; more makes nothing faster
MASK_BYTES = 2  # of a voxel: whether it counts, and whether it does not


@dataclass(frozen=True)
class InputSlabs:
    """Slabs of the network's input: whole planes, as many as the memory allows.

    If it does not allow one plane, they are rows of a plane.

    Attributes:
        resampling: the resampling from the scan's crop to the input.
        threads: the number of threads.
        room: the bytes for a slab.
        read_bytes: the bytes that a voxel of the crop takes.
        made_bytes: the bytes that a voxel of the input takes.
    """

    resampling: Resampling
    threads: int
    room: int
    read_bytes: int
    made_bytes: int

    @property
    def boxes(self) -> Iterator[Box]:
        """The slabs, in order."""
        return Box(ZERO, self.resampling.target).cut(self.extents)

    @property
    def extents(self) -> Vec3:
        """The extents of a slab."""
        target = self.resampling.target
        slab = target._replace(z=1)
        while slab.y > 1 and self._bytes_of(slab) > self.room:
            slab = slab._replace(y=-(-slab.y // 2))
        while slab.y == target.y and slab.z < target.z:
            more = slab._replace(z=min(2 * slab.z, target.z))
            if self._bytes_of(more) > min(self.room, SLAB_BYTES):
                break
            slab = more
        return slab

    @property
    def clips(self) -> bool:
        """True if values are clipped, as nnU-Net does. MONAI clips nothing."""
        change = self.resampling
        return 3 in change.orders and change.changes and not change.steps

    @property
    def bound_planes(self) -> int:
        """The planes of the crop that are read at a time, to find its least and largest value."""
        most = min(self.room, SLAB_BYTES) // self._plane_bytes
        return max(1, min(most, self.resampling.source.z))

    @property
    def nbytes(self) -> int:
        """The bytes that the slabs take."""
        taken = self._bytes_of(self.extents)
        if self.clips:
            taken = max(taken, self.bound_planes * self._plane_bytes)
        return taken

    @property
    def _plane_bytes(self) -> int:
        return self.read_bytes * self.resampling.source._replace(z=1).volume

    def _bytes_of(self, slab: Vec3) -> int:
        """Return the bytes of a slab, of the box of the crop that it needs, and beside them."""
        change = self.resampling
        first = (change.target - slab) // 2  # most voxels are needed in the middle
        taken = self.read_bytes * change.most_needed(slab).minimum(change.source).volume
        taken += self.made_bytes * slab.volume
        if change.changes:
            taken += resample_bytes(change, Box(first, first + slab), self.threads)
        return taken


def image_slabs(volume: ArrayVolume, resampling: Resampling, threads: int, room: int) -> InputSlabs:
    """Return the slabs of a scan's image. A box of the crop is read while another is resampled."""
    copies = COPIES_READ + (volume.pieces is None)  # one of turned axes
    each = copies * volume.itemsize + 2 * FLOAT_BYTES
    made = FLOAT_BYTES * volume.features
    return InputSlabs(resampling, threads, room, volume.features * each + MASK_BYTES, made)


def label_slabs(
    itemsize: int, dtype: DTypeLike, resampling: Resampling, threads: int, room: int
) -> InputSlabs:
    """Return the slabs of the previous stage's labels.

    The arrays of a slab stay until those of the next one are made.
    """
    made = np.dtype(dtype).itemsize
    read = (COPIES_READ + 1) * itemsize + 3 * made + 2 * MASK_BYTES
    return InputSlabs(resampling, threads, room, read, 2 * made)
