"""Direct convolution: fastest if input or output has few maps, and for all small kernels.

A thread sums a column of voxels for several output maps in registers, from input and weights in
shared memory (``geometry``). All sums are in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.core.shapes import ONE, Shape5
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.primitive import Run, convolved
from znni.primitives.gpu.common.base import PerItemPrimitive
from znni.primitives.gpu.common.hardware import AMPERE_NEEDED, TF32_CORES, capability_of
from znni.primitives.gpu.common.number_formats import FLOAT32, NumberFormat
from znni.primitives.gpu.direct.geometry import tile_for
from znni.primitives.gpu.direct.launch import launcher
from znni.primitives.gpu.direct.work import DirectWork


@dataclass(frozen=True)
class DirectConvolution(PerItemPrimitive[DirectWork]):
    """The base of direct convolutions on a GPU, pooled at once or not."""

    numbers: NumberFormat = FLOAT32

    def prepare(self, work: DirectWork, weights: ConvWeights | None) -> Run:
        """Compile the kernel, and order the weights as it reads them."""
        return launcher(work, conv_weights(work.conv, weights))


@dataclass(frozen=True)
class GpuDirect(DirectConvolution):
    """Direct convolution on a GPU."""

    family: ClassVar[str] = "gpu_direct"

    def work(self, layer: Operation, shape: Shape5) -> DirectWork | None:
        """Decline kernels that see more than shared memory holds."""
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv):
            return None
        tile = tile_for(layer, ONE, out)
        return None if tile is None else DirectWork(shape, out, layer, tile)


def runs_on(device: Device) -> bool:
    """Return whether a GPU has copies to shared memory that run beside the threads."""
    return capability_of(device) >= TF32_CORES


# The GPUs that have these primitives.
NEEDS = AMPERE_NEEDED


def primitives(device: Device) -> tuple[GpuDirect, ...]:
    """Return the direct convolution, if the GPU has the instructions."""
    return (GpuDirect(device),) if runs_on(device) else ()
