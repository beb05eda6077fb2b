"""Sums, products, maxima and concatenations of values, on a GPU.

The output of a sum, a product or a maximum may be the memory of its first input. An input of a
concatenation that already lies in its place is not copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from znni.core.shapes import Shape5
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Add, Concat, Maximum, Multiply, Operation
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to, concatenated, joined
from znni.primitives.gpu.common.pointwise import Combination, Pointwise, resident_bytes
from znni.primitives.gpu.common.voxels import cost_by_voxel, countable


@dataclass(frozen=True)
class GpuConcatenation:
    """The maps of several values one after the other, on a GPU."""

    device: Device
    name: str = "gpu_concatenation"
    accuracy: float = 0.0
    version = 2

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the joined shape for a concatenation."""
        return concatenated(layer, shape) if countable(shape) else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: a copy of all inputs."""
        _, out = applied_to(Concat, self, layer, shape)
        return cost_by_voxel(shape, out, flops=1, resident=resident_bytes(shape.f))

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Compile the kernel."""
        _, out = applied_to(Concat, self, layer, shape)
        copy = Pointwise("COPY", out.f, "identity", 0.0)

        def run(*inputs: Any) -> Any:
            y, first = new_device_output(out), 0
            for x in inputs:
                place = y[:, first : first + x.shape[1]]
                if place.data.ptr != x.data.ptr:
                    copy(place, x)
                first += x.shape[1]
            return y

        return run


@dataclass(frozen=True)
class GpuElementwise:
    """Sums, products or maxima of two values, with an activation, on a GPU."""

    device: Device
    name: str
    kind: type[Add] | type[Multiply] | type[Maximum]
    combination: Combination
    accuracy: float = 1e-6
    version = 2

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the shape of the first input, if both inputs together have ``shape``."""
        if not isinstance(layer, self.kind) or layer.activation == "softmax":
            return None
        return joined(layer, shape, self.kind) if countable(shape) else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass over each array."""
        _, out = applied_to(self.kind, self, layer, shape)
        return cost_by_voxel(shape, out, flops=1, resident=resident_bytes(out.f))

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Compile the kernel."""
        join, out = applied_to(self.kind, self, layer, shape)
        combine = Pointwise(self.combination, out.f, join.activation, join.slope)

        def run(first: Any, second: Any) -> Any:
            y = new_device_output(out)
            combine(y, first, second)
            return y

        return run


def primitives(device: Device) -> tuple[GpuConcatenation | GpuElementwise, ...]:
    """Return concatenation, addition, multiplication and maximum."""
    return (
        GpuConcatenation(device),
        GpuElementwise(device, "gpu_addition", Add, "ADD"),
        GpuElementwise(device, "gpu_multiplication", Multiply, "MULTIPLY"),
        GpuElementwise(device, "gpu_maximum", Maximum, "MAXIMUM"),
    )
