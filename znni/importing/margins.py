"""Margins: samples around a value that a source crops, and that the imported network computes.

Joins crop what they read to the centre, down to the smallest value. A source may crop all of these
values further, each by the same number of samples. funlib does so, because neighbouring outputs
then fit together. Blocks of an exact network fit anyway. So the import leaves this crop out, and
the imported network has a margin around the join's value and all that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing.steps import (
    Affine,
    Convolution,
    Cropping,
    Graph,
    Nonlinearity,
    Operation,
    TransposedConvolution,
    Upsampling,
)
from znni.network.layer_geometry import NO_PADDING, ONE, ZERO
from znni.network.layers import Padding


class Unsuited(InvalidInput):
    """A graph that cannot be represented for the size of its input, but perhaps for another."""


@dataclass(frozen=True)
class Joined:
    """A value that a join reads.

    Attributes:
        size: its samples in the source.
        around: the samples around these that the imported network gives to the join.
        crop: the layer that crops the value last; empty if none does.
    """

    size: Vec3
    around: Padding
    crop: str

    @property
    def whole(self) -> Vec3:
        """All samples that the imported network gives to the join."""
        return self.size + self.around.total


def margin_of_join(origin: str, values: Sequence[Joined]) -> Padding:
    """Return the margin of a join.

    Args:
        origin: the join.
        values: what it reads. All have the same size.

    Raises:
        Unsuited: the source joins other samples than those that lie at the same place if each value
            is cropped to its centre.
    """
    smallest = Vec3(*map(min, zip(*(value.whole for value in values), strict=True)))
    margins = []
    for value in values:
        before, after = _cropped(value.whole, smallest)
        margins.append(Padding(value.around.before - before, value.around.after - after))
    if len(set(margins)) == 1:
        return margins[0]
    value = next(value for value in values if value.around != _cropped(value.whole, smallest))
    before, after = _cropped(value.whole, smallest)
    raise Unsuited(
        f"{value.crop or 'a layer before'} crops {value.around.before} before and "
        f"{value.around.after} after, and {origin} by itself would crop {before} and {after} of "
        f"{value.whole}; crop to the centre, by an even number of samples"
    )


def _cropped(size: Vec3, smallest: Vec3) -> Padding:
    """Return the samples that a join crops."""
    before = (size - smallest) // 2
    return Padding(before, size - smallest - before)


def margin_after(operation: Operation, margin: Padding) -> Padding:
    """Return the margin of what an operation makes of a value with a margin.

    Raises:
        Unsuited: without the crop, the operation would give other samples within the margin.
    """
    if margin == NO_PADDING:
        return margin
    match operation:
        case Affine() | Nonlinearity() | Cropping():
            return margin
        case Convolution(stride=step, padding=padding) if (step, padding) == (ONE, NO_PADDING):
            return margin
        case Upsampling(mode="nearest", factor=factor, shift=shift) if shift == ZERO:
            return Padding(margin.before * factor, margin.after * factor)
        case TransposedConvolution(stride=step, padding=cut, padding_after=more, weight=kernels):
            if cut == more == ZERO and Vec3(*kernels.shape[2:]).within(step):
                return Padding(margin.before * step, margin.after * step)
    raise Unsuited(
        f"{operation.origin} reads what depends on a crop of {margin.before} before and "
        f"{margin.after} after that no join needs; only convolutions without stride and padding, "
        f"and nearest upsampling, may follow such a crop: leave it out"
    )


def margins(read: Callable[[Vec3], Graph]) -> Callable[[Vec3], Padding]:
    """Return the function from the size of a source's input to the margin of its output.

    Args:
        read: function that reads the source for a size.
    """

    def margin(size: Vec3) -> Padding:
        try:
            return read(size).margin
        except InvalidInput:
            return NO_PADDING  # the comparison then needs equal shapes

    return margin
