"""Max-pooling on the CPU: plain, and as max-pooling fragments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.core.shapes import ONE, Shape5
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
class MaxPooling:
    """Max-pooling on the CPU. Voxels beyond the last whole window are dropped.

    Attributes:
        fragments: whether it pools at all offsets of its window, rather than at the first alone.
    """

    device: Device
    name: str = "max_pooling"
    accuracy: float = 0.0
    version = 2
    fragments: ClassVar[bool] = False

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape if a window fits, and if all fragments have the same size."""
        return fragmented(layer, shape) if self.fragments else pooled(layer, shape)

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
        pool, window = workers(self.device.threads), layer.window
        offsets = window if self.fragments else ONE

        def run(x: Float32) -> Float32:
            y = new_output(out)
            window_maxima(x, y, window, offsets, pool)
            return y

        return run


@dataclass(frozen=True)
class MaxPoolingFragments(MaxPooling):
    """All fragments of a max-pooling on the CPU."""

    name: str = "max_pooling_fragments"
    fragments: ClassVar[bool] = True


def primitives(device: Device) -> tuple[MaxPooling, MaxPoolingFragments]:
    """Return plain max-pooling and max-pooling fragments."""
    return MaxPooling(device), MaxPoolingFragments(device)
