"""Convolution of few output maps on tensor cores, near the speed of memory: for last layers.

The input is multiplied by the weights of all taps as it is read. The products are then shifted and
added (``geometry``): this is lowering of type 3 of Hadjis et al. (Caffe con Troll, 2015), in one
pass. Numbers are pairs of bfloat16, with three products for one and errors as in float32, or
rounded to tf32. Both have the range of float32, so nothing is scaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.primitive import Run, convolved
from znni.primitives.gpu.common.base import PerItemPrimitive
from znni.primitives.gpu.common.hardware import AMPERE_NEEDED, chip_of
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR, TF32, TensorFormat
from znni.primitives.gpu.lowered_tensor.geometry import blocks_for
from znni.primitives.gpu.lowered_tensor.launch import Launcher
from znni.primitives.gpu.lowered_tensor.work import LoweredWork

# Voxels of an output plane: kernels count them in 32 bits.
MOST_PLANE = 2**31 - 1


@dataclass(frozen=True)
class GpuLoweredTensor(PerItemPrimitive[LoweredWork]):
    """Products of all taps on the tensor cores of a GPU, and their sums."""

    numbers: TensorFormat
    family: ClassVar[str] = "gpu_lowered_tensor"

    def work(self, layer: Operation, shape: Shape5) -> LoweredWork | None:
        """Decline layers whose taps and output maps registers or shared memory do not hold."""
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv) or out.y * out.x > MOST_PLANE:
            return None
        chip = chip_of(self.device)
        if chip is None or not blocks_for(layer, self.numbers, chip):
            return None
        return LoweredWork(shape, out, layer, self.numbers, chip)

    def prepare(self, work: LoweredWork, weights: ConvWeights | None) -> Run:
        """Compile or load the kernel; lay out the weights."""
        return Launcher(work, conv_weights(work.conv, weights))


# The GPUs that have these primitives.
NEEDS = AMPERE_NEEDED


def primitives(device: Device) -> tuple[GpuLoweredTensor, ...]:
    """Return both formats, if the GPU is an Ampere or later."""
    if chip_of(device) is None:
        return ()
    return GpuLoweredTensor(device, BFLOAT16_PAIR), GpuLoweredTensor(device, TF32)
