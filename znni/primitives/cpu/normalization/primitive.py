"""Norms by whole windows: one pass adds up each map, another scales it.

If there are enough groups, a worker does both passes for one group after the other. The second pass
then finds the values in a cache. Sums are kept in float64, plane by plane, and planes are added in
order. So the result does not depend on which thread adds up what.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import Normalize, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to
from znni.primitives.cpu.common import rows
from znni.primitives.cpu.common.activation import (
    CODES,
    activate,
    activate_further,
    row_finish,
    with_activation,
)
from znni.primitives.cpu.common.lazy_kernel import lazy_njit
from znni.primitives.cpu.common.numba_kernel import (
    flat_view,
    numba_kernel,
    output_view,
    summing_kernel,
)
from znni.primitives.cpu.common.workers import even_slices, share_count, workers

SUMS = 2  # of the values, and of their squares
DOUBLE_BYTES = 8

RELU, LEAKY = CODES["relu"], CODES["leaky_relu"]

# Groups of each worker from which on some have little less to do than others.
ENOUGH_GROUPS = 4

# Share of a core's nominal operations per second that both passes sustain in a cache.
EFFICIENCY = 0.15


@dataclass(frozen=True)
class Normalization:
    """Norms by whole windows on the CPU. The output may be the memory of the input."""

    device: Device
    name: str = "normalization"
    accuracy: float = 2e-6
    version = 2

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for a norm of its maps."""
        return shape if isinstance(layer, Normalize) and layer.features == shape.f else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: two passes over the input, with two multiply-adds for each value."""
        norm, out = applied_to(Normalize, self, layer, shape)
        threads = self.device.threads
        work = _Work(norm, shape, threads)
        # Of whole groups, the second pass reads from a cache.
        reads = 1 if work.by_group else 2
        cost = Cost(
            flops=4.0 * out.elements,
            bytes_moved=reads * shape.nbytes + 2 * out.nbytes,
            memory=Memory.beside(
                shape.nbytes + out.nbytes, workspace=DOUBLE_BYTES * SUMS * work.planes
            ),
            efficiency=EFFICIENCY,
            handed=work.handed_out,
        )
        return with_activation(cost, norm.activation, out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Return the run, with checked factors and shifts."""
        norm, out = applied_to(Normalize, self, layer, shape)
        given = conv_weights(norm, weights)
        pool, finish = workers(self.device.threads), row_finish(norm, out.f, given)
        work = _Work(norm, shape, self.device.threads)

        def run(x: Float32) -> Float32:
            y = new_output(out)
            source, target = flat_view(x), output_view(y)
            in_place = x.ctypes.data == y.ctypes.data
            # The sums of the values, and of their squares, of each plane.
            sums = workspace((SUMS, work.planes), np.float64)
            scaling = np.empty((2, out.n * out.f), np.float32)
            trained = given.weight, given.bias, norm.eps, norm.by == "response"
            last = scaling, finish.slope, finish.code, in_place

            def whole_groups(_worker: int, some: slice) -> None:
                _normalize(
                    *target, *source, x.shape, some.start, some.stop, work.maps, sums, *trained,
                    *last,
                )  # fmt: skip

            def add_up(_worker: int, some: slice) -> None:
                _add_up(*source, x.shape, some.start, some.stop, sums)

            def scale(_worker: int, some: slice) -> None:
                _scale(*target, *source, x.shape, some.start, some.stop, *last)

            if work.by_group:
                pool.for_each(whole_groups, even_slices(work.groups, work.tasks))
            else:
                pool.for_each(add_up, even_slices(work.planes, work.tasks))
                _set_scaling(x.shape, 0, work.groups, work.maps, sums, *trained, scaling)
                pool.for_each(scale, even_slices(work.planes, work.tasks))
            activate_further(y, norm, pool)
            return y

        return run


@dataclass(frozen=True)
class _Work:
    """The shares of the workers in a norm.

    Attributes:
        norm: the layer.
        shape: the shape of its input.
        threads: the number of workers.
    """

    norm: Normalize
    shape: Shape5
    threads: int

    @property
    def groups(self) -> int:
        """The number of groups of all images."""
        return self.shape.n * self.norm.groups

    @property
    def maps(self) -> int:
        """The number of maps of a group."""
        return self.norm.features // self.norm.groups

    @property
    def planes(self) -> int:
        """The number of planes of all images."""
        return self.shape.n * self.shape.f * self.shape.size.z

    @property
    def by_group(self) -> bool:
        """True if each worker takes whole groups: they keep all workers busy to the end."""
        return self.groups >= ENOUGH_GROUPS * self.threads or self.groups % self.threads == 0

    @property
    def tasks(self) -> int:
        """The number of tasks of a pass: some groups each, or some planes."""
        most = rows.most_tasks(self.shape)
        if self.by_group:
            return min(self.groups, max(self.threads, most))
        return share_count(self.threads, self.planes, most)

    @property
    def handed_out(self) -> HandedOut:
        """The tasks of a call."""
        return HandedOut(1, self.tasks).times(1 if self.by_group else 2)


@numba_kernel
def _normalize(  # type: ignore[no-untyped-def]
    memory, start, strides, source, source_start, source_strides, extents, first, stop, maps, sums,
    weight, bias, eps, response, scaling, slope, code, in_place,
):  # fmt: skip
    """Normalize some groups, counted through all images, one after the other."""
    planes = maps * extents[2]
    for group in range(first, stop):
        low, high = group * planes, (group + 1) * planes
        _add_up(source, source_start, source_strides, extents, low, high, sums)
        _set_scaling(extents, group, group + 1, maps, sums, weight, bias, eps, response, scaling)
        _scale(
            memory, start, strides, source, source_start, source_strides, extents, low, high,
            scaling, slope, code, in_place,
        )  # fmt: skip


@summing_kernel
def _add_up(memory, start, strides, extents, first, stop, sums):  # type: ignore[no-untyped-def]
    """Add up some planes of (n, f, z, y, x), counted through all maps."""
    for plane in range(first, stop):
        above, z = divmod(plane, extents[2])
        n, f = divmod(above, extents[1])
        total, squares = 0.0, 0.0
        height, length = extents[3], extents[4]
        if strides[3] == length:
            height, length = 1, height * length
        for y in range(height):
            at = start + n * strides[0] + f * strides[1] + z * strides[2] + y * strides[3]
            row = memory[at : at + length]
            row_total, row_squares = 0.0, 0.0
            for x in range(row.size):
                value = np.float64(row[x])
                row_total += value
                row_squares += value * value
            total += row_total
            squares += row_squares
        sums[0, plane] = total
        sums[1, plane] = squares


@numba_kernel
def _set_scaling(  # type: ignore[no-untyped-def]
    extents, first, stop, maps, sums, weight, bias, eps, response, scaling
):
    """Work out factors and shifts of the maps of some groups, whose planes are added up."""
    planes = maps * extents[2]
    count = planes * extents[3] * extents[4]
    for group in range(first, stop):
        if response:
            _set_response(extents, group, maps, sums, weight, bias, eps, scaling)
            continue
        total, squares = 0.0, 0.0
        for plane in range(group * planes, (group + 1) * planes):
            total += sums[0, plane]
            squares += sums[1, plane]
        mean = total / count
        variance = squares / count - mean * mean
        if variance < 0:
            variance = 0.0
        for at in range(group * maps, (group + 1) * maps):
            factor = weight[at % extents[1]] / np.sqrt(variance + eps)
            scaling[0, at] = factor
            scaling[1, at] = bias[at % extents[1]] - mean * factor


@numba_kernel
def _set_response(extents, group, maps, sums, weight, bias, eps, scaling):  # type: ignore[no-untyped-def]
    """Work out factors and shifts of a group's maps by their L2 norms, with the input added."""
    total = 0.0
    for at in range(group * maps, (group + 1) * maps):
        squares = 0.0
        for plane in range(at * extents[2], (at + 1) * extents[2]):
            squares += sums[1, plane]
        scaling[0, at] = np.sqrt(squares)
        total += np.sqrt(squares)
    mean = total / maps + eps
    for at in range(group * maps, (group + 1) * maps):
        scaling[0, at] = weight[at % extents[1]] * (scaling[0, at] / mean) + 1.0
        scaling[1, at] = bias[at % extents[1]]


@numba_kernel
def _scale(  # type: ignore[no-untyped-def]
    memory, start, strides, source, source_start, source_strides, extents, first, stop, scaling,
    slope, code, in_place,
):  # fmt: skip
    """Scale some planes of (n, f, z, y, x), counted through all maps, and activate them."""
    for plane in range(first, stop):
        above, z = divmod(plane, extents[2])
        n, f = divmod(above, extents[1])
        factor, shift, less = scaling[0, above], scaling[1, above], slope[f]
        height, length = extents[3], extents[4]
        if strides[3] == length and source_strides[3] == length:
            height, length = 1, height * length
        for y in range(height):
            at = start + n * strides[0] + f * strides[1] + z * strides[2] + y * strides[3]
            made = memory[at : at + length]
            if in_place:  # one array: with two, the loop would first have to rule that out
                for x in range(length):
                    made[x] = _bent(made[x] * factor + shift, less, code)
            else:
                at = source_start + n * source_strides[0] + f * source_strides[1]
                at += z * source_strides[2] + y * source_strides[3]
                given = source[at : at + length]
                for x in range(length):
                    made[x] = _bent(given[x] * factor + shift, less, code)
            if code > LEAKY:
                activate(made, np.float32(0), less, code)


@lazy_njit(nogil=True, inline="always")
def _bent(value, slope, code):  # type: ignore[no-untyped-def]
    """Return a value as (leaky) ReLU has it, and unchanged for other activations."""
    below = np.float32(0) if code == RELU else value * slope
    return below if value <= 0 and RELU <= code <= LEAKY else value


def primitives(device: Device) -> tuple[Normalization, ...]:
    """Return the norms by whole windows."""
    return (Normalization(device),)
