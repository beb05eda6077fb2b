"""Primitives that are composed of others, each of which computes some items of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.layers import Operation
from znni.plans.composition import AtOnce, InTurn
from znni.plans.primitive import Primitive, applying


@dataclass(frozen=True)
class Piece:
    """Some items of a batch that one primitive computes, several times one after another.

    Attributes:
        times: the number of times.
        items: the items of the input, each time.
        primitive: the primitive that computes them.
    """

    times: int
    items: int
    primitive: Primitive

    def of(self, shape: Shape5) -> Shape5:
        """Return the shape of the items of one time."""
        return shape._replace(n=self.items)


class Composed(Primitive):
    """Pieces that make up a batch, as one primitive."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Piece]:
        """The pieces in the order of their items."""

    @property
    @abstractmethod
    def composition(self) -> InTurn | AtOnce:
        """The pieces with the names of their primitives, as a plan stores them."""

    @property
    def name(self) -> str:
        """The name in a plan's table, such as ``4x2 fft_data_parallel + 1x3 direct``."""
        return str(self.composition)

    @property
    def device(self) -> Device:
        """The device of input and output."""
        return self.parts[0].primitive.device

    @property
    def accuracy(self) -> float:
        """The relative error of the least accurate piece."""
        return max(piece.primitive.accuracy for piece in self.parts)

    @property
    def version(self) -> int:
        """The sum of the pieces' versions. It grows with each of them."""
        return sum(piece.primitive.version for piece in self.parts)

    @property
    def items(self) -> int:
        """The items of the batch."""
        return sum(piece.times * piece.items for piece in self.parts)

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output shape.

        It is None for another batch, or if a piece's primitive does not apply.
        """
        if shape.n != self.items:
            return None
        outs = [p.primitive.out_shape(layer, p.of(shape)) for p in self.parts]
        shapes = [out for out in outs if out is not None]
        if len(shapes) < len(outs):
            return None
        together = sum(p.times * out.n for p, out in zip(self.parts, shapes, strict=True))
        return shapes[0]._replace(n=together)

    def out(self, layer: Operation, shape: Shape5) -> Shape5:
        """Return the output shape of a call that all pieces' primitives compute."""
        return applying(self.out_shape(layer, shape), self, layer, shape)
