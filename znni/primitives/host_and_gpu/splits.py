"""The ways to divide a layer into pieces for a GPU, in the order of the bytes that they move.

ZNNi (Zlateski, Lee and Seung, 2016), section VII-A, divides a layer by its batch, and if that is
not enough, by output and input maps. We try slabs of planes before maps: the inputs of slabs
overlap by a kernel's extent less one, but each piece of the output maps needs all of the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import inf
from typing import NamedTuple

from znni.core.shapes import Shape5
from znni.network.layers import Conv
from znni.primitives.gpu.common.division import divisors

# Maps that a GPU's primitives work on together: larger pieces have a multiple of these.
MAPS_TOGETHER = 16

# The cost of a piece of any size, in bytes of transfer: its kernels start, and read the layer's
# transformed weights anew. And the share of a transfer's time in which a GPU passes over the same
# numbers again.
PIECE_BYTES = 4 * 2**20
AGAIN = 1 / 8


class Split(NamedTuple):
    """The extents of pieces. Only the last pieces along the maps may have fewer maps.

    Attributes:
        items: items of the batch, a divisor of all.
        planes: output planes along z. The last slab is shifted back to have as many.
        outs: output maps.
        ins: input maps. The sums of their parts are added up.
    """

    items: int
    planes: int
    outs: int
    ins: int


class Amounts(NamedTuple):
    """The numbers of pieces and bytes of a layer in pieces.

    Attributes:
        places: pieces of the batch times slabs of planes.
        outputs: pieces of the output, each of which is brought to the host once.
        inputs: how often a piece of the input is brought to the GPU. A piece of all input maps
            stays there for all output maps.
        uploaded: bytes brought to the GPU.
        downloaded: bytes brought to the host.
        input_buffers: buffers on the GPU for pieces of the input: one is filled while the other is
            read.
        output_buffers: buffers on the GPU for pieces of the output: one is written while the other
            is brought to the host.
        buffer_bytes: bytes of all buffers, with one more if sums are to be added.
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
    """Return the pieces and bytes of a layer in pieces of these extents.

    Args:
        layer: the convolution.
        shape: the shape of its input.
        out: the shape of its output.
        split: the extents of pieces.
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
    """Return the time of a layer in pieces, in bytes of transfer, to compare ways by.

    The input is transformed anew for each part of the output maps, and the output for each part of
    the input maps.
    """
    places, outputs, inputs, uploaded, downloaded, *_ = amount
    again = (outputs // places - 1) * shape.nbytes
    again += (inputs // outputs - 1) * out.nbytes if inputs > outputs else 0
    transfers = overlapped(outputs, uploaded, downloaded)
    return transfers + max(inputs, outputs) * PIECE_BYTES + AGAIN * again


def overlapped(count: int, *stages: float) -> float:
    """Return the time of equal pieces that go through stages one after another.

    The first piece goes through all stages; then the slowest stage sets the pace.

    Args:
        count: how many pieces there are.
        stages: the time of all pieces in each stage.
    """
    return (sum(stages) + (count - 1) * max(stages)) / count


def splits(layer: Conv, shape: Shape5, out: Shape5, budget: float = inf) -> Iterator[Split]:
    """Yield the ways to divide a layer whose pieces fit the GPU, the least traffic first.

    Input maps are divided last, if nothing else is small enough. With softmax, output maps are not
    divided, because it needs all of them.

    Args:
        layer: the convolution.
        shape: the shape of its input.
        out: the shape of its output.
        budget: bytes for the pieces of input and output.
    """
    for summed in (False, True):
        for _, buffer_bytes, split in _by_traffic(layer, shape, out, summed=summed):
            if buffer_bytes <= budget:
                yield split


# The budgets and primitives of one call ask for the same ways one after another.
@lru_cache(maxsize=16)
def _by_traffic(
    layer: Conv, shape: Shape5, out: Shape5, *, summed: bool
) -> list[tuple[float, int, Split]]:
    """Return traffic, bytes and way in order, with or without sums over parts of input maps."""
    outs = _map_sizes(out.f) if layer.activation != "softmax" else [out.f]
    single = product((1,), _halves(out.z), outs)
    if summed:
        ways = [Split(*part, ins) for part in single for ins in _map_sizes(shape.f)[1:]]
    else:
        ways = [Split(n, out.z, out.f, shape.f) for n in divisors(shape.n) if n > 1]
        ways += [Split(*part, shape.f) for part in single]
    found = ((amounts(layer, shape, out, way), way) for way in ways)
    measured = [(_traffic(shape, out, amount), amount.buffer_bytes, way) for amount, way in found]
    return sorted(measured, key=lambda it: it[:2])


def _pieces(total: int, size: int) -> int:
    """Return how many pieces a total has; the last one may be smaller."""
    return -(-total // size)


def _halves(number: int) -> list[int]:
    """Return a number and its halves down to 1, rounded up."""
    found = [number]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found


def _map_sizes(maps: int) -> list[int]:
    """Return possible maps of a piece: halves of all, in whole groups if there are several."""
    rounded = {
        min(maps, -(-n // MAPS_TOGETHER) * MAPS_TOGETHER) if n > MAPS_TOGETHER else n
        for n in _halves(maps)
    }
    return sorted(rounded, reverse=True)
