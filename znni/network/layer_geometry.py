"""The samples that layers read and give: voxel by voxel, or by a box slid over the input."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple, Self

from znni.core.shapes import ZERO, Box, Vec3
from znni.network.layer_checks import LayerBase


class Padding(NamedTuple):
    """The zeros around a value, in samples per axis."""

    before: Vec3 = ZERO
    after: Vec3 = ZERO

    @property
    def total(self) -> Vec3:
        """The zeros on both sides together."""
        return self.before + self.after

    def widened(self, more: Padding) -> Padding:
        """Return these zeros with others around them."""
        return Padding(self.before + more.before, self.after + more.after)


NO_PADDING = Padding()


class SameVoxel(LayerBase):
    """The geometry of layers whose output has the samples of their inputs."""

    sees_edges: ClassVar[bool] = False
    is_dense: ClassVar[bool] = False

    @property
    def local(self) -> Self:
        """The layer for a block: the same."""
        return self

    def scaled(self, scale: Vec3) -> Vec3:
        """Return the voxels per sample of the output: those of the input."""
        return scale

    def reads(self, box: Box) -> Box:
        """Return the samples of each input that a box of samples of the output depends on."""
        return box

    def rounded(self, box: Box) -> Box:
        """Return the smallest box around another that the layer can compute."""
        return box

    def size_from(self, *sizes: Vec3) -> Vec3:
        """Return the output's samples per axis: as many as the smallest input has."""
        smallest = sizes[0]
        for size in sizes[1:]:
            smallest = smallest.minimum(size)
        return smallest

    def local_size(self, size: Vec3) -> Vec3:
        """Return the output's samples per axis for a stored input."""
        return size


class SlidBox(LayerBase):
    """The geometry of layers that slide a box over their input: convolutions and poolings."""

    @property
    def sees_edges(self) -> bool:
        """True if it must know where the volume ends."""
        return False

    @property
    @abstractmethod
    def stride(self) -> Vec3:
        """The samples of the input from one sample of the output to the next."""

    @property
    @abstractmethod
    def padding(self) -> Padding:
        """The samples around the input."""

    @property
    @abstractmethod
    def reach(self) -> Vec3:
        """The extents of the box, in samples."""

    def scaled(self, scale: Vec3) -> Vec3:
        """Return the voxels per sample of the output, given those of the input."""
        return scale * self.stride

    def needs(self, region: Box, stride: Vec3) -> Box:
        """Return the voxels of the input that a dense region of the output depends on."""
        return Box(region.start, region.stop + (self.reach - 1) * stride)

    def reads(self, box: Box) -> Box:
        """Return the samples of the input that a box of samples of the output depends on.

        Both count samples from the first one of the whole value. The result may reach beyond it.
        """
        start = box.start * self.stride - self.padding.before
        last = (box.stop - 1) * self.stride - self.padding.before
        return Box(start, last + self.reach)

    def rounded(self, box: Box) -> Box:
        """Return the smallest box around another that the layer can compute."""
        return box

    def size_from(self, *sizes: Vec3) -> Vec3:
        """Return the output's samples per axis for a whole input of that size."""
        return self.local_size(sizes[0] + self.padding.total)

    def local_size(self, size: Vec3) -> Vec3:
        """Return the output's samples per axis for a stored input, which holds its padding."""
        return (size - self.reach) // self.stride + 1
