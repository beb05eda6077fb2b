"""A factor, a shift and an activation for each map, on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from znni.core.shapes import Shape5
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Affine, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to
from znni.primitives.gpu.common.pointwise import Pointwise, resident_bytes
from znni.primitives.gpu.common.voxels import cost_by_voxel, countable


@dataclass(frozen=True)
class GpuAffine:
    """Affine maps on a GPU. The output may be the memory of the input."""

    device: Device
    name: str = "gpu_affine"
    accuracy: float = 1e-6
    version = 2

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for an affine layer of its maps."""
        if not isinstance(layer, Affine) or layer.activation == "softmax":
            return None
        return shape if layer.features == shape.f and countable(shape) else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass over each array."""
        _, out = applied_to(Affine, self, layer, shape)
        return cost_by_voxel(shape, out, flops=2, resident=resident_bytes(out.f))

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernel, and bring factors and shifts to the GPU."""
        affine, out = applied_to(Affine, self, layer, shape)
        given = conv_weights(affine, weights)
        slope = affine.slope if given.slope is None else given.slope
        scale = Pointwise("SCALE", out.f, affine.activation, slope, given.weight, given.bias)

        def run(x: Any) -> Any:
            y = new_device_output(out)
            scale(y, x)
            return y

        return run


def primitives(device: Device) -> tuple[GpuAffine, ...]:
    """Return the affine maps."""
    return (GpuAffine(device),)
