"""Upsampling by whole factors on a GPU: nearest and trilinear, without ``align_corners``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from znni.core.shapes import Shape5
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.machine import Device
from znni.network.layers import Operation, Upsample
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to, upsampled
from znni.primitives.gpu.common.kernels import common_code, compiler_options, of_axes
from znni.primitives.gpu.common.voxels import cost_by_voxel, countable, seeing_edges

# Operations for a value of the output.
FLOPS: dict[str, float] = {"nearest": 1, "trilinear": 24}


@dataclass(frozen=True)
class GpuUpsampling:
    """Upsampling on a GPU.

    Attributes:
        device: the GPU.
        mode: the kind of upsampling that it does.
        accuracy: the relative error that it promises.
    """

    device: Device
    mode: Literal["nearest", "trilinear"]
    accuracy: float
    version = 1

    @property
    def name(self) -> str:
        """``gpu_upsampling_nearest`` or ``gpu_upsampling_trilinear``."""
        return f"gpu_upsampling_{self.mode}"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for upsampling of this kind."""
        out = upsampled(layer, shape, self.mode)
        return out if out and countable(out) else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: a few operations for each value, and one pass over each array."""
        _, out = applied_to(Upsample, self, layer, shape)
        return cost_by_voxel(shape, out, FLOPS[self.mode])

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Compile the kernel."""
        upsample, out = applied_to(Upsample, self, layer, shape)
        kernel = compiled(source(), options(upsample)).get_function("upsample")
        return seeing_edges(kernel, shape, out)


def source() -> str:
    """Return the CUDA source of ``upsample``, compiled with ``options``."""
    common = common_code("voxels.cuh") + neighbours_source()
    return common + source_beside(__file__, "upsampling.cu")


def neighbours_source() -> str:
    """Return the CUDA function that finds the samples on both sides of an upsampled one."""
    return source_beside(__file__, "neighbours.cuh")


def options(layer: Upsample) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    interpolates = {"INTERPOLATES": int(layer.mode == "trilinear")}
    return compiler_options(of_axes("FACTOR", layer.factor) | interpolates)


def primitives(device: Device) -> tuple[GpuUpsampling, ...]:
    """Return both kinds of upsampling."""
    return (
        GpuUpsampling(device, "nearest", accuracy=0.0),
        GpuUpsampling(device, "trilinear", accuracy=1e-6),
    )
