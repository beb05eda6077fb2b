"""Instance and group norm of packed values: one pass adds up each map, another scales it.

The convolution that makes a value may have added up its maps. Then there is only the second pass.
The layer after a norm may apply the norm to what it loads. Then there is only the first pass.

A normalized number is no larger than the square root of the count of numbers that are normalized
together. So the scale of the output is known before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar, cast

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.packed_arrays import GROUP, LeftNorm, PackedArray, in_whole_groups, packed_bytes
from znni.network.layers import Layer, Normalize, Operation, PackedLayer
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applying
from znni.primitives.gpu.common import map_sums
from znni.primitives.gpu.common.kernels import common_code
from znni.primitives.gpu.common.map_sums import PARTIAL_BYTES, MapSums
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES, TensorFormat
from znni.primitives.gpu.common.voxels import THREADS
from znni.primitives.gpu.packed.base import (
    FLOPS,
    GpuPackedPass,
    groups_of,
    into_output,
    records_source,
    strided,
)
from znni.primitives.gpu.packed.pointwise import largest_bound, launch, pointwise_kernel


@dataclass(frozen=True)
class GpuPackedNormalization(GpuPackedPass):
    """Norms of packed values. The output may be the memory of the input."""

    kind: ClassVar[type[Layer]] = Normalize
    family: ClassVar[str] = "gpu_packed_normalization"
    version: ClassVar[int] = 4
    takes_sums: ClassVar[bool] = True
    may_leave: ClassVar[bool] = True

    def output_of(self, layer: Normalize, shape: Shape5) -> Shape5 | None:
        """Decline softmax, norms by response, too many blocks, and norms of zeros by nothing.

        Numbers that belong to no map do not vary. Without ``eps`` their norm would be NaN, and the
        next layer would add it to all its sums.
        """
        possible = layer.activation != "softmax" and MapSums(groups_of(shape)).countable
        possible = possible and layer.by == "deviation"
        varies = layer.eps > 0 or shape.f % GROUP == 0
        return shape if possible and varies and layer.features == shape.f else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: two passes over the input and one over the output, or fewer."""
        cost = super().cost(layer, shape)
        summed = isinstance(layer, PackedLayer) and layer.sums
        # Weights, biases and slopes, and a factor and a shift for each map of each image.
        numbers = FLOAT_BYTES * in_whole_groups(shape.f) * (3 + 2 * shape.n)
        workspace = 0 if summed else self._parts_bytes(shape)
        memory = Memory.beside(cost.memory.working, workspace, cost.memory.resident + numbers)
        again = 0 if summed else packed_bytes(shape, self.numbers.parts)
        if isinstance(layer, PackedLayer) and layer.leaves:
            cost = replace(cost, flops=float(FLOPS * shape.f), bytes_moved=numbers)
        return replace(cost.plus(0.0, 1.0, again), memory=memory)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare all that can be done once."""
        if not isinstance(layer, PackedLayer) or not layer.leaves:
            return super().build(layer, shape, weights)
        applying(self.out_shape(layer, shape), self, layer, shape)
        find = self._finding(cast(Normalize, layer.layer), shape, weights)

        def run(x: PackedArray) -> Any:
            y = new_device_output(shape)
            if not y.lies_with(x):
                y.voxels[...] = x.voxels
            y.records[...] = x.records
            return y._replace(norm=find(x))

        return into_output(shape, self.numbers.parts, run)

    def _parts_bytes(self, shape: Shape5) -> int:
        return PARTIAL_BYTES * GROUP * MapSums(groups_of(shape)).blocks

    def prepare(self, layer: Normalize, out: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernels, and bring factors and shifts to the GPU."""
        find = self._finding(layer, out, weights)
        scale = pointwise_kernel("SCALE", layer.activation, self.numbers)

        def run(x: PackedArray) -> Any:
            y, norm = new_device_output(out), find(x)
            factors, shifts = norm.scaling[:, 0], norm.scaling[:, 1]
            constants = factors, shifts, norm.slopes, np.float32(0), norm.largest
            of_image = np.int32(norm.scaling[0].size)
            given = *strided(x), *strided(x), *constants, *strided(y)
            launch(scale, groups_of(out), *given, of_image)
            return y

        return run

    def _finding(
        self, layer: Normalize, shape: Shape5, weights: ConvWeights | None
    ) -> Callable[[PackedArray], LeftNorm]:
        """Return what finds the factors and shifts of an input's maps."""
        given = conv_weights(layer, weights)
        slope = layer.slope if given.slope is None else given.slope
        together = layer.features // layer.groups
        module = compiled(source(self.numbers), options(layer))
        names = "reduce_packed", "set_scaling", "set_scaling_of_sums"
        reduce_packed, set_scaling, set_scaling_of_sums = map(module.get_function, names)
        maps = in_whole_groups(shape.f)
        of_maps = np.zeros((3, maps), np.float32)  # those that fill a group become zero
        of_maps[:, : shape.f] = given.weight, given.bias, np.broadcast_to(slope, shape.f)
        weights, biases, slopes = map(cupy().asarray, of_maps)
        trained = weights, biases, np.float32(layer.eps)
        scaling = cupy().zeros((shape.n, 2, maps), np.float32)
        sums = MapSums(groups_of(shape))
        count = together * shape.size.volume
        weight, bias, steep = (float(np.abs(it).max()) for it in (given.weight, given.bias, slope))
        _, largest = largest_bound(layer.activation, 0.0, sqrt(count) * weight + bias, steep)

        def find(x: PackedArray) -> LeftNorm:
            voxels, set_from, parts = np.int64(shape.size.volume), set_scaling_of_sums, x.sums
            if parts is None:
                set_from, parts = (
                    set_scaling,
                    device_workspace((self._parts_bytes(shape),), np.uint8),
                )
                counts = map(np.int32, (sums.columns, sums.shares, *groups_of(shape)[1:]))
                reduce_packed((sums.blocks,), (THREADS,), (*strided(x), parts, *counts))
            each = np.int32(sums.parts if x.sums is None else parts.shape[1])
            set_from(
                (shape.n * (maps // together),),
                (THREADS,),
                (parts, each, voxels, *trained, scaling, np.int32(maps)),
            )
            return LeftNorm(scaling, slopes, largest)

        return find


def source(numbers: TensorFormat) -> str:
    """Return the CUDA source of the sums and what follows from them."""
    kernels = source_beside(__file__, "normalization.cu")
    common = map_sums.source() + common_code("norm_scaling.cuh")
    return common + records_source(numbers) + kernels


def options(norm: Normalize) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return *map_sums.options(), f"-DNORMED_TOGETHER={norm.features // norm.groups}"
