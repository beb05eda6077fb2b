"""Layer norm over maps on a GPU: a thread has all maps of a voxel, most of them in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Activation, Operation, VoxelNorm
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to
from znni.primitives.gpu.common.activation import sloped_activation_source
from znni.primitives.gpu.common.hardware import MOST_GRID_ROWS
from znni.primitives.gpu.common.kernels import common_code, compiler_options
from znni.primitives.gpu.common.pointwise import resident_bytes
from znni.primitives.gpu.common.voxels import MOST, THREADS, cost_by_voxel, strided

# Maps of a voxel in a thread's registers. With more, a compiler would spill them.
MOST_HELD = 64

# Operations for a value: two sums, and two multiply-adds.
FLOPS = 7


@dataclass(frozen=True)
class GpuVoxelNorm:
    """Layer norm over maps on a GPU. The output may be the memory of the input."""

    device: Device
    name: str = "gpu_voxel_norm"
    accuracy: float = 2e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for a norm of its maps."""
        if not isinstance(layer, VoxelNorm) or layer.activation == "softmax":
            return None
        possible = shape.n * layer.groups <= MOST_GRID_ROWS and shape.size.volume <= MOST
        return shape if layer.features == shape.f and possible else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass over the output, and one or more over the input."""
        norm, out = applied_to(VoxelNorm, self, layer, shape)
        maps = norm.features // norm.groups
        again = 2 * shape.nbytes * (maps - min(maps, MOST_HELD)) // maps
        cost = cost_by_voxel(shape, out, FLOPS, resident=resident_bytes(out.f))
        return cost.plus(0.0, 1.0, again)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernel, and bring factors and shifts to the GPU."""
        norm, out = applied_to(VoxelNorm, self, layer, shape)
        given = conv_weights(norm, weights)
        slope = norm.slope if given.slope is None else given.slope
        module = compiled(source(norm.activation), options(norm))
        normalize = module.get_function("normalize_voxels")
        slopes = np.full(out.f, slope, np.float32)
        numbers = *map(cupy().asarray, (given.weight, given.bias, slopes)), np.float32(norm.eps)
        counts = tuple(map(np.int32, (norm.groups, *out.size)))
        blocks = -(-out.size.volume // THREADS), out.n * norm.groups

        def run(x: Any) -> Any:
            y = new_device_output(out)
            normalize(blocks, (THREADS,), (*strided(x), *numbers, *strided(y), *counts))
            return y

        return run


def source(activation: Activation) -> str:
    """Return the CUDA source of ``normalize_voxels``, compiled with ``options``."""
    kernel = source_beside(__file__, "voxel_norm.cu")
    return common_code("voxels.cuh") + sloped_activation_source(activation) + kernel


def options(norm: VoxelNorm) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    maps = norm.features // norm.groups
    return compiler_options({"MAPS": maps, "HELD": min(maps, MOST_HELD)})


def primitives(device: Device) -> tuple[GpuVoxelNorm, ...]:
    """Return layer norm over maps."""
    return (GpuVoxelNorm(device),)
