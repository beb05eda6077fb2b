"""Max-pooling fragments on a GPU: the pooling at every offset of its window, in one pass.

Section V of ZNNi (Zlateski, Lee and Seung, 2016), after Masci et al. 2013.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.machine import Device
from znni.network import Operation
from znni.primitive import fragmented
from znni.primitives.gpu.common.pooling import GpuPooling
from znni.shapes import Shape5, Vec3


@dataclass(frozen=True)
class GpuMaxPoolingFragments(GpuPooling):
    """All fragments of a max-pooling on a GPU."""

    name: str = "gpu_max_pooling_fragments"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Only sizes that give fragments of one size."""
        return fragmented(layer, shape)

    def offsets(self, window: Vec3) -> Vec3:
        """All of them."""
        return window


def primitives(device: Device) -> tuple[GpuMaxPoolingFragments, ...]:
    """Max-pooling fragments."""
    return (GpuMaxPoolingFragments(device),)
