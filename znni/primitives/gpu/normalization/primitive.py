"""Norms by whole windows on a GPU: one pass adds up each map, another scales it.

Values are added up in float32, some at a time. If their variance is needed, a sample of their
group is subtracted before. Their sums are in float64, always in the same order. So a call gives
the same bytes each time.
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
from znni.network.layers import Activation, Normalize, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to
from znni.primitives.gpu.common import map_sums
from znni.primitives.gpu.common.activation import sloped_activation_source
from znni.primitives.gpu.common.kernels import common_code
from znni.primitives.gpu.common.map_sums import FOUR, MapSums, in_fours
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.common.pointwise import Pointwise, resident_bytes
from znni.primitives.gpu.common.voxels import (
    THREADS,
    cost_by_voxel,
    countable,
    launch,
    strided,
)

# Operations for a value: two multiply-adds.
FLOPS = 4


@dataclass(frozen=True)
class GpuNormalization:
    """Norms on a GPU. The output may be the memory of the input."""

    device: Device
    name: str = "gpu_normalization"
    accuracy: float = 2e-6
    version = 2

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for a norm of its maps."""
        if not isinstance(layer, Normalize) or layer.activation == "softmax":
            return None
        possible = countable(shape) and MapSums(shape).countable
        return shape if layer.features == shape.f and possible else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: two passes over the input, and one over the output."""
        _, out = applied_to(Normalize, self, layer, shape)
        # Weights, biases and slopes, and a factor and a shift for each map of each image.
        numbers = FLOAT_BYTES * out.f * (3 + 2 * out.n)
        cost = cost_by_voxel(
            shape,
            out,
            FLOPS,
            resident=resident_bytes(out.f) + numbers,
            workspace=max(MapSums(shape, together).workspace_bytes for together in (1, FOUR)),
        )
        return cost.plus(0.0, 1.0, shape.nbytes)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernels, and bring factors and shifts to the GPU."""
        norm, out = applied_to(Normalize, self, layer, shape)
        given = conv_weights(norm, weights)
        slope = norm.slope if given.slope is None else given.slope
        scale = Pointwise("SCALE", out.f, norm.activation, slope)
        scale_maps = compiled(scaling_source(norm.activation)).get_function("scale_maps")
        slopes = cupy().asarray(np.full(out.f, slope, np.float32))
        trained = *map(cupy().asarray, (given.weight, given.bias)), np.float32(norm.eps)
        scaling = cupy().empty((out.n, 2, out.f), np.float32)
        ways = {together: _Sums(norm, shape, together) for together in (1, FOUR)}

        def run(x: Any) -> Any:
            y = new_device_output(out)
            together = FOUR if in_fours(x) and in_fours(y) else 1
            ways[together](x, trained, scaling)
            if together == FOUR:
                fours = out._replace(x=out.x // FOUR)
                launch(scale_maps, fours, *strided(x), scaling, slopes, *strided(y))
                return y
            for image in range(out.n):
                items = slice(image, image + 1)
                scale(y[items], x[items], scaling=scaling[image])
            return y

        return run


class _Sums:
    """The kernels that work out the factor and the shift of each map.

    Args:
        norm: the layer.
        shape: the shape of its input.
        together: voxels of a row that a thread reads at once, 1 or 4.
    """

    def __init__(self, norm: Normalize, shape: Shape5, together: int) -> None:
        module = compiled(source(norm), options(norm, together))
        self._reduce_maps = module.get_function("reduce_maps")
        self._set_scaling = module.get_function("set_scaling")
        self._sums = MapSums(shape, together)
        self._groups = shape.n * norm.groups

    def __call__(self, x: Any, trained: tuple[Any, ...], scaling: Any) -> None:
        """Set the scaling (n, factor or shift, f) for an input.

        Args:
            x: the input (n, f, z, y, x).
            trained: factors and shifts of the maps, and the number added to variances.
            scaling: takes the result.
        """
        parts, shape = self._sums(self._reduce_maps, x), self._sums.shape
        strides = (np.int64(stride // x.itemsize) for stride in x.strides[:2])
        numbers = np.int32(self._sums.parts), np.int64(shape.size.volume)
        self._set_scaling(
            (self._groups,),
            (THREADS,),
            (x, *strides, parts, *numbers, *trained, scaling, np.int32(shape.f)),
        )


def source(norm: Normalize) -> str:
    """Return the CUDA source of ``reduce_maps`` and ``set_scaling``, compiled with ``options``."""
    kernel = source_beside(__file__, f"{norm.by}.cu")
    return map_sums.source() + common_code("norm_scaling.cuh") + kernel


def options(norm: Normalize, together: int) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    maps = norm.features // norm.groups
    less = maps if norm.by == "deviation" else 0
    return *map_sums.options(maps_together=less, together=together), f"-DMAPS_OF_GROUP={maps}"


def scaling_source(activation: Activation) -> str:
    """Return the CUDA source of ``scale_maps``."""
    kernel = source_beside(__file__, "scaling.cu")
    return common_code("voxels.cuh") + sloped_activation_source(activation) + kernel


def primitives(device: Device) -> tuple[GpuNormalization, ...]:
    """Return the norms by whole windows."""
    return (GpuNormalization(device),)
