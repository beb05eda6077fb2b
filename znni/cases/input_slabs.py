"""Slabs in which a scan becomes the network's input, within the memory for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from znni.core.resampling import Resampling
from znni.core.shapes import FLOAT_BYTES, Box, Vec3
from znni.engine.stages.read import COPIES_READ
from znni.engine.tiles import ZERO
from znni.resampling.spline import resample_bytes
from znni.volumes.array import ArrayVolume

SLAB_BYTES = 2**29  # for a slab, if a plane takes no more; more makes nothing faster
MASK_BYTES = 2  # of a voxel: whether it counts, and whether it does not


@dataclass(frozen=True)
class InputSlabs:
    """Slabs of the network's input: whole planes, as many as the memory allows.

    If it does not allow one plane, they are rows of a plane.

    Attributes:
        volume: the scan.
        resampling: the resampling from its crop to the input.
        threads: the number of threads.
        room: the bytes for a slab.
    """

    volume: ArrayVolume
    resampling: Resampling
    threads: int
    room: int

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
        most = min(self.room, SLAB_BYTES) // self._read_bytes(self._plane)
        return max(1, min(most, self.resampling.source.z))

    @property
    def nbytes(self) -> int:
        """The bytes that the slabs take."""
        taken = self._bytes_of(self.extents)
        if self.clips:
            taken = max(taken, self.bound_planes * self._read_bytes(self._plane))
        return taken

    @property
    def _plane(self) -> Vec3:
        return self.resampling.source._replace(z=1)

    def _bytes_of(self, slab: Vec3) -> int:
        """Return the bytes of two boxes of the scan, of one slab, and beside them."""
        change = self.resampling
        first = (change.target - slab) // 2  # most voxels are needed in the middle
        taken = self._read_bytes(change.most_needed(slab).minimum(change.source))
        taken += FLOAT_BYTES * self.volume.features * slab.volume
        if change.changes:
            taken += resample_bytes(change, Box(first, first + slab), self.threads)
        return taken

    def _read_bytes(self, size: Vec3) -> int:
        """Return the bytes of two boxes of the scan, and what reading one of them takes."""
        copies = COPIES_READ + (self.volume.pieces is None)  # one of turned axes
        each = copies * self.volume.itemsize + 2 * FLOAT_BYTES
        return size.volume * (self.volume.features * each + MASK_BYTES)
