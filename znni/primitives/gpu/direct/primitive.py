"""Direct convolution: fastest where input or output has few maps, and wherever kernels are small.

A thread sums a column of voxels for several output maps in registers, from input and weights in
shared memory (``direct_tiles``). All sums are in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Device
from znni.network.network import Conv, Operation
from znni.plans.primitive import convolved
from znni.primitives.gpu.direct.direct_convolution import DirectConvolution, Tiled
from znni.primitives.gpu.direct.geometry import tile_for
from znni.primitives.gpu.direct.launch import runs_on

NOT_POOLED = Vec3(1, 1, 1)


@dataclass(frozen=True)
class GpuDirect(DirectConvolution):
    """Direct convolution on a GPU."""

    name: str = "gpu_direct"

    def tiled(self, layer: Operation, shape: Shape5) -> Tiled | None:
        """Any valid convolution."""
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv):
            return None
        tile = tile_for(layer, NOT_POOLED, out)
        return None if tile is None else Tiled(layer, tile, out)


def primitives(device: Device) -> tuple[GpuDirect, ...]:
    """The direct convolution, where the GPU has what it needs."""
    return (GpuDirect(device),) if runs_on(device) else ()
