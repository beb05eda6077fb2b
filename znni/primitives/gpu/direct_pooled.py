"""Direct convolution with the max-pooling after it: the output between is never stored.

As ``gpu_direct``, with all voxels of a window among the sums of one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.cost import Cost
from znni.machine import Device
from znni.network import Conv, Operation, PooledConv
from znni.options import ACCURACIES
from znni.primitive import Run, convolved_and_pooled
from znni.primitives.gpu.direct_tiles.geometry import Tile, tile_for
from znni.primitives.gpu.direct_tiles.launch import build, cost_of, runs_on
from znni.shapes import Shape5
from znni.weights import ConvWeights, conv_weights

# Input maps, at most. With more, the output is no longer much larger than the input, and the
# products, which are repeated for each offset of a window, take most of the time.
MOST_FEATURES = 4


@dataclass(frozen=True)
class GpuDirectPooled:
    """Direct convolution and plain max-pooling in one, on a GPU."""

    device: Device
    name: str = "gpu_direct_pooled"
    accuracy: float = ACCURACIES["float32"]
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """A convolution of few maps with its pooling, of a window whose sums fit in registers.

        Softmax does not keep the order of a map's values, so that they cannot be pooled before it.
        """
        found = _found(layer, shape)
        return found and found[2]

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """A multiply-add for each tap of each voxel that is pooled; no workspace."""
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


def primitives(device: Device) -> tuple[GpuDirectPooled, ...]:
    """The direct convolution with its pooling, where the GPU has what it needs."""
    return (GpuDirectPooled(device),) if runs_on(device) else ()


def _found(layer: Operation, shape: Shape5) -> tuple[Conv, Tile, Shape5] | None:
    out = convolved_and_pooled(layer, shape)
    if out is None or not isinstance(layer, PooledConv):
        return None
    if shape.f > MOST_FEATURES or layer.conv.activation == "softmax":
        return None
    tile = tile_for(layer.conv, layer.pool.window, out)
    return None if tile is None else (layer.conv, tile, out)
