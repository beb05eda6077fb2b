"""How a layer may be divided into pieces for a GPU, and which way moves the fewest bytes.

ZNNi (Zlateski, Lee and Seung, 2016), section VII-A, divides a layer by its batch, and where that
is not enough by output and input maps. Slabs of planes are between these here: their inputs
overlap by a kernel's extent less one, while each piece of the output maps needs all of the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import inf
from typing import NamedTuple

from znni.core.shapes import Shape5
from znni.network.network import Conv

# Maps that the primitives of a GPU work on together: pieces of more are multiples of it.
MAPS_TOGETHER = 16

# What a piece costs whatever its size, as bytes on their way: its kernels are started, and read
# the layer's transformed weights anew. And the share of a transfer's time that a GPU takes to go
# over the same numbers again.
PIECE_BYTES = 4 * 2**20
AGAIN = 1 / 8


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


class Amounts(NamedTuple):
    """What a layer in pieces comes to.

    Attributes:
        places: pieces of the batch and of the planes.
        outputs: pieces of the output, each of which is brought to the host once.
        inputs: how often a piece of the input is brought to the GPU. One that has all maps stays
            there for all output maps.
        uploaded: bytes brought to the GPU.
        downloaded: bytes brought to the host.
        input_buffers: places on the GPU for pieces of the input: one is filled while the other is
            read.
        output_buffers: those for pieces of the output: one is written while the other is brought
            away.
        buffer_bytes: of all these, and of one more for sums to be added.
    """

    places: int
    outputs: int
    inputs: int
    uploaded: int
    downloaded: int
    input_buffers: int
    output_buffers: int
    buffer_bytes: int


def amounts(layer: Conv, shape: Shape5, out: Shape5, split: Split) -> Amounts:
    """What a layer comes to in pieces of these extents.

    Args:
        layer: the convolution.
        shape: of its input.
        out: of its output.
        split: the extents of a piece.
    """
    items, planes, outs, ins = split
    adds = ins < shape.f
    places = (shape.n // items) * _pieces(out.z, planes)
    outputs = places * _pieces(out.f, outs)
    inputs = outputs * _pieces(shape.f, ins) if adds else places
    input_buffers, output_buffers = min(2, inputs), min(2, outputs)
    given = shape._replace(n=items, f=1, z=planes + layer.kernel.z - 1).nbytes
    made = out._replace(n=items, f=1, z=planes).nbytes
    return Amounts(
        places,
        outputs,
        inputs,
        uploaded=(outputs if adds else places) * shape.f * given,
        downloaded=places * out.f * made,
        input_buffers=input_buffers,
        output_buffers=output_buffers,
        buffer_bytes=input_buffers * ins * given + (output_buffers + adds) * outs * made,
    )


def _traffic(shape: Shape5, out: Shape5, amount: Amounts) -> float:
    """Bytes that would take as long on their way as a layer in pieces, as a measure of them.

    The input is transformed for each part of the output maps, and the output for each of the
    input maps.
    """
    places, outputs, inputs, uploaded, downloaded, *_ = amount
    again = (outputs // places - 1) * shape.nbytes
    again += (inputs // outputs - 1) * out.nbytes if inputs > outputs else 0
    transfers = overlapped(outputs, uploaded, downloaded)
    return transfers + max(inputs, outputs) * PIECE_BYTES + AGAIN * again


def overlapped(count: int, *stages: float) -> float:
    """The time of equal pieces that go through stages one after another, from that of each stage.

    The first piece goes through all of them, and then the slowest sets the pace.
    """
    return (sum(stages) + (count - 1) * max(stages)) / count


def splits(layer: Conv, shape: Shape5, out: Shape5, budget: float = inf) -> Iterator[Split]:
    """Ways to divide a layer whose pieces have a place on the GPU, the least traffic first.

    Input maps are divided last, where nothing else is small enough. Softmax needs all output maps
    at a time.

    Args:
        layer: the convolution.
        shape: of its input.
        out: of its output.
        budget: bytes for the pieces of input and output.
    """
    for summed in (False, True):
        for _, buffer_bytes, split in _by_traffic(layer, shape, out, summed=summed):
            if buffer_bytes <= budget:
                yield split


# The budgets and primitives of one call ask one after another.
@lru_cache(maxsize=16)
def _by_traffic(
    layer: Conv, shape: Shape5, out: Shape5, *, summed: bool
) -> list[tuple[float, int, Split]]:
    """Traffic, bytes and way, with or without sums over parts of the input maps, in order."""
    outs = _map_sizes(out.f) if layer.activation != "softmax" else [out.f]
    single = product((1,), _halves(out.z), outs)
    if summed:
        ways = [Split(*part, ins) for part in single for ins in _map_sizes(shape.f)[1:]]
    else:
        ways = [Split(n, out.z, out.f, shape.f) for n in _divisors(shape.n) if n > 1]
        ways += [Split(*part, shape.f) for part in single]
    found = ((amounts(layer, shape, out, way), way) for way in ways)
    measured = [(_traffic(shape, out, amount), amount.buffer_bytes, way) for amount, way in found]
    return sorted(measured, key=lambda it: it[:2])


def _pieces(total: int, size: int) -> int:
    """How many there are of so many, with the last one that is smaller."""
    return -(-total // size)


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
