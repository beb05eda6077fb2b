"""Instance norm and group norm: one pass adds up each map, another scales it.

Sums are kept in float64, plane by plane, and planes are added in order. So the result does not
depend on which thread adds up what.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import Normalize, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to
from znni.primitives.cpu.common import rows
from znni.primitives.cpu.common.activation import row_finish, softmax_over_maps, with_activation
from znni.primitives.cpu.common.numba_kernel import flat_view, numba_kernel
from znni.primitives.cpu.common.rows import RowPass
from znni.primitives.cpu.common.simd import LANES
from znni.primitives.cpu.common.streaming import bytes_to_write
from znni.primitives.cpu.common.workers import Workers, share_count, workers

SUMS = 2  # of the values, and of their squares
DOUBLE_BYTES = 8


@dataclass(frozen=True)
class Normalization:
    """Instance norm and group norm on the CPU. The output may be the memory of the input."""

    device: Device
    name: str = "normalization"
    accuracy: float = 2e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for a norm of its maps."""
        return shape if isinstance(layer, Normalize) and layer.features == shape.f else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: two passes over the input, with two multiply-adds for each value."""
        norm, out = applied_to(Normalize, self, layer, shape)
        threads = self.device.threads
        planes = shape.n * shape.f * shape.size.z
        sums = DOUBLE_BYTES * SUMS * (planes + threads * LANES)
        scaling = Cost(
            flops=2.0 * out.elements,
            bytes_moved=shape.nbytes + bytes_to_write(out.nbytes),
            memory=Memory.beside(
                shape.nbytes + out.nbytes, workspace=rows.piece_bytes(threads) + sums
            ),
            efficiency=rows.EFFICIENCY,
            handed=rows.handed_out(out._replace(n=1), threads).times(out.n),
        )
        tasks = HandedOut(1, share_count(threads, planes, rows.most_tasks(shape)))
        added = scaling.plus(2.0 * shape.elements, rows.EFFICIENCY, shape.nbytes, tasks)
        return with_activation(added, norm.activation, out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Return the run, with checked factors and shifts."""
        norm, out = applied_to(Normalize, self, layer, shape)
        given = conv_weights(norm, weights)
        pool, finish = workers(self.device.threads), row_finish(norm, out.f, given)

        def run(x: Float32) -> Float32:
            y = new_output(out)
            totals = map_sums(x, pool)
            for image, sums in enumerate(totals):
                factor, shift = scaling_of(norm, given, sums, shape.size.volume)
                made, taken = y[image : image + 1], x[image : image + 1]
                each = finish._replace(bias=shift)
                RowPass(rows.SCALE, made, (taken, taken), factor, each).run(pool)
            if norm.activation == "softmax":
                softmax_over_maps(y, pool)
            return y

        return run


def map_sums(x: Float32, pool: Workers) -> NDArray[np.float64]:
    """Return the sums (n, f, 2) of the values (n, f, z, y, x), and of their squares."""
    n, f, z, _, _ = x.shape
    sums = workspace((n * f * z, SUMS), np.float64)
    lanes = workspace((pool.threads, SUMS, LANES), np.float64)

    def task(worker: int, part: slice) -> None:
        _add_up(*flat_view(x), x.shape, part.start, part.stop, lanes[worker], sums)

    pool.for_each(task, pool.shares(n * f * z, rows.most_tasks(Shape5(*x.shape))))
    return np.asarray(sums.reshape(n, f, z, SUMS).sum(axis=2))


def scaling_of(
    norm: Normalize, weights: ConvWeights, sums: NDArray[np.float64], voxels: int
) -> tuple[Float32, Float32]:
    """Return the factors and shifts of the maps of one image.

    Args:
        norm: the layer.
        weights: its trained factors and shifts.
        sums: the sums (f, 2) of the values of each map, and of their squares.
        voxels: the number of values of a map.
    """
    grouped = sums.reshape(norm.groups, -1, SUMS).sum(axis=1)
    count = voxels * (norm.features // norm.groups)
    mean = grouped[:, 0] / count
    variance = np.maximum(grouped[:, 1] / count - mean**2, 0)
    each = norm.features // norm.groups
    factor = weights.weight / np.sqrt(variance + norm.eps).repeat(each)
    shift = weights.bias - mean.repeat(each) * factor
    return factor.astype(np.float32), shift.astype(np.float32)


@numba_kernel
def _add_up(memory, start, strides, extents, first, stop, lanes, sums):  # type: ignore[no-untyped-def]
    """Add up some planes of (n, f, z, y, x), counted through all maps."""
    height, length = extents[3], extents[4]
    whole = length - length % LANES
    for plane in range(first, stop):
        above, z = divmod(plane, extents[2])
        n, f = divmod(above, extents[1])
        for lane in range(LANES):
            lanes[0, lane] = 0.0
            lanes[1, lane] = 0.0
        for y in range(height):
            at = start + n * strides[0] + f * strides[1] + z * strides[2] + y * strides[3]
            row = memory[at : at + length]
            for x in range(0, whole, LANES):
                for lane in range(LANES):
                    value = np.float64(row[x + lane])
                    lanes[0, lane] += value
                    lanes[1, lane] += value * value
            for x in range(whole, length):
                value = np.float64(row[x])
                lanes[0, x - whole] += value
                lanes[1, x - whole] += value * value
        for kind in range(SUMS):
            total = 0.0
            for lane in range(LANES):
                total += lanes[kind, lane]
            sums[plane, kind] = total


def primitives(device: Device) -> tuple[Normalization, ...]:
    """Return instance and group norm."""
    return (Normalization(device),)
