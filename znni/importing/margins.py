"""Margins: samples around a value that a source crops, and that the imported network computes.

A join crops its inputs to the centre, to the size of the smallest. A source may crop all inputs
further, by the same number of samples. funlib does so, because neighbouring outputs then fit
together. Blocks of a tiled network fit without this crop, so the import leaves it out. The
imported network then has a margin around the join's value and around all later values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from znni.core.errors import InvalidInput
from znni.core.shapes import ONE, ZERO, Vec3
from znni.importing.steps import Graph, Layered, Nonlinearity, Operation
from znni.network.layer_geometry import NO_PADDING
from znni.network.layers import Affine, Conv, ConvTranspose, Padding, Upsample


class Unsuited(InvalidInput):
    """A graph that suits no network at this size of its input, but perhaps at another size."""


@dataclass(frozen=True)
class Joined:
    """A value that a join reads.

    Attributes:
        size: its extents in the source.
        around: the samples around it that only the imported network gives to the join.
        crop: the last layer that crops the value; empty if none does.
    """

    size: Vec3
    around: Padding
    crop: str

    @property
    def whole(self) -> Vec3:
        """The value's extents in the imported network."""
        return self.size + self.around.total


def margin_of_join(origin: str, values: Sequence[Joined]) -> Padding:
    """Return the margin of a join of values of the same size.

    Raises:
        Unsuited: the source does not crop each value to its centre, so it joins other samples.
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
    """Return the samples that a join crops from a value."""
    before = (size - smallest) // 2
    return Padding(before, size - smallest - before)


def margin_after(operation: Operation, margin: Padding) -> Padding:
    """Return the margin of an operation's output.

    Raises:
        Unsuited: without the crop, the operation would give other samples within the margin.
    """
    if margin == NO_PADDING:
        return margin
    match operation.layer if isinstance(operation, Layered) else operation:
        case Affine() | Nonlinearity():
            return margin
        case Conv(stride=step, padding=padding) if (step, padding) == (ONE, NO_PADDING):
            return margin
        case Upsample(mode="nearest", factor=factor, shift=shift) if shift == ZERO:
            return Padding(margin.before * factor, margin.after * factor)
        case ConvTranspose(kernel=kernel, stride=step, padding=cut, padding_after=more):
            if cut == more == ZERO and kernel.within(step):
                return Padding(margin.before * step, margin.after * step)
    raise unneeded_crop(operation.origin, margin)


def unneeded_crop(reader: str, margin: Padding) -> Unsuited:
    """Return the error about a layer that cannot follow a crop that no join needs."""
    return Unsuited(
        f"{reader} reads what depends on a crop of {margin.before} before and "
        f"{margin.after} after that no join needs; only convolutions without stride and padding, "
        f"and nearest upsampling, may follow such a crop: leave it out"
    )


def margins(read: Callable[[Vec3], Graph]) -> Callable[[Vec3], Padding]:
    """Return a function that takes the size of a source's input and returns its output's margin."""

    def margin(size: Vec3) -> Padding:
        try:
            return read(size).margin
        except InvalidInput:
            return NO_PADDING  # the comparison then needs equal shapes

    return margin
