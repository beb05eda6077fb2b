"""Upsampling by whole factors on a GPU: nearest and trilinear, without ``align_corners``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from znni.core.shapes import Box, Shape5, Vec3
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Operation, Upsample
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to
from znni.primitives.gpu.common.voxels import (
    cost_by_voxel,
    countable,
    launch,
    strided,
    voxels_source,
)

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
        if not isinstance(layer, Upsample) or layer.mode != self.mode:
            return None
        size = layer.local_size(shape.size)
        out = Shape5.of(shape.n, shape.f, size)
        return out if min(size) > 0 and countable(out) else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: a few operations for each value, and one pass over each array."""
        _, out = applied_to(Upsample, self, layer, shape)
        return cost_by_voxel(shape, out, FLOPS[self.mode])

    def build(
        self,
        layer: Operation,
        shape: Shape5,
        weights: ConvWeights | None,  # noqa: ARG002 - it has none
    ) -> Run:
        """Compile the kernel."""
        upsample, out = applied_to(Upsample, self, layer, shape)
        kernel = compiled(source(), options(upsample)).get_function("upsample")

        def run(x: Any, inside: Box | None = None) -> Any:
            y, whole = new_device_output(out), Box(Vec3(0, 0, 0), shape.size)
            seen = whole.intersection(inside or whole)
            if seen is None:
                y.fill(0)
                return y
            bounds = map(np.int32, (*seen.start, *seen.stop))
            launch(kernel, out, *strided(x), *strided(y), *bounds)
            return y

        return run


def source() -> str:
    """Return the CUDA source of ``upsample``, compiled with ``options``."""
    return voxels_source() + source_beside(__file__, "upsampling.cu")


def options(layer: Upsample) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return (
        *(f"-DFACTOR_{axis}={extent}" for axis, extent in zip("ZYX", layer.factor, strict=True)),
        f"-DINTERPOLATES={int(layer.mode == 'trilinear')}",
    )


def primitives(device: Device) -> tuple[GpuUpsampling, ...]:
    """Return both kinds of upsampling."""
    return (
        GpuUpsampling(device, "nearest", accuracy=0.0),
        GpuUpsampling(device, "trilinear", accuracy=1e-6),
    )
