"""Max-pooling with stride = window, on a GPU: one of the subsamplings of a dense output."""

from __future__ import annotations

from dataclasses import dataclass

from znni.machine import Device
from znni.network import Operation
from znni.primitive import pooled
from znni.primitives.gpu.common.pooling import GpuPooling
from znni.shapes import Shape5, Vec3


@dataclass(frozen=True)
class GpuMaxPooling(GpuPooling):
    """Max-pooling on a GPU. Voxels beyond the last whole window are dropped."""

    name: str = "gpu_max_pooling"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Any pooling whose window fits."""
        return pooled(layer, shape)

    def offsets(self, window: Vec3) -> Vec3:  # noqa: ARG002 - the same for any
        """The first one alone."""
        return Vec3(1, 1, 1)


def primitives(device: Device) -> tuple[GpuMaxPooling, ...]:
    """Plain max-pooling."""
    return (GpuMaxPooling(device),)
