"""Max-pooling on the CPU: plain, and as max-pooling fragments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import new_output
from znni.machine.machine import Device
from znni.network.layers import Operation, Pool
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to, fragmented, pooled
from znni.primitives.cpu.common.streaming import bytes_to_write
from znni.primitives.cpu.common.workers import workers
from znni.primitives.cpu.max_pooling.window_maxima import Scratch, task_count, window_maxima

# Share of a core's nominal operations per second.
EFFICIENCY = 0.2


@dataclass(frozen=True)
class Pooling(ABC):
    """Max-pooling on the CPU, at one or at all offsets of its window."""

    device: Device
    name: str
    accuracy: float = 0.0
    version = 2

    @abstractmethod
    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape, or None if this pooling does not apply."""

    @abstractmethod
    def offsets(self, window: Vec3) -> Vec3:
        """Return the number of window offsets that are pooled at, per axis."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: a comparison per voxel, one pass over input and output each."""
        layer, out = applied_to(Pool, self, layer, shape)
        scratch = self.device.threads * Scratch.of(shape, out, layer.window).nbytes
        return Cost(
            flops=float(shape.elements),
            bytes_moved=shape.nbytes + bytes_to_write(out.nbytes),
            memory=Memory.beside(shape.nbytes + out.nbytes, workspace=scratch),
            efficiency=EFFICIENCY,
            handed=HandedOut(1, task_count(shape, out, self.device.threads)),
        )

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run; nothing needs to be prepared."""
        layer, out = applied_to(Pool, self, layer, shape)
        pool = workers(self.device.threads)

        def run(x: Float32) -> Float32:
            y = new_output(out)
            window_maxima(x, y, layer.window, self.offsets(layer.window), pool)
            return y

        return run


@dataclass(frozen=True)
class MaxPooling(Pooling):
    """Max-pooling on the CPU. Voxels beyond the last whole window are dropped."""

    name: str = "max_pooling"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for any pooling whose window fits."""
        return pooled(layer, shape)

    def offsets(self, window: Vec3) -> Vec3:  # noqa: ARG002 - the same for any
        """Return one offset per axis, the first."""
        return Vec3(1, 1, 1)


@dataclass(frozen=True)
class MaxPoolingFragments(Pooling):
    """All fragments of a max-pooling on the CPU."""

    name: str = "max_pooling_fragments"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape if all fragments have the same size."""
        return fragmented(layer, shape)

    def offsets(self, window: Vec3) -> Vec3:
        """Return all offsets."""
        return window


def primitives(device: Device) -> tuple[MaxPooling, MaxPoolingFragments]:
    """Return plain max-pooling and max-pooling fragments."""
    return MaxPooling(device), MaxPoolingFragments(device)
