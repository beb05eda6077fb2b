"""Direct convolution with the max-pooling after it: the output between is never stored.

As ``gpu_direct``, with all voxels of a window among the sums of one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.network import Operation, PooledConv
from znni.plans.primitive import convolved_and_pooled
from znni.primitives.gpu.direct.direct_convolution import DirectConvolution, Tiled
from znni.primitives.gpu.direct.geometry import tile_for
from znni.primitives.gpu.direct.launch import runs_on

# Input maps, at most. With more, the output is no longer much larger than the input, and the
# products, which are repeated for each offset of a window, take most of the time.
MOST_FEATURES = 4


@dataclass(frozen=True)
class GpuDirectPooled(DirectConvolution):
    """Direct convolution and plain max-pooling in one, on a GPU."""

    name: str = "gpu_direct_pooled"

    def tiled(self, layer: Operation, shape: Shape5) -> Tiled | None:
        """A convolution of few maps with its pooling, of a window whose sums fit in registers.

        Softmax does not keep the order of a map's values, so that they cannot be pooled before it.
        """
        out = convolved_and_pooled(layer, shape)
        if out is None or not isinstance(layer, PooledConv):
            return None
        if shape.f > MOST_FEATURES or layer.conv.activation == "softmax":
            return None
        tile = tile_for(layer.conv, layer.pool.window, out)
        return None if tile is None else Tiled(layer.conv, tile, out)


def primitives(device: Device) -> tuple[GpuDirectPooled, ...]:
    """The direct convolution with its pooling, where the GPU has what it needs."""
    return (GpuDirectPooled(device),) if runs_on(device) else ()
