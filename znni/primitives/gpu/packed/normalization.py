"""Instance and group norm of packed values: one pass adds up each map, another scales it.

The convolution that makes a value may have added up its maps. Then there is only the second pass.

A normalized number is no larger than the square root of the count of those that are normalized
together. So the scale of the output is known before anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.packed_arrays import GROUP, PackedArray, packed_bytes
from znni.network.layers import Layer, Normalize, Operation, PackedLayer
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run
from znni.primitives.gpu.common import map_sums
from znni.primitives.gpu.common.map_sums import PARTIAL_BYTES, MapSums
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES, TensorFormat
from znni.primitives.gpu.common.voxels import THREADS, launch
from znni.primitives.gpu.packed.base import GpuPackedPass, groups_of, records_source, strided
from znni.primitives.gpu.packed.pointwise import largest_bound, pointwise_kernel


@dataclass(frozen=True)
class GpuPackedNormalization(GpuPackedPass):
    """Norms of packed values. The output may be the memory of the input."""

    kind: ClassVar[type[Layer]] = Normalize
    family: ClassVar[str] = "gpu_packed_normalization"
    version: ClassVar[int] = 2
    takes_sums: ClassVar[bool] = True

    def made(self, layer: Normalize, shape: Shape5) -> Shape5 | None:
        """Decline softmax, and more blocks than a launch counts."""
        possible = layer.activation != "softmax" and MapSums(groups_of(shape)).countable
        return shape if possible and layer.features == shape.f else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: two passes over the input, or one, and one over the output."""
        cost = super().cost(layer, shape)
        summed = isinstance(layer, PackedLayer) and layer.sums
        # Weights, biases and slopes, and a factor and a shift for each map of each image.
        numbers = FLOAT_BYTES * shape.f * (3 + 2 * shape.n)
        workspace = 0 if summed else self._parts_bytes(shape)
        memory = Memory.beside(cost.memory.working, workspace, cost.memory.resident + numbers)
        again = 0 if summed else packed_bytes(shape, self.numbers.parts)
        return replace(cost.plus(0.0, 1.0, again), memory=memory)

    def _parts_bytes(self, shape: Shape5) -> int:
        return PARTIAL_BYTES * GROUP * MapSums(groups_of(shape)).blocks

    def prepare(self, layer: Normalize, out: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernels, and bring factors and shifts to the GPU."""
        given = conv_weights(layer, weights)
        slope = layer.slope if given.slope is None else given.slope
        together = layer.features // layer.groups
        module = compiled(source(self.numbers), options(layer))
        names = "reduce_packed", "set_scaling", "set_scaling_of_sums"
        reduce_packed, set_scaling, set_scaling_of_sums = map(module.get_function, names)
        scale = pointwise_kernel("SCALE", layer.activation, self.numbers)
        slopes = cupy().asarray(np.full(out.f, slope, np.float32))
        trained = *map(cupy().asarray, (given.weight, given.bias)), np.float32(layer.eps)
        scaling = cupy().empty((out.n, 2, out.f), np.float32)
        sums = MapSums(groups_of(out))
        count = together * out.size.volume
        weight, bias, steep = (float(np.abs(it).max()) for it in (given.weight, given.bias, slope))
        bound = largest_bound(layer.activation, 0.0, sqrt(count) * weight + bias, steep)

        def run(x: PackedArray) -> Any:
            y = new_device_output(out)
            voxels, set_from, parts = np.int64(out.size.volume), set_scaling_of_sums, x.sums
            if parts is None:
                set_from, parts = set_scaling, device_workspace((self._parts_bytes(out),), np.uint8)
                counts = map(np.int32, (sums.columns, sums.shares, *groups_of(out)[1:]))
                reduce_packed((sums.blocks,), (THREADS,), (*strided(x), parts, *counts))
            each = np.int32(sums.parts if x.sums is None else len(parts))
            set_from(
                (out.n * layer.groups,),
                (THREADS,),
                (parts, each, voxels, *trained, scaling, np.int32(out.f)),
            )
            for image in range(out.n):
                items = slice(image, image + 1)
                one, made = (it._replace(voxels=it.voxels[items]) for it in (x, y))
                numbers = *scaling[image], slopes, *bound
                launch(
                    scale,
                    groups_of(out._replace(n=1)),
                    *strided(one),
                    *strided(one),
                    *numbers,
                    *strided(made),
                )
            return y

        return run


def source(numbers: TensorFormat) -> str:
    """Return the CUDA source of the sums and what follows from them."""
    kernels = source_beside(__file__, "normalization.cu")
    common = map_sums.source() + map_sums.norm_scaling_source()
    return common + records_source(numbers) + kernels


def options(norm: Normalize) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return *map_sums.options(), f"-DNORMED_TOGETHER={norm.features // norm.groups}"
