"""Direct convolution on tensor cores: fastest for small kernels between many maps, on Hopper.

The image is laid out as float16, 8 maps of a voxel together; then 64 voxels, as any tap sees them,
are a side of a product of tensor cores as they lie in shared memory (``tensor_tiles``), and nothing
is unfolded. Sums are in float32. A number is either rounded to float16, whose 11 bits are tf32's,
or the sum of two float16 ones, for three products and errors as of float32. What float16 cannot
hold is scaled by a power of two on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.network import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applying, convolved
from znni.primitives.gpu.common.activation import with_softmax
from znni.primitives.gpu.common.capability import HOPPER, capability_of
from znni.primitives.gpu.direct_tensor.geometry import strips_for
from znni.primitives.gpu.direct_tensor.number_formats import FLOAT16, HALVES, NumberFormat
from znni.primitives.gpu.direct_tensor.pieces import Pieces
from znni.primitives.gpu.direct_tensor.tensor_convolution import TensorConvolution


@dataclass(frozen=True)
class GpuDirectTensor:
    """Direct convolution on the tensor cores of a GPU.

    Attributes:
        device: where it runs: a GPU of compute capability 9.0 (Hopper).
        numbers: the format of image and weights.
    """

    device: Device
    numbers: NumberFormat
    version = 1

    @property
    def name(self) -> str:
        """``gpu_direct_tensor``, or with the format that image and weights are rounded to."""
        return f"gpu_direct_tensor{self.numbers.suffix}"

    @property
    def accuracy(self) -> float:
        """Of the format."""
        return self.numbers.accuracy

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """None where shared memory has no room for what a block sees, or sums would be inexact."""
        pieces = self._pieces(layer, shape)
        return None if pieces is None else pieces.out

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Products of whole tiles, and the passes over input, output and image."""
        pieces = applying(self._pieces(layer, shape), self, layer, shape)
        memory = Memory.beside(
            shape.nbytes + pieces.out.nbytes, pieces.workspace_bytes, pieces.weights_bytes
        )
        cost = Cost(pieces.flops, pieces.bytes_moved, memory, pieces.efficiency)
        return with_softmax(cost, pieces.conv.activation, pieces.out)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels; lay out the weights."""
        pieces = applying(self._pieces(layer, shape), self, layer, shape)
        return TensorConvolution(pieces, conv_weights(pieces.conv, weights))

    def _pieces(self, layer: Operation, shape: Shape5) -> Pieces | None:
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv):
            return None
        strips = strips_for(layer, self.numbers, out.size)
        return Pieces(layer, shape, out, strips) if strips else None


def primitives(device: Device) -> tuple[GpuDirectTensor, ...]:
    """Both formats, on a GPU that has the instructions of Hopper's tensor cores."""
    if capability_of(device) != HOPPER:
        return ()
    return GpuDirectTensor(device, HALVES), GpuDirectTensor(device, FLOAT16)
