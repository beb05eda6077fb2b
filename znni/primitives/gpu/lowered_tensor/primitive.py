"""Convolution of few output maps on tensor cores, near the speed of memory: for last layers.

The input is multiplied by the weights of all taps as it is read, and what comes out is shifted and
added (``lowered_tiles``): lowering of type 3 of Hadjis et al. (Caffe con Troll, 2015), in one pass.
Numbers are sums of two bfloat16 halves, for three products and errors as of float32, or rounded to
tf32; both have float32's range, so that nothing is scaled.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.network import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applying, convolved
from znni.primitives.gpu.common.capability import HOPPER, capability_of
from znni.primitives.gpu.lowered_tensor.geometry import blocks_for
from znni.primitives.gpu.lowered_tensor.lowered_convolution import LoweredConvolution
from znni.primitives.gpu.lowered_tensor.number_formats import HALVES, TF32, NumberFormat
from znni.primitives.gpu.lowered_tensor.work import Work

# Voxels of an output plane, whose places in it are kept in 32 bits.
MOST_PLANE = 2**31 - 1


@dataclass(frozen=True)
class GpuLoweredTensor:
    """Products of all taps on the tensor cores of a GPU, and their sums.

    Attributes:
        device: where it runs: a GPU of compute capability 9.0 (Hopper).
        numbers: the format of image and weights.
    """

    device: Device
    numbers: NumberFormat
    version = 1

    @property
    def name(self) -> str:
        """``gpu_lowered_tensor``, or with the format that image and weights are rounded to."""
        return f"gpu_lowered_tensor{self.numbers.suffix}"

    @property
    def accuracy(self) -> float:
        """Of the format."""
        return self.numbers.accuracy

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """None where registers or shared memory have no room for all taps of the output maps."""
        work = self._work(layer, shape)
        return None if work is None else work.out

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Products of whole tiles; input and output are moved once, and there is no workspace."""
        work = applying(self._work(layer, shape), self, layer, shape)
        memory = Memory.beside(shape.nbytes + work.out.nbytes, 0, work.resident_bytes)
        return Cost(work.flops, work.bytes_moved, memory, work.efficiency)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile or load the kernel; lay out the weights."""
        work = applying(self._work(layer, shape), self, layer, shape)
        return LoweredConvolution(work, conv_weights(work.conv, weights))

    def _work(self, layer: Operation, shape: Shape5) -> Work | None:
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv) or out.y * out.x > MOST_PLANE:
            return None
        return Work(layer, self.numbers, shape, out) if blocks_for(layer, self.numbers) else None


def primitives(device: Device) -> tuple[GpuLoweredTensor, ...]:
    """Both formats, on a GPU that has the instructions of Hopper's tensor cores."""
    if capability_of(device) != HOPPER:
        return ()
    return GpuLoweredTensor(device, HALVES), GpuLoweredTensor(device, TF32)
