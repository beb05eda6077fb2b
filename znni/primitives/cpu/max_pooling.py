"""Max-pooling with stride = window: one of the subsamplings of a dense output."""

from __future__ import annotations

from dataclasses import dataclass

from znni.machine import Device
from znni.network import Operation
from znni.primitive import pooled
from znni.primitives.cpu.pooling import Pooling
from znni.shapes import Shape5, Vec3


@dataclass(frozen=True)
class MaxPooling(Pooling):
    """Max-pooling on the CPU. Voxels beyond the last whole window are dropped."""

    name: str = "max_pooling"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Any pooling whose window fits."""
        return pooled(layer, shape)

    def offsets(self, window: Vec3) -> Vec3:  # noqa: ARG002 - the same for any
        """The first one alone."""
        return Vec3(1, 1, 1)


def primitives(device: Device) -> tuple[MaxPooling, ...]:
    """Plain max-pooling."""
    return (MaxPooling(device),)
