"""A device of a third kind, with a backend and one primitive: the host computes for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from znni.core.shapes import Shape5
from znni.engine.backends.host.part_runner import HostPartRunner
from znni.engine.backends.registry import DeviceBackend
from znni.machine.detect import detect_host
from znni.machine.machine import Device
from znni.network.layers import Operation
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost
from znni.plans.primitive import Primitive, Run
from znni.primitives.cpu.direct.primitive import primitives as of_host

MEMORY = 2**30


def devices() -> Sequence[Device]:
    """Return the only device, which is much faster than any host."""
    host = detect_host(threads=1).host
    return [replace(host, name="a mirror of the host", memory=MEMORY, flops=1e15, bandwidth=1e14)]


@dataclass(frozen=True)
class Mirrored:
    """A convolution that the host computes directly."""

    device: Device
    base: Primitive
    name: str = "mirror"
    version: int = 1

    @property
    def accuracy(self) -> float:
        return self.base.accuracy

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        return self.base.out_shape(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        return self.base.cost(layer, shape)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        return self.base.build(layer, shape, weights)


def primitives(device: Device) -> Sequence[Primitive]:
    """Return the primitive of this device; none for others."""
    if device.backend != "mirror":
        return []
    (direct,) = (it for it in of_host(detect_host(threads=1).host) if it.name == "direct")
    return [Mirrored(device, direct)]


BACKEND = DeviceBackend(HostPartRunner, devices=devices, host_bytes=2**20, device_bytes=2**16)
