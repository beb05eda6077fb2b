"""Upsampling as a layer of a network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from znni.core.errors import InvalidInput
from znni.core.shapes import ONE, ZERO, Box, Vec3
from znni.network.convolutions import finer
from znni.network.layer_checks import LayerBase, check_extents


@dataclass(frozen=True, repr=False)
class Upsample(LayerBase):
    """Upsampling by whole factors, as PyTorch does it without ``align_corners``.

    Attributes:
        name: the name, unique within the network.
        factor: the samples of the output for each sample of the input, per axis.
        mode: ``nearest`` repeats samples; ``trilinear`` interpolates between their centres.
        shift: the samples by which the output lies later than the input. The first sample is
            repeated so often. That is how PyTorch resizes a value by one sample, which U-Nets do
            after transposed convolutions that give one sample too few.

    Raises:
        InvalidInput: a factor is not positive, a shift is negative, or there are both.
    """

    is_dense: ClassVar[bool] = False
    name: str
    factor: Vec3
    mode: Literal["nearest", "trilinear"] = "nearest"
    shift: Vec3 = ZERO
    kind: Literal["upsample"] = field(default="upsample", repr=False)

    def __post_init__(self) -> None:
        check_extents(f"layer {self.name}: factor", self.factor)
        check_extents(f"layer {self.name}: shift", self.shift, least=0)
        if self.shift != ZERO and self.factor != ONE:
            raise InvalidInput(
                f"layer {self.name} has factor {self.factor} and shift {self.shift}; give one of "
                f"them, and the other to a layer of its own"
            )

    @property
    def sees_edges(self) -> bool:
        """True if it must know where the volume ends, because it repeats the outermost samples."""
        return self.mode == "trilinear" or self.shift != ZERO

    @property
    def local(self) -> Upsample:
        """The layer for a block. The samples that it reads are already shifted."""
        if self.shift == ZERO:
            return self
        return replace(self, mode="trilinear", shift=ZERO)

    @property
    def context(self) -> Vec3:
        """The samples on each side that interpolation takes beside the ones it refines."""
        if self.mode == "nearest":
            return ZERO
        return Vec3(*(int(factor > 1) for factor in self.factor))

    def scaled(self, scale: Vec3) -> Vec3:
        """Return the voxels per sample of the output, given those of the input."""
        return finer(self.name, scale, self.factor)

    def reads(self, box: Box) -> Box:
        """Return the samples of the input that a box of samples of the output depends on."""
        start, stop = box.start // self.factor, box.stop.ceil_div(self.factor)
        return Box(start - self.context, stop + self.context).shifted(ZERO - self.shift)

    def rounded(self, box: Box) -> Box:
        """Return the smallest box around another that the layer can compute.

        If it shifts, the first block must have the sample that is repeated, however small it is.
        """
        start, stop = box.start // self.factor, box.stop.ceil_div(self.factor)
        if self.shift != ZERO:
            stop = stop.maximum(start + self.shift + 1)
        return Box(start * self.factor, stop * self.factor)

    def size_from(self, *sizes: Vec3) -> Vec3:
        """Return the output's samples per axis for a whole input of that size."""
        return sizes[0] * self.factor + self.shift

    def local_size(self, size: Vec3) -> Vec3:
        """Return the output's samples per axis for a stored input."""
        return (size - self.context * 2) * self.factor
