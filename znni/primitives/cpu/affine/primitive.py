"""A factor, a shift and an activation for each map: a batch norm that cannot be folded."""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.machine.arena import new_output
from znni.machine.machine import Device
from znni.network.layers import Affine, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to
from znni.primitives.cpu.common import rows
from znni.primitives.cpu.common.activation import activate_further, row_finish, with_activation
from znni.primitives.cpu.common.rows import RowPass
from znni.primitives.cpu.common.workers import workers


@dataclass(frozen=True)
class AffineMaps:
    """Affine maps on the CPU. The output may be the memory of the input."""

    device: Device
    name: str = "affine"
    accuracy: float = 1e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for an affine layer of its maps."""
        return shape if isinstance(layer, Affine) and layer.features == shape.f else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: a multiply-add for each value, and one pass over each array."""
        affine, out = applied_to(Affine, self, layer, shape)
        threads = self.device.threads
        handed = rows.handed_out(out, threads)
        cost = rows.cost_of_pass(shape, out, 2.0, handed, rows.piece_bytes(threads))
        return with_activation(cost, affine.activation, out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Return the run, with checked factors and shifts."""
        affine, out = applied_to(Affine, self, layer, shape)
        given = conv_weights(affine, weights)
        pool, finish = workers(self.device.threads), row_finish(affine, out.f, given)

        def run(x: Float32) -> Float32:
            y = new_output(out)
            RowPass(rows.SCALE, y, (x, x), given.weight, finish).run(pool)
            activate_further(y, affine, pool)
            return y

        return run


def primitives(device: Device) -> tuple[AffineMaps, ...]:
    """Return the affine maps."""
    return (AffineMaps(device),)
