"""Layer norm over maps: each voxel is scaled by the mean and the variance of its own maps.

A worker takes some voxels of a row, whose maps stay in its cache. So memory is read once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import Operation, VoxelNorm
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to
from znni.primitives.cpu.common import rows
from znni.primitives.cpu.common.activation import (
    activate,
    activate_further,
    row_finish,
    with_activation,
)
from znni.primitives.cpu.common.numba_kernel import (
    flat_view,
    longest_rows,
    numba_kernel,
    output_view,
)
from znni.primitives.cpu.common.rows import put_row
from znni.primitives.cpu.common.streaming import bytes_to_write, is_streamed
from znni.primitives.cpu.common.workers import share_count, workers

# Values that a worker has in its cache at a time, and the voxels that make them up.
CACHED_VALUES = 32 * 1024
FEWEST_VOXELS, MOST_VOXELS = 64, 1024

# Rows of floats for each worker: means, factors, and finished values.
SCRATCH_ROWS = 3

# Operations for a value: two sums, and two multiply-adds.
FLOPS = 7

# Share of a core's nominal operations per second.
EFFICIENCY = 0.15


@dataclass(frozen=True)
class VoxelNorms:
    """Layer norm over maps on the CPU. The output may be the memory of the input."""

    device: Device
    name: str = "voxel_norm"
    accuracy: float = 2e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for a norm of its maps."""
        return shape if isinstance(layer, VoxelNorm) and layer.features == shape.f else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass over each array."""
        norm, out = applied_to(VoxelNorm, self, layer, shape)
        threads, voxels = self.device.threads, shape.n * shape.size.volume
        scratch = 4 * threads * SCRATCH_ROWS * _together(norm)
        cost = Cost(
            flops=float(FLOPS * out.elements),
            bytes_moved=shape.nbytes + bytes_to_write(out.nbytes),
            memory=Memory.beside(shape.nbytes + out.nbytes, workspace=scratch),
            efficiency=EFFICIENCY,
            handed=HandedOut(1, share_count(threads, voxels, rows.most_tasks(out))),
        )
        return with_activation(cost, norm.activation, out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Return the run, with checked factors and shifts."""
        norm, out = applied_to(VoxelNorm, self, layer, shape)
        given = conv_weights(norm, weights)
        pool, finish = workers(self.device.threads), row_finish(norm, out.f, given)
        maps = norm.features // norm.groups

        def run(x: Float32) -> Float32:
            y = new_output(out)
            scratch = workspace((pool.threads, SCRATCH_ROWS, _together(norm)), np.float32)
            target, source = longest_rows(y, x)
            streamed = y.ctypes.data != x.ctypes.data and is_streamed(y.nbytes)

            def task(worker: int, voxels: slice) -> None:
                _normalize(
                    *output_view(target), *flat_view(source), target.shape, voxels.start,
                    voxels.stop, maps, given.weight, np.float32(norm.eps), *finish,
                    scratch[worker], streamed,
                )  # fmt: skip

            pool.for_each(task, pool.shares(out.n * out.size.volume, rows.most_tasks(out)))
            activate_further(y, norm, pool)
            return y

        return run


def _together(norm: VoxelNorm) -> int:
    """Return the voxels that a worker normalizes at a time."""
    voxels = CACHED_VALUES // (norm.features // norm.groups)
    return min(MOST_VOXELS, max(FEWEST_VOXELS, voxels))


@numba_kernel
def _normalize(  # type: ignore[no-untyped-def]
    memory, start, strides, source, source_start, source_strides, extents, first, stop, maps,
    weight, eps, bias, slope, code, scratch, streamed,
):  # fmt: skip
    """Normalize some voxels of (n, f, z, y, x), counted through all images."""
    features, length, zero = extents[1], extents[4], np.float32(0)
    part = np.float32(1) / np.float32(maps)
    while first < stop:
        row, x = divmod(first, length)
        count = min(length - x, stop - first, scratch.shape[1])
        row, y = divmod(row, extents[3])
        n, z = divmod(row, extents[2])
        to = start + n * strides[0] + z * strides[2] + y * strides[3] + x
        at = source_start + n * source_strides[0] + z * source_strides[2]
        at += y * source_strides[3] + x
        mean, factor, made = scratch[0, :count], scratch[1, :count], scratch[2, :count]
        for low in range(0, features, maps):
            for i in range(count):
                mean[i], factor[i] = zero, zero
            base = source[at + low * source_strides[1] :]
            for f in range(low + 1, low + maps):
                given = source[at + f * source_strides[1] :]
                for i in range(count):
                    mean[i] += given[i] - base[i]  # so a sum of equal values has no error
            for i in range(count):
                mean[i] = base[i] + mean[i] * part
            for f in range(low, low + maps):
                given = source[at + f * source_strides[1] :]
                for i in range(count):
                    apart = given[i] - mean[i]
                    factor[i] += apart * apart
            for i in range(count):
                factor[i] = np.float32(1) / np.sqrt(factor[i] * part + eps)
            for f in range(low, low + maps):
                given, scale, shift = source[at + f * source_strides[1] :], weight[f], bias[f]
                for i in range(count):
                    made[i] = (given[i] - mean[i]) * factor[i] * scale + shift
                if code > 0:
                    activate(made, zero, slope[f], code)
                put_row(made, count, memory, to + f * strides[1], streamed)
        first += count


def primitives(device: Device) -> tuple[VoxelNorms, ...]:
    """Return layer norm over maps."""
    return (VoxelNorms(device),)
