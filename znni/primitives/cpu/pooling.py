"""What plain max-pooling and max-pooling fragments have in common: all but their offsets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from znni.arena import new_output
from znni.cost import Cost, HandedOut, Memory
from znni.machine import Device
from znni.network import Operation, Pool
from znni.primitive import Run, applied_to
from znni.primitives.cpu.common.streaming import bytes_to_write
from znni.primitives.cpu.common.workers import workers
from znni.primitives.cpu.window_maxima import Scratch, task_count, window_maxima
from znni.shapes import Shape5, Vec3
from znni.weights import ConvWeights, Float32

# Share of a core's nominal operations per second.
EFFICIENCY = 0.2


@dataclass(frozen=True)
class Pooling(ABC):
    """Max-pooling on the CPU, at one or at all offsets of its window."""

    device: Device
    name: str
    accuracy: float = 0.0
    version = 1

    @abstractmethod
    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Shape of the output, or None where this pooling does not apply."""

    @abstractmethod
    def offsets(self, window: Vec3) -> Vec3:
        """How many offsets of the window are pooled at, per axis."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """One comparison for every voxel; a pass over the input and one over the output."""
        layer, out = applied_to(Pool, self, layer, shape)
        scratch = self.device.threads * Scratch.of(shape, out, layer.window).nbytes
        return Cost(
            flops=float(shape.elements),
            bytes_moved=shape.nbytes + bytes_to_write(out.nbytes),
            memory=Memory.beside(shape.nbytes + out.nbytes, workspace=scratch),
            efficiency=EFFICIENCY,
            handed=HandedOut(1, task_count(shape, out, self.device.threads)),
        )

    def build(
        self,
        layer: Operation,
        shape: Shape5,
        weights: ConvWeights | None,  # noqa: ARG002 - a pooling has none
    ) -> Run:
        """Nothing to prepare."""
        layer, out = applied_to(Pool, self, layer, shape)
        pool = workers(self.device.threads)

        def run(x: Float32) -> Float32:
            y = new_output(out)
            window_maxima(x, y, layer.window, self.offsets(layer.window), pool)
            return y

        return run
