"""The pieces of a layer that a GPU computes one after another: their order, bytes and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from znni.core.shapes import Shape5
from znni.network.layers import Conv
from znni.primitives.host_and_gpu.splits import Amounts, Split, amounts, overlapped


class Part(NamedTuple):
    """Indices from ``start`` up to but not including ``stop``."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """The number of indices."""
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        """The slice of an array's axis."""
        return slice(self.start, self.stop)


class SubLayer(NamedTuple):
    """One piece: a part of the input maps of a part of the output.

    Attributes:
        items: items of the batch.
        planes: output planes along z.
        outs: output maps.
        ins: input maps.
    """

    items: Part
    planes: Part
    outs: Part
    ins: Part

    @property
    def weights(self) -> tuple[Part, Part]:
        """The part of the layer's weights that the piece needs."""
        return self.outs, self.ins


@dataclass(frozen=True)
class SubLayers:
    """A layer in pieces.

    Attributes:
        layer: the convolution.
        shape: the shape of its input.
        out: the shape of its output.
        split: the extents of pieces.
    """

    layer: Conv
    shape: Shape5
    out: Shape5
    split: Split

    def __iter__(self) -> Iterator[SubLayer]:
        """Yield the pieces in order: those of one part of the output follow each other."""
        return (
            SubLayer(items, planes, outs, ins)
            for items in _parts(self.shape.n, self.split.items)
            for planes in _slabs(self.out.z, self.split.planes)
            for outs in self.out_parts
            for ins in self.in_parts
        )

    @property
    def out_parts(self) -> list[Part]:
        """The parts of the output maps."""
        return _parts(self.out.f, self.split.outs)

    @property
    def in_parts(self) -> list[Part]:
        """The parts of the input maps."""
        return _parts(self.shape.f, self.split.ins)

    @property
    def blocks(self) -> dict[tuple[Part, Part], Conv]:
        """The convolution of each part of the weights."""
        return {
            (outs, ins): self.block(outs.length, ins.length)
            for outs, ins in product(self.out_parts, self.in_parts)
        }

    @property
    def block_counts(self) -> dict[Conv, int]:
        """The convolutions of all parts, four at most, and how many parts have each."""
        outs, ins = _lengths(self.out.f, self.split.outs), _lengths(self.shape.f, self.split.ins)
        return {self.block(o, i): outs[o] * ins[i] for o, i in product(outs, ins)}

    def block(self, outs: int, ins: int) -> Conv:
        """Return the convolution of so many output and input maps.

        If input maps are divided it has no activation, because that follows the last sum.
        """
        layer = self.layer
        activation = layer.activation if self.split.ins == self.shape.f else "identity"
        return Conv(layer.name, ins, outs, layer.kernel, activation)

    def input_of(self, piece: SubLayer) -> tuple[slice, slice, slice]:
        """Return where a piece's input lies in the layer's: items, maps and planes."""
        planes = slice(piece.planes.start, piece.planes.stop + self.layer.kernel.z - 1)
        return piece.items.slice, piece.ins.slice, planes

    def output_of(self, piece: SubLayer) -> tuple[slice, slice, slice]:
        """Return where a piece's output lies in the layer's: items, maps and planes."""
        return piece.items.slice, piece.outs.slice, piece.planes.slice

    def input_shape(self, ins: int) -> Shape5:
        """Return the shape of a piece's input of so many maps."""
        planes = self.split.planes + self.layer.kernel.z - 1
        return Shape5(self.split.items, ins, planes, self.shape.y, self.shape.x)

    def output_shape(self, outs: int) -> Shape5:
        """Return the shape of a piece's output of so many maps."""
        return Shape5(self.split.items, outs, self.split.planes, self.out.y, self.out.x)

    @cached_property
    def amounts(self) -> Amounts:
        """The numbers of pieces and bytes."""
        return amounts(self.layer, self.shape, self.out, self.split)

    @property
    def adds(self) -> bool:
        """True if the input maps are divided, so that partial sums are added up."""
        return self.split.ins < self.shape.f

    def seconds(self, link: float, computing: float) -> float:
        """Return the time of all pieces, with uploads, computing and downloads side by side.

        Args:
            link: bytes per second, each way.
            computing: seconds in which the GPU computes all pieces.
        """
        found = self.amounts
        up, down = found.uploaded / link, found.downloaded / link
        return overlapped(found.outputs, up, computing, down)


def _parts(total: int, size: int) -> list[Part]:
    return [Part(first, min(first + size, total)) for first in range(0, total, size)]


def _lengths(total: int, size: int) -> dict[int, int]:
    """Return the lengths of these parts, and how many parts have each."""
    whole, left = divmod(total, size)
    return {size: whole} | ({left: 1} if left else {})


def _slabs(total: int, size: int) -> Iterator[Part]:
    """Yield parts of equal size: the last one is shifted back."""
    for first in range(0, total, size):
        start = min(first, total - size)
        yield Part(start, start + size)
