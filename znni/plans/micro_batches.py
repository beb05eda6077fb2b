"""A batch in pieces, one after another: each piece by the primitive that suits it.

Pieces take less workspace. They are the micro-batches of micro-cuDNN (Oyama et al., 2018). Each
piece is computed straight into its part of the output. So input and output are held whole, and
beside them only the workspace of one piece at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, output_into
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Operation
from znni.network.weights import ConvWeights, Float32
from znni.plans.composition import InTurn, PieceBy
from znni.plans.cost import NOTHING, Cost, Memory
from znni.plans.primitive import Primitive, Run, applying


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


@dataclass(frozen=True)
class MicroBatches:
    """Pieces that make up a batch, as one primitive.

    Attributes:
        pieces: the pieces in order. No two have the same items and primitive.
    """

    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        """The name in a plan's table, such as ``4x2 fft_data_parallel + 1x3 direct``."""
        return str(self.composition)

    @property
    def composition(self) -> InTurn:
        """The pieces with the names of their primitives, as a plan stores them."""
        return InTurn(tuple(PieceBy(p.times, p.items, p.primitive.name) for p in self.pieces))

    @property
    def device(self) -> Device:
        """The device of all pieces."""
        return self.pieces[0].primitive.device

    @property
    def accuracy(self) -> float:
        """The relative error of the least accurate piece."""
        return max(piece.primitive.accuracy for piece in self.pieces)

    @property
    def version(self) -> int:
        """The sum of the pieces' versions. It grows with each of them."""
        return sum(piece.primitive.version for piece in self.pieces)

    @cached_property
    def items(self) -> int:
        """The items of the batch."""
        return sum(piece.times * piece.items for piece in self.pieces)

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output shape.

        It is None for another batch, or if a piece's primitive does not apply.
        """
        if shape.n != self.items:
            return None
        outs = [p.primitive.out_shape(layer, shape._replace(n=p.items)) for p in self.pieces]
        shapes = [out for out in outs if out is not None]
        if len(shapes) < len(outs):
            return None
        together = sum(p.times * out.n for p, out in zip(self.pieces, shapes, strict=True))
        return shapes[0]._replace(n=together)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the work of all pieces, with whole input and output and the largest workspace."""
        out = applying(self.out_shape(layer, shape), self, layer, shape)
        costs = (p.primitive.cost(layer, shape._replace(n=p.items)) for p in self.pieces)
        return cost_of_pieces(
            ((p.times, cost) for p, cost in zip(self.pieces, costs, strict=True)),
            shape.nbytes + out.nbytes,
        )

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare each piece once, however often it comes."""
        out = applying(self.out_shape(layer, shape), self, layer, shape)
        each = out.n // shape.n
        runs = [
            (p, p.primitive.build(layer, shape._replace(n=p.items), weights)) for p in self.pieces
        ]
        calls = list(chain.from_iterable(repeat((p.items, run), p.times) for p, run in runs))

        make_output = new_device_output if self.device.has_own_memory else new_output

        def run_all(x: Float32) -> Float32:
            y = make_output(out)
            first = 0
            for items, run in calls:
                last = first + items
                with output_into(y[first * each : last * each]):
                    run(x[first:last])
                first = last
            return y

        return run_all


def cost_of_pieces(pieces: Iterable[tuple[int, Cost]], arrays: int) -> Cost:
    """Return the cost of pieces that are computed one after another.

    Args:
        pieces: the number of times of each piece, with its cost for one time.
        arrays: the bytes of the whole input and output.
    """
    flops = at_nominal_rate = moved = 0.0
    resident = workspace = gpu_resident = gpu_working = 0
    handed = NOTHING
    for times, cost in pieces:
        flops += times * cost.flops
        at_nominal_rate += times * cost.flops / cost.efficiency
        moved += times * cost.bytes_moved
        handed = handed.plus(cost.handed.times(times))
        resident += cost.memory.resident
        workspace = max(workspace, cost.memory.workspace)
        gpu_resident += cost.memory.gpu_resident
        gpu_working = max(gpu_working, cost.memory.gpu_working)
    efficiency = flops / at_nominal_rate if flops else 1.0
    memory = Memory(resident, arrays + workspace, workspace, gpu_resident, gpu_working)
    return Cost(flops, moved, memory, efficiency, handed)
