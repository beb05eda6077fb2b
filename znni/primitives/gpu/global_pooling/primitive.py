"""The average or the maximum of each map, on a GPU.

Sums are in float64, always in the same order. So a call gives the same bytes each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import GlobalPool, Operation
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applied_to, globally_pooled
from znni.primitives.gpu.common import map_sums
from znni.primitives.gpu.common.map_sums import MapSums
from znni.primitives.gpu.common.voxels import EFFICIENCY, THREADS


@dataclass(frozen=True)
class GpuGlobalPooling:
    """Global pooling on a GPU."""

    device: Device
    name: str = "gpu_global_pooling"
    accuracy: float = 1e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return one sample for each map of a global pooling."""
        out = globally_pooled(layer, shape)
        return out if out and MapSums(shape).countable else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass over the input, with an operation for each value."""
        _, out = applied_to(GlobalPool, self, layer, shape)
        arrays = shape.nbytes + out.nbytes
        memory = Memory.beside(arrays, MapSums(shape).workspace_bytes)
        return Cost(float(shape.elements), arrays, memory, EFFICIENCY, writes_views=True)

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Compile the kernels."""
        pool, out = applied_to(GlobalPool, self, layer, shape)
        module = compiled(source(), options(pool))
        reduce_maps, pool_maps = map(module.get_function, ("reduce_maps", "pool_maps"))
        sums = MapSums(shape)

        def run(x: Any) -> Any:
            y = new_device_output(out)
            parts = sums(reduce_maps, x)
            strides = (np.int64(stride // y.itemsize) for stride in y.strides[:2])
            numbers = np.int32(sums.parts), np.int64(shape.size.volume)
            pool_maps((out.n * out.f,), (THREADS,), (parts, *numbers, y, *strides, np.int32(out.f)))
            return y

        return run


def source() -> str:
    """Return the CUDA source of ``reduce_maps`` and ``pool_maps``, compiled with ``options``."""
    return map_sums.source() + source_beside(__file__, "global_pooling.cu")


def options(pool: GlobalPool) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return map_sums.options(is_max=pool.reduce == "max")


def primitives(device: Device) -> tuple[GpuGlobalPooling, ...]:
    """Return global pooling."""
    return (GpuGlobalPooling(device),)
