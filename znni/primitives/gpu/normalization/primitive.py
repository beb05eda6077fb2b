"""Instance norm and group norm on a GPU: one pass adds up each map, another scales it.

Values are added up in float32, some at a time, less a sample of their group. Their sums are in
float64, always in the same order. So a call gives the same bytes each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Normalize, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to
from znni.primitives.gpu.common import map_sums
from znni.primitives.gpu.common.map_sums import MapSums
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.common.pointwise import Pointwise, resident_bytes
from znni.primitives.gpu.common.voxels import THREADS, cost_by_voxel, countable

# Operations for a value: two multiply-adds.
FLOPS = 4


@dataclass(frozen=True)
class GpuNormalization:
    """Norms on a GPU. The output may be the memory of the input."""

    device: Device
    name: str = "gpu_normalization"
    accuracy: float = 2e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for a norm of its maps."""
        if not isinstance(layer, Normalize) or layer.activation == "softmax":
            return None
        possible = countable(shape) and MapSums(shape).countable
        return shape if layer.features == shape.f and possible else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: two passes over the input, and one over the output."""
        _, out = applied_to(Normalize, self, layer, shape)
        # Weights and biases, and a factor and a shift for each map of each image.
        numbers = FLOAT_BYTES * out.f * (2 + 2 * out.n)
        cost = cost_by_voxel(
            shape,
            out,
            FLOPS,
            resident=resident_bytes(out.f) + numbers,
            workspace=MapSums(shape).workspace_bytes,
        )
        return cost.plus(0.0, 1.0, shape.nbytes)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernels, and bring factors and shifts to the GPU."""
        norm, out = applied_to(Normalize, self, layer, shape)
        given = conv_weights(norm, weights)
        module = compiled(source(), options(norm))
        reduce_maps, set_scaling = map(module.get_function, ("reduce_maps", "set_scaling"))
        sums = MapSums(shape)
        slope = norm.slope if given.slope is None else given.slope
        scale = Pointwise("SCALE", out.f, norm.activation, slope)
        factors, shifts = map(cupy().asarray, (given.weight, given.bias))
        scaling = cupy().empty((out.n, 2, out.f), np.float32)
        groups = out.n * norm.groups

        def run(x: Any) -> Any:
            y = new_device_output(out)
            parts = sums(reduce_maps, x)
            strides = (np.int64(stride // x.itemsize) for stride in x.strides[:2])
            numbers = np.int32(sums.parts), np.int64(shape.size.volume)
            trained = factors, shifts, np.float32(norm.eps)
            set_scaling(
                (groups,),
                (THREADS,),
                (x, *strides, parts, *numbers, *trained, scaling, np.int32(out.f)),
            )
            for image in range(out.n):
                items = slice(image, image + 1)
                scale(y[items], x[items], scaling=scaling[image])
            return y

        return run


def source() -> str:
    """Return the CUDA source of ``reduce_maps`` and ``set_scaling``, compiled with ``options``."""
    return map_sums.source() + source_beside(__file__, "normalization.cu")


def options(norm: Normalize) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return map_sums.options(maps_together=norm.features // norm.groups)


def primitives(device: Device) -> tuple[GpuNormalization, ...]:
    """Return instance and group norm."""
    return (GpuNormalization(device),)
