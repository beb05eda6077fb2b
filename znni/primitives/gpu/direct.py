"""Direct convolution: fastest where input or output has few maps, and wherever kernels are small.

A thread sums a column of voxels for several output maps in registers, from input and weights in
shared memory (``direct_tiles``). All sums are in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.cost import Cost
from znni.machine import Device
from znni.network import Conv, Operation
from znni.options import ACCURACIES
from znni.primitive import Run, convolved
from znni.primitives.gpu.direct_tiles.geometry import Tile, tile_for
from znni.primitives.gpu.direct_tiles.launch import build, cost_of, runs_on
from znni.shapes import Shape5, Vec3
from znni.weights import ConvWeights, conv_weights

NOT_POOLED = Vec3(1, 1, 1)


@dataclass(frozen=True)
class GpuDirect:
    """Direct convolution on a GPU."""

    device: Device
    name: str = "gpu_direct"
    accuracy: float = ACCURACIES["float32"]
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Any valid convolution whose kernel's view fits in shared memory."""
        found = _found(layer, shape)
        return found and found[2]

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """A multiply-add for each tap of each voxel; no workspace."""
        conv, tile, out = self._checked(layer, shape)
        return cost_of(conv, tile, shape, out)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernel, and order the weights as it reads them."""
        conv, tile, out = self._checked(layer, shape)
        return build(conv, tile, shape, out, conv_weights(conv, weights))

    def _checked(self, layer: Operation, shape: Shape5) -> tuple[Conv, Tile, Shape5]:
        found = _found(layer, shape)
        if found is None:
            raise ValueError(f"{self.name} does not apply to {layer} on {shape}")
        return found


def primitives(device: Device) -> tuple[GpuDirect, ...]:
    """The direct convolution, where the GPU has what it needs."""
    return (GpuDirect(device),) if runs_on(device) else ()


def _found(layer: Operation, shape: Shape5) -> tuple[Conv, Tile, Shape5] | None:
    out = convolved(layer, shape)
    if out is None or not isinstance(layer, Conv):
        return None
    tile = tile_for(layer, NOT_POOLED, out)
    return None if tile is None else (layer, tile, out)
