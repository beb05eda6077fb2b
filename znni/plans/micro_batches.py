"""A batch in pieces, one after another: each piece by the primitive that suits it.

Pieces take less workspace. They are the micro-batches of micro-cuDNN (Oyama et al., 2018). Each
piece is computed straight into its part of the output. So input and output are held whole, and
beside them only the workspace of one piece at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, repeat

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, output_into
from znni.machine.device_arena import new_device_output
from znni.network.layers import Operation
from znni.network.weights import ConvWeights, Float32
from znni.plans.composed import Composed, Piece
from znni.plans.composition import InTurn, PieceBy
from znni.plans.cost import NOTHING, Cost, Memory
from znni.plans.primitive import Run


@dataclass(frozen=True)
class MicroBatches(Composed):
    """Pieces that are computed one after another, as one primitive.

    Attributes:
        pieces: the pieces in order. No two have the same items and primitive.
    """

    pieces: tuple[Piece, ...]

    @property
    def parts(self) -> tuple[Piece, ...]:
        """The pieces in order."""
        return self.pieces

    @property
    def composition(self) -> InTurn:
        """The pieces with the names of their primitives, as a plan stores them."""
        return InTurn(tuple(PieceBy(p.times, p.items, p.primitive.name) for p in self.pieces))

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the work of all pieces, with whole input and output and the largest workspace."""
        out = self.out(layer, shape)
        costs = (p.primitive.cost(layer, p.of(shape)) for p in self.pieces)
        return cost_of_pieces(
            ((p.times, cost) for p, cost in zip(self.pieces, costs, strict=True)),
            shape.nbytes + out.nbytes,
        )

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare each piece once, however often it comes."""
        out = self.out(layer, shape)
        each = out.n // shape.n
        runs = [(p, p.primitive.build(layer, p.of(shape), weights)) for p in self.pieces]
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
