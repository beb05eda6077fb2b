"""The pieces of a layer that a GPU computes one after another: their order, bytes and time.

ZNNi (Zlateski, Lee and Seung, 2016), section VII-A, divides a layer by its batch, and where that
is not enough by output and input maps. Slabs of planes are between these here: their inputs
overlap by a kernel's extent less one, while each piece of the output maps needs all of the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

from znni.network import Conv
from znni.shapes import Shape5

# Maps that the primitives of a GPU work on together: pieces of more are multiples of it.
MAPS_TOGETHER = 16

# What a piece costs whatever its size, as bytes on their way: its kernels are started, and read
# the layer's transformed weights anew. And the share of a transfer's time that a GPU takes to go
# over the same numbers again.
PIECE_BYTES = 4 * 2**20
AGAIN = 1 / 8


class Part(NamedTuple):
    """Indices from ``start`` up to but not including ``stop``."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """How many."""
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        """Of an array's axis."""
        return slice(self.start, self.stop)


class Split(NamedTuple):
    """The extents of a piece: all pieces but the last of the maps have them.

    Attributes:
        items: of the batch; divides it.
        planes: of the output along z; the last slab is shifted back to have as many.
        outs: output maps.
        ins: input maps, whose sums are added up.
    """

    items: int
    planes: int
    outs: int
    ins: int


class SubLayer(NamedTuple):
    """One piece: a part of the input maps of a part of the output.

    Attributes:
        items: of the batch.
        planes: of the output along z.
        outs: output maps.
        ins: input maps.
    """

    items: Part
    planes: Part
    outs: Part
    ins: Part

    @property
    def weights(self) -> tuple[Part, Part]:
        """The part of the layer's weights that it is computed with."""
        return self.outs, self.ins


@dataclass(frozen=True)
class SubLayers:
    """A layer in pieces.

    Attributes:
        layer: the convolution.
        shape: of its input.
        out: shape of its output.
        split: the extents of a piece.
    """

    layer: Conv
    shape: Shape5
    out: Shape5
    split: Split

    def __iter__(self) -> Iterator[SubLayer]:
        """The pieces in order: those of one part of the output follow each other."""
        return (
            SubLayer(items, planes, outs, ins)
            for items in _parts(self.shape.n, self.split.items)
            for planes in _slabs(self.out.z, self.split.planes)
            for outs in self.out_parts
            for ins in self.in_parts
        )

    @property
    def out_parts(self) -> list[Part]:
        """Of the output maps."""
        return _parts(self.out.f, self.split.outs)

    @property
    def in_parts(self) -> list[Part]:
        """Of the input maps."""
        return _parts(self.shape.f, self.split.ins)

    @property
    def blocks(self) -> dict[tuple[Part, Part], Conv]:
        """The convolution that each part of the weights makes.

        Where input maps are divided it is without activation, which follows when all are added.
        """
        layer = self.layer
        activation = layer.activation if self.split.ins == self.shape.f else "identity"
        return {
            (outs, ins): Conv(layer.name, ins.length, outs.length, layer.kernel, activation)
            for outs, ins in product(self.out_parts, self.in_parts)
        }

    def input_of(self, piece: SubLayer) -> tuple[slice, slice, slice]:
        """Where a piece's input lies in the layer's: items, maps and planes."""
        planes = slice(piece.planes.start, piece.planes.stop + self.layer.kernel.z - 1)
        return piece.items.slice, piece.ins.slice, planes

    def output_of(self, piece: SubLayer) -> tuple[slice, slice, slice]:
        """Where a piece's output lies in the layer's: items, maps and planes."""
        return piece.items.slice, piece.outs.slice, piece.planes.slice

    def input_shape(self, ins: int) -> Shape5:
        """Of a piece's input of so many maps."""
        planes = self.split.planes + self.layer.kernel.z - 1
        return Shape5(self.split.items, ins, planes, self.shape.y, self.shape.x)

    def output_shape(self, outs: int) -> Shape5:
        """Of a piece's output of so many maps."""
        return Shape5(self.split.items, outs, self.split.planes, self.out.y, self.out.x)

    # Numbers of pieces

    @cached_property
    def places(self) -> int:
        """Pieces of the batch and of the planes."""
        return (self.shape.n // self.split.items) * _pieces(self.out.z, self.split.planes)

    @cached_property
    def outputs(self) -> int:
        """Pieces of the output, each of which is brought to the host once."""
        return self.places * _pieces(self.out.f, self.split.outs)

    @cached_property
    def inputs(self) -> int:
        """How often a piece of the input is brought to the GPU.

        One that has all maps stays there for all output maps.
        """
        return self.outputs * _pieces(self.shape.f, self.split.ins) if self.adds else self.places

    @property
    def adds(self) -> bool:
        """Whether sums over parts of the input maps are added up."""
        return self.split.ins < self.shape.f

    # Bytes

    @property
    def uploaded(self) -> int:
        """Bytes brought to the GPU."""
        times = self.outputs if self.adds else self.places
        return times * self.input_shape(self.shape.f).nbytes

    @property
    def downloaded(self) -> int:
        """Bytes brought to the host."""
        return self.places * self.output_shape(self.out.f).nbytes

    @property
    def input_buffers(self) -> int:
        """Places for pieces of the input: one is filled while the other is read."""
        return min(2, self.inputs)

    @property
    def output_buffers(self) -> int:
        """Places for pieces of the output: one is written while the other is brought away."""
        return min(2, self.outputs)

    @cached_property
    def buffer_bytes(self) -> int:
        """Bytes of all these places, and of one for the sums to be added."""
        out = self.output_shape(self.split.outs).nbytes
        held = self.input_buffers * self.input_shape(self.split.ins).nbytes
        return held + (self.output_buffers + self.adds) * out

    # Time

    def seconds(self, link: float, computing: float) -> float:
        """Of all pieces, with uploads, computing and downloads at a time.

        Args:
            link: bytes per second, each way.
            computing: seconds of all pieces' computing.
        """
        return _overlapped(self.outputs, self.uploaded / link, computing, self.downloaded / link)

    @cached_property
    def traffic(self) -> float:
        """Bytes that would take as long on their way as the layer does, as a measure of the split.

        The input is transformed for each part of the output maps, and the output for each of the
        input maps.
        """
        outs, ins = self.outputs // self.places, _pieces(self.shape.f, self.split.ins)
        again = (outs - 1) * self.shape.nbytes + (ins - 1) * self.out.nbytes
        transfers = _overlapped(self.outputs, self.uploaded, self.downloaded)
        return transfers + max(self.inputs, self.outputs) * PIECE_BYTES + AGAIN * again


def _overlapped(pieces: int, *stages: float) -> float:
    """The time of equal pieces that go through stages one after another, from that of each stage.

    The first piece goes through all of them, and then the slowest sets the pace.
    """
    return (sum(stages) + (pieces - 1) * max(stages)) / pieces


def splits(layer: Conv, shape: Shape5, out: Shape5) -> Iterator[SubLayers]:
    """Ways to divide a layer, those with the least traffic first.

    Input maps are divided last, where nothing else is small enough. Softmax needs all output maps
    at a time.
    """
    yield from _splits(layer, shape, out, summed=False)
    yield from _splits(layer, shape, out, summed=True)


@lru_cache(maxsize=4096)
def _splits(layer: Conv, shape: Shape5, out: Shape5, *, summed: bool) -> list[SubLayers]:
    """With or without sums over parts of the input maps."""
    outs = _map_sizes(out.f) if layer.activation != "softmax" else [out.f]
    single = product((1,), _halves(out.z), outs)
    if summed:
        found = [Split(*part, ins) for part in single for ins in _map_sizes(shape.f)[1:]]
    else:
        found = [Split(n, out.z, out.f, shape.f) for n in _divisors(shape.n) if n > 1]
        found += [Split(*part, shape.f) for part in single]
    return sorted(
        (SubLayers(layer, shape, out, split) for split in found),
        key=lambda it: (it.traffic, it.buffer_bytes),
    )


def _pieces(total: int, size: int) -> int:
    return -(-total // size)


def _parts(total: int, size: int) -> list[Part]:
    return [Part(first, min(first + size, total)) for first in range(0, total, size)]


def _slabs(total: int, size: int) -> Iterator[Part]:
    """As ``_parts``, but all of them as large."""
    for first in range(0, total, size):
        start = min(first, total - size)
        yield Part(start, start + size)


def _divisors(number: int) -> list[int]:
    return [n for n in range(number, 0, -1) if number % n == 0]


def _halves(number: int) -> list[int]:
    """The number, and half of each until there is one, rounded up."""
    found = [number]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found


def _map_sizes(maps: int) -> list[int]:
    """Maps of a piece: halves of all, in whole groups where there are more than one."""
    rounded = {
        min(maps, -(-n // MAPS_TOGETHER) * MAPS_TOGETHER) if n > MAPS_TOGETHER else n
        for n in _halves(maps)
    }
    return sorted(rounded, reverse=True)
