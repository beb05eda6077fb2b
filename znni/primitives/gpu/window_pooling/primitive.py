"""Averages, maxima at other strides, and padded maxima on a GPU; and averages at all offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from znni.core.shapes import Shape5, offsets
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Operation, Pool
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to, fragmented, window_pooled
from znni.primitives.gpu.common.kernels import common_code, compiler_options, of_axes
from znni.primitives.gpu.common.voxels import (
    cost_by_voxel,
    countable,
    launch,
    seeing_edges,
    strided,
)


@dataclass(frozen=True)
class GpuWindowPooling:
    """Maxima and averages of windows on a GPU.

    A maximum ignores samples beyond the volume. If a window has none within it, its maximum is
    minus infinity. If a window contains a NaN, its maximum is NaN.
    """

    device: Device
    name: str = "gpu_window_pooling"
    accuracy: float = 1e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for any pooling but plain maxima, if its window fits."""
        return window_pooled(layer, shape) if countable(shape) else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: an operation for each sample of each window."""
        pool, out = applied_to(Pool, self, layer, shape)
        return cost_by_voxel(shape, out, flops=2 * pool.window.volume)

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Compile the kernel."""
        pool, out = applied_to(Pool, self, layer, shape)
        kernel = compiled(source(), options(pool)).get_function("window_pooling")
        return seeing_edges(kernel, shape, out)


@dataclass(frozen=True)
class GpuAverageFragments(GpuWindowPooling):
    """All fragments of an average pooling on a GPU: a launch for each offset."""

    name: str = "gpu_window_pooling_fragments"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape if all fragments have the same size."""
        return fragmented(layer, shape, "average") if countable(shape) else None

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Compile the kernel."""
        pool, out = applied_to(Pool, self, layer, shape)
        kernel = compiled(source(), options(pool)).get_function("window_pooling")
        places, one = list(offsets(pool.window)), out._replace(n=shape.n)

        def run(x: Any) -> Any:
            y = new_device_output(out)
            for index, at in enumerate(places):
                seen = x[:, :, at.z :, at.y :, at.x :]
                edges = map(np.int32, (0, 0, 0, *seen.shape[2:]))
                launch(kernel, one, *strided(seen), *strided(y[index :: len(places)]), *edges)
            return y

        return run


def source() -> str:
    """Return the CUDA source of ``window_pooling``, compiled with ``options``."""
    return common_code("voxels.cuh", "larger.cuh") + source_beside(__file__, "window_pooling.cu")


def options(pool: Pool) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return compiler_options(window_macros(pool))


def window_macros(pool: Pool) -> dict[str, int]:
    """Return the macros that define a pooling's windows."""
    extents = of_axes("WINDOW", pool.window) | of_axes("STRIDE", pool.stride)
    return extents | of_axes("DILATION", pool.dilation) | {"IS_MAX": int(pool.reduce == "max")}


def primitives(device: Device) -> tuple[GpuWindowPooling, GpuAverageFragments]:
    """Return the pooling, and the fragments of averages."""
    return GpuWindowPooling(device), GpuAverageFragments(device)
