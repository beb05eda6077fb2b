"""``direct_pooled`` on tensor cores: first convolutions with their pooling, as fast as stores.

With few input maps and a small kernel, there are few products for each value that is written. But
if each value is the largest of eight, there are eight times as many products. Without tensor cores,
these take longer than the stores. Numbers are in tf32, which has the range of float32. Or they are
pairs of tf32, with three products for one and errors as in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.layers import Operation, PooledConv
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.primitive import Run, convolved_and_pooled
from znni.primitives.gpu.common.base import ShapedPrimitive
from znni.primitives.gpu.common.hardware import AMPERE_NEEDED, chip_of
from znni.primitives.gpu.common.number_formats import TF32, TF32_PAIR, TensorFormat
from znni.primitives.gpu.direct_pooled_tensor.geometry import tile_for
from znni.primitives.gpu.direct_pooled_tensor.launch import launcher
from znni.primitives.gpu.direct_pooled_tensor.work import PooledWork


@dataclass(frozen=True)
class GpuDirectPooledTensor(ShapedPrimitive[PooledWork]):
    """Direct convolution and plain max-pooling in one, on the tensor cores of a GPU."""

    numbers: TensorFormat
    family: ClassVar[str] = "gpu_direct_pooled_tensor"

    def work(self, layer: Operation, shape: Shape5) -> PooledWork | None:
        """Decline many taps, windows that registers do not hold, and softmax.

        Softmax does not keep the order of a map's values, so they cannot be pooled before it.
        """
        out = convolved_and_pooled(layer, shape)
        if out is None or not isinstance(layer, PooledConv):
            return None
        if layer.conv.activation == "softmax":
            return None
        chip = chip_of(self.device)
        if chip is None:
            return None
        tile = tile_for(layer.conv, layer.pool.window, self.numbers, chip)
        return None if tile is None else PooledWork(shape, out, layer.conv, tile)

    def prepare(self, work: PooledWork, weights: ConvWeights | None) -> Run:
        """Compile the kernel, and lay out the weights."""
        return launcher(work, conv_weights(work.conv, weights))


# The GPUs that have these primitives.
NEEDS = AMPERE_NEEDED


def primitives(device: Device) -> tuple[GpuDirectPooledTensor, ...]:
    """Return both formats, if the GPU's tensor cores take tf32."""
    if chip_of(device) is None:
        return ()
    return GpuDirectPooledTensor(device, TF32_PAIR), GpuDirectPooledTensor(device, TF32)
