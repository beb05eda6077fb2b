"""Padding by a network's own values: only samples beyond the volume are computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from znni.core.shapes import ZERO, Box, Shape5
from znni.machine.arena import new_output
from znni.machine.machine import Device
from znni.network.layers import Operation, PadLayer
from znni.network.padding import Beyond
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to, edge_filled
from znni.primitives.cpu.common import rows
from znni.primitives.cpu.common.workers import workers


@dataclass(frozen=True)
class EdgeFilling:
    """Samples beyond the volume, on the CPU. The output may be the memory of the input."""

    device: Device
    name: str = "edge_filling"
    accuracy: float = 0.0
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for the padding of a block."""
        return edge_filled(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass over each array, unless both are the same memory."""
        _, out = applied_to(PadLayer, self, layer, shape)
        return rows.cost_of_pass(shape, out, 1.0, rows.handed_out(out, self.device.threads))

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run; nothing needs to be prepared."""
        pad, out = applied_to(PadLayer, self, layer, shape)
        pool = workers(self.device.threads)
        parts = list(pool.shares(out.elements, rows.most_tasks(out)))

        def run(x: Float32, inside: Box | None = None) -> Float32:
            y, whole = new_output(out), Box(ZERO, shape.size)
            seen = whole.intersection(inside or whole)
            if seen is None:
                y.fill(0)
                return y
            if y.ctypes.data != x.ctypes.data:
                copied = rows.copy(y, x)
                pool.for_each(lambda _, part: copied.make(part, rows.NOTHING), parts)
            fill_beyond(y, seen, pad.mode)
            return y

        return run


def fill_beyond(y: Float32, inside: Box, mode: Beyond) -> None:
    """Fill the samples of an array (n, f, z, y, x) outside a box, axis after axis."""
    for axis, (start, stop) in enumerate(zip(*inside, strict=True), start=2):
        along = np.moveaxis(y, axis, 0)
        for at in (*range(start), *range(stop, len(along))):
            along[at] = along[source(at, start, stop, mode)]


def source(at: int, start: int, stop: int, mode: Beyond) -> int:
    """Return the sample of an axis that stands for one that may lie beyond.

    Args:
        at: the sample.
        start: the first sample within the volume.
        stop: the one after the last.
        mode: how samples beyond are filled.
    """
    if mode == "edge":
        return min(max(at, start), stop - 1)
    size = stop - start
    if mode == "wrap":
        return start + (at - start) % size
    if size == 1:
        return start
    away = (at - start) % (2 * size - 2)
    return start + min(away, 2 * size - 2 - away)


def primitives(device: Device) -> tuple[EdgeFilling, ...]:
    """Return the padding."""
    return (EdgeFilling(device),)
