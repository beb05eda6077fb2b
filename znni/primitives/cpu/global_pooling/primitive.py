"""The average or the maximum of each map.

Sums are kept in float64, plane by plane, and planes are added in order. So the result does not
depend on which thread adds up what.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import GlobalPool, Operation
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to, globally_pooled
from znni.primitives.cpu.common import rows
from znni.primitives.cpu.common.numba_kernel import flat_view, numba_kernel
from znni.primitives.cpu.common.simd import LANES
from znni.primitives.cpu.common.workers import share_count, workers

DOUBLE_BYTES = 8


@dataclass(frozen=True)
class GlobalPooling:
    """Global pooling on the CPU."""

    device: Device
    name: str = "global_pooling"
    accuracy: float = 1e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return one sample for each map of a global pooling."""
        return globally_pooled(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass over the input, with an operation for each value."""
        _, out = applied_to(GlobalPool, self, layer, shape)
        threads = self.device.threads
        planes = shape.n * shape.f * shape.size.z
        return Cost(
            flops=float(shape.elements),
            bytes_moved=shape.nbytes + out.nbytes,
            memory=Memory.beside(
                shape.nbytes + out.nbytes, workspace=DOUBLE_BYTES * (planes + threads * LANES)
            ),
            efficiency=rows.EFFICIENCY,
            handed=HandedOut(1, share_count(threads, planes, rows.most_tasks(shape))),
        )

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run; nothing needs to be prepared."""
        pooling, out = applied_to(GlobalPool, self, layer, shape)
        pool, averages = workers(self.device.threads), pooling.reduce == "average"

        def run(x: Float32) -> Float32:
            y = new_output(out)
            n, f, z, _, _ = x.shape
            planes = workspace((n * f * z,), np.float64)
            lanes = workspace((pool.threads, LANES), np.float64)

            def task(worker: int, part: slice) -> None:
                _reduce(
                    averages, *flat_view(x), x.shape, part.start, part.stop, lanes[worker], planes
                )

            pool.for_each(task, pool.shares(n * f * z, rows.most_tasks(shape)))
            of_maps = planes.reshape(n, f, z)
            made = of_maps.sum(axis=2) / shape.size.volume if averages else of_maps.max(axis=2)
            y[...] = made[:, :, None, None, None]
            return y

        return run


@numba_kernel
def _reduce(  # type: ignore[no-untyped-def]
    averages, memory, start, strides, extents, first, stop, lanes, planes
):
    """Add up some planes of (n, f, z, y, x), counted through all maps, or find their maxima."""
    height, length = extents[3], extents[4]
    whole = length - length % LANES
    for plane in range(first, stop):
        above, z = divmod(plane, extents[2])
        n, f = divmod(above, extents[1])
        for lane in range(LANES):
            lanes[lane] = 0.0 if averages else -np.inf
        for y in range(height):
            at = start + n * strides[0] + f * strides[1] + z * strides[2] + y * strides[3]
            row = memory[at : at + length]
            if averages:
                for x in range(0, whole, LANES):
                    for lane in range(LANES):
                        lanes[lane] += np.float64(row[x + lane])
                for x in range(whole, length):
                    lanes[x - whole] += np.float64(row[x])
            else:
                for x in range(0, whole, LANES):
                    for lane in range(LANES):
                        lanes[lane] = max(lanes[lane], np.float64(row[x + lane]))
                for x in range(whole, length):
                    lanes[x - whole] = max(lanes[x - whole], np.float64(row[x]))
        total = lanes[0]
        for lane in range(1, LANES):
            total = total + lanes[lane] if averages else max(total, lanes[lane])
        planes[plane] = total


def primitives(device: Device) -> tuple[GlobalPooling, ...]:
    """Return global pooling."""
    return (GlobalPooling(device),)
