"""Pooling on a GPU that cannot be slid: averages, other strides, and padded maxima."""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.machine import Device
from znni.network.layers import Operation, Pool
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to, window_pooled
from znni.primitives.gpu.common.kernels import compiler_options, larger_source, of_axes
from znni.primitives.gpu.common.voxels import (
    cost_by_voxel,
    countable,
    seeing_edges,
    voxels_source,
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
        """Return the output's shape for a pooling that is not dense and whose window fits."""
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


def source() -> str:
    """Return the CUDA source of ``window_pooling``, compiled with ``options``."""
    return voxels_source() + larger_source() + source_beside(__file__, "window_pooling.cu")


def options(pool: Pool) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return compiler_options(window_macros(pool))


def window_macros(pool: Pool) -> dict[str, int]:
    """Return the macros that define a pooling's windows."""
    extents = of_axes("WINDOW", pool.window) | of_axes("STRIDE", pool.stride)
    return extents | of_axes("DILATION", pool.dilation) | {"IS_MAX": int(pool.reduce == "max")}


def primitives(device: Device) -> tuple[GpuWindowPooling, ...]:
    """Return the pooling."""
    return (GpuWindowPooling(device),)
