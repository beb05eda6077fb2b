"""``direct_pooled`` on tensor cores: first convolutions with their pooling at the speed of stores.

Few input maps and small kernels have few products for each value that is written, but eight times
as many where each is the largest of eight: too many for a GPU's other units, which take longer for
them than memory does. Numbers are in tf32, whose range is float32's, or sums of two such, for three
products and errors as of float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.options import ACCURACIES
from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.network import Operation, PooledConv
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applying, convolved_and_pooled
from znni.primitives.gpu.common.capability import AMPERE, capability_of
from znni.primitives.gpu.common.rounding import ERROR_OF_11_BITS
from znni.primitives.gpu.direct_pooled_tensor.geometry import tile_for
from znni.primitives.gpu.direct_pooled_tensor.pooled_convolution import PooledConvolution


@dataclass(frozen=True)
class GpuDirectPooledTensor:
    """Direct convolution and plain max-pooling in one, on the tensor cores of a GPU.

    Attributes:
        device: where it runs: a GPU of compute capability 8.0 or more.
        name: by its numbers.
        parts: numbers of tf32 that sum to one: one or two.
        accuracy: the relative error that comes with them.
    """

    device: Device
    name: str
    parts: int
    accuracy: float
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """None for many taps, or a window that registers have no room for.

        Nor for softmax, which does not keep the order of a map's values.
        """
        found = self._convolution(layer, shape)
        return None if found is None else found.out

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Whole products for every voxel that is pooled; no workspace."""
        found = applying(self._convolution(layer, shape), self, layer, shape)
        memory = Memory.beside(shape.nbytes + found.out.nbytes, 0, found.resident_bytes)
        return Cost(found.flops, found.bytes_moved, memory, found.efficiency)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernel, and lay out the weights as it reads them."""
        found = applying(self._convolution(layer, shape), self, layer, shape)
        return found.ready(conv_weights(found.conv, weights))

    def _convolution(self, layer: Operation, shape: Shape5) -> PooledConvolution | None:
        out = convolved_and_pooled(layer, shape)
        if out is None or not isinstance(layer, PooledConv):
            return None
        if layer.conv.activation == "softmax":
            return None
        tile = tile_for(layer.conv, layer.pool.window, self.parts)
        return None if tile is None else PooledConvolution(layer.conv, tile, shape, out)


def primitives(device: Device) -> tuple[GpuDirectPooledTensor, ...]:
    """Both kinds of numbers, on a GPU whose tensor cores take tf32."""
    if capability_of(device) < AMPERE:
        return ()
    exact = "gpu_direct_pooled_tensor", 2, ACCURACIES["float32"]
    rounded = "gpu_direct_pooled_tensor_tf32", 1, ERROR_OF_11_BITS
    return GpuDirectPooledTensor(device, *exact), GpuDirectPooledTensor(device, *rounded)
