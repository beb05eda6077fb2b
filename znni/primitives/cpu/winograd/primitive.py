"""Convolution of small kernels with few multiplications (Winograd, Toom and Cook).

A tile of 4^3 outputs with a 3^3 kernel takes a multiplication for each of 6^3 points, and not 27
for each output. So a layer is a matrix product at each point, between two cheap transforms. A
Fourier transform of so small a tile needs more. This primitive is for images of 8^3 to 32^3 voxels
with many maps. On large images, larger Fourier tiles are as fast or faster.

With a stride of 2, a 3^3 kernel has phases of 1 and 2 taps along each axis. A tile of 4^3 outputs
then takes 9^3 multiplications, and not 12^3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from znni.core.option_types import ACCURACIES
from znni.core.shapes import ONE, Shape5
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation, SummedConv
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import BoundedByItself, Run, applying, convolution_of, convolved_with_gaps
from znni.primitives.cpu.common.activation import with_activation, with_added
from znni.primitives.cpu.winograd.minimal_filtering import minimal_filtering
from znni.primitives.cpu.winograd.strips import Strips


@dataclass(frozen=True)
class Winograd(BoundedByItself):
    """Convolution with tiles of six points, or five, along each axis that has a kernel.

    Attributes:
        device: processor that runs it.
    """

    device: Device
    name = "winograd"
    accuracy = ACCURACIES["float32"]
    version = 2

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape, or None for a kernel that is too small or too large."""
        strips = _strips(convolution_of(layer), shape)
        return strips.out if strips else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: operations of transforms and products, and all passes over points."""
        strips = applying(_strips(convolution_of(layer), shape), self, layer, shape)
        threads = self.device.threads
        memory = Memory.beside(
            shape.nbytes + strips.out.nbytes,
            workspace=strips.workspace_bytes(threads),
            resident=strips.tiling.place_bytes + strips.list_bytes + strips.kernel_bytes,
        )
        handed = strips.handed_out(threads)
        cost = Cost(strips.flops, strips.bytes_moved, memory, strips.efficiency, handed)
        cost = with_added(cost, layer, strips.out)
        return with_activation(cost, strips.layer.activation, strips.out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile or load the passes; transform the layer's kernels."""
        from znni.primitives.cpu.winograd.convolution import WinogradConvolution

        strips = applying(_strips(convolution_of(layer), shape), self, layer, shape)
        given = conv_weights(strips.layer, weights)
        adds = isinstance(layer, SummedConv)
        return WinogradConvolution(strips, given, self.device.threads, adds=adds)


@lru_cache(maxsize=1024)
def _strips(layer: Operation, shape: Shape5) -> Strips | None:
    out = convolved_with_gaps(layer, shape)
    if out is None or not isinstance(layer, Conv):
        return None
    if layer.groups > 1 or layer.dilation != ONE:
        return None
    z, y, x = map(minimal_filtering, layer.kernel, layer.stride)
    return Strips(layer, shape, out) if z and y and x and x.length > 1 else None


def primitives(device: Device) -> tuple[Winograd, ...]:
    """Return the one primitive."""
    return (Winograd(device),)
