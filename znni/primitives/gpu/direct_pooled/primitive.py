"""Direct convolution with the max-pooling after it: the output between is never stored.

It is ``gpu_direct`` with all voxels of a window among the sums of one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.layers import Operation, PooledConv
from znni.plans.primitive import convolved_and_pooled
from znni.primitives.gpu.common.hardware import AMPERE_NEEDED
from znni.primitives.gpu.direct.geometry import tile_for
from znni.primitives.gpu.direct.primitive import DirectConvolution, runs_on
from znni.primitives.gpu.direct.work import DirectWork

# Input maps at most. With more, the output is no longer much larger than the input. Products then
# take most of the time, because they are repeated for each offset of a window.
MOST_FEATURES = 4


@dataclass(frozen=True)
class GpuDirectPooled(DirectConvolution):
    """Direct convolution and plain max-pooling in one, on a GPU."""

    family: ClassVar[str] = "gpu_direct_pooled"

    def work(self, layer: Operation, shape: Shape5) -> DirectWork | None:
        """Decline many input maps, and windows whose sums registers do not hold.

        Softmax is declined too: it does not keep the order of a map's values, so the maximum of
        its results is not its result for the maximum.
        """
        out = convolved_and_pooled(layer, shape)
        if out is None or not isinstance(layer, PooledConv):
            return None
        if shape.f > MOST_FEATURES or layer.conv.activation == "softmax":
            return None
        tile = tile_for(layer.conv, layer.pool.window, out)
        return None if tile is None else DirectWork(shape, out, layer.conv, tile)


# The GPUs that have these primitives.
NEEDS = AMPERE_NEEDED


def primitives(device: Device) -> tuple[GpuDirectPooled, ...]:
    """Return the direct convolution with its pooling, if the GPU has the instructions."""
    return (GpuDirectPooled(device),) if runs_on(device) else ()
