"""Passes over rows of values, from inputs to an output, at the speed of memory.

A worker makes some values in its nearest cache, and then moves them to the output. So values may be
streamed, and an output may be the memory of an input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import workspace
from znni.network.weights import Float32
from znni.plans.cost import Cost, HandedOut, Memory
from znni.primitives.cpu.common.activation import Finish, activate
from znni.primitives.cpu.common.numba_kernel import (
    flat_view,
    longest_rows,
    numba_kernel,
    output_view,
)
from znni.primitives.cpu.common.streaming import bytes_to_write, fetch_to_write, is_streamed, stream
from znni.primitives.cpu.common.workers import Workers, share_count

# Floats that a worker makes at a time. They stay in the nearest cache.
PIECE = 2048
# Fewest bytes of output in a worker's task: enough to hide the cost of handing it out.
TASK_BYTES = 512 * 1024

# Share of a core's nominal operations per second, for passes with few operations for each value.
EFFICIENCY = 0.1

# Rows by which prefetches of an output run ahead of its stores.
AHEAD = 3

# No biases, no slopes and no activation.
NOTHING = np.empty(0, np.float32)
NO_FINISH = Finish(NOTHING, NOTHING, 0)

# Ways to make a value from those of the inputs.
COPY, SCALE, ADD, MULTIPLY, MAXIMUM = range(5)


@dataclass(frozen=True)
class RowPass:
    """A pass that makes each value of an output from the same values of its inputs.

    Attributes:
        kind: ``COPY`` of the first input, its ``SCALE`` by factor and bias, or ``ADD``,
            ``MULTIPLY`` or ``MAXIMUM`` of both.
        y: the output (n, f, z, y, x). It may be the memory of the first input.
        inputs: the inputs, of the output's shape. A copy or scale takes the same one twice.
        factor: the factors of the maps, for ``SCALE``.
        finish: the biases of the maps, for ``SCALE``, and the activation.
    """

    kind: int
    y: Float32
    inputs: tuple[Float32, Float32]
    factor: Float32
    finish: Finish

    def run(self, pool: Workers) -> None:
        """Make the whole output; the threads share it."""
        pieces = workspace((pool.threads, PIECE), np.float32)

        def task(worker: int, part: slice) -> None:
            self.make(part, pieces[worker])

        pool.for_each(task, pool.shares(self.y.size, most_tasks(Shape5(*self.y.shape))))

    def make(self, part: slice, piece: Float32) -> None:
        """Make some values, counted through the whole output."""
        y, first, second = longest_rows(self.y, *self.inputs)
        apart = self.y.ctypes.data != self.inputs[0].ctypes.data
        _combine(
            self.kind, *output_view(y), *flat_view(first), *flat_view(second), y.shape, part.start,
            part.stop, self.factor, *self.finish, piece, apart and is_streamed(y.nbytes),
        )  # fmt: skip


def copy(y: Float32, x: Float32) -> RowPass:
    """Return the pass that copies an array to another one. It needs no scratch."""
    return RowPass(COPY, y, (x, x), NOTHING, NO_FINISH)


def most_tasks(out: Shape5) -> int:
    """Return the most tasks for a pass that makes an output; each worker may have one."""
    return out.nbytes // TASK_BYTES


def handed_out(out: Shape5, threads: int) -> HandedOut:
    """Return the tasks of a pass that makes an output."""
    return HandedOut(1, share_count(threads, out.elements, most_tasks(out)))


def piece_bytes(threads: int) -> int:
    """Return the bytes of workspace of a ``RowPass``."""
    return 4 * threads * PIECE


def cost_of_pass(
    shape: Shape5, out: Shape5, flops: float, handed: HandedOut, workspace: int = 0
) -> Cost:
    """Return the cost of one pass over input and output.

    Args:
        shape: the shape of the input.
        out: the shape of the output.
        flops: the operations for each value of the output.
        handed: the tasks of the pass.
        workspace: the bytes of workspace.
    """
    arrays, moved = shape.nbytes + out.nbytes, shape.nbytes + bytes_to_write(out.nbytes)
    memory = Memory.beside(arrays, workspace)
    return Cost(flops * out.elements, moved, memory, EFFICIENCY, handed)


@numba_kernel
def _combine(  # type: ignore[no-untyped-def]
    kind, memory, start, strides, first, first_start, first_strides, second, second_start,
    second_strides, extents, begin, end, factor, bias, slope, code, piece, streamed,
):  # fmt: skip
    length, zero = extents[4], np.float32(0)
    row, x = divmod(begin, length)
    row, iy = divmod(row, extents[3])
    row, iz = divmod(row, extents[2])
    n, f = divmod(row, extents[1])
    while begin < end:
        count = min(length - x, end - begin)
        to = start + n * strides[0] + f * strides[1] + iz * strides[2] + iy * strides[3] + x
        at = first_start + n * first_strides[0] + f * first_strides[1]
        at += iz * first_strides[2] + iy * first_strides[3] + x
        other = second_start + n * second_strides[0] + f * second_strides[1]
        other += iz * second_strides[2] + iy * second_strides[3] + x
        ahead = to + AHEAD * strides[3]
        fetch_to_write(memory, ahead)  # numba passes the context
        fetch_to_write(memory, ahead + length - 1)
        if kind == 0:
            put_row(first[at:], count, memory, to, streamed)
        else:
            for done in range(0, count, piece.size):
                made = piece[: min(piece.size, count - done)]
                _made(kind, first[at + done :], second[other + done :], factor[f], bias[f], made)
                if code > 0:
                    activate(made, zero, slope[f], code)
                put_row(made, made.size, memory, to + done, streamed)
        begin, x, iy = begin + count, 0, iy + 1
        if iy == extents[3]:
            iy, iz = 0, iz + 1
        if iz == extents[2]:
            iz, f = 0, f + 1
        if f == extents[1]:
            f, n = 0, n + 1


@numba_kernel
def _made(kind, first, second, factor, bias, made):  # type: ignore[no-untyped-def]
    """Make some values from those of the inputs."""
    if kind == 1:
        for i in range(made.size):
            made[i] = first[i] * factor + bias
    elif kind == 2:
        for i in range(made.size):
            made[i] = first[i] + second[i]
    elif kind == 3:
        for i in range(made.size):
            made[i] = first[i] * second[i]
    else:
        for i in range(made.size):
            made[i] = max(first[i], second[i])


@numba_kernel
def put_row(made, count, memory, to, streamed):  # type: ignore[no-untyped-def]
    """Move the first values of an array to the output, past the caches if ``streamed``."""
    if streamed:
        stream(made, memory, to, count)  # numba passes the context
    else:
        target = memory[to : to + count]
        for i in range(count):
            target[i] = made[i]


@numba_kernel
def put_rows(made, rows, width, memory, to, row_stride, streamed):  # type: ignore[no-untyped-def]
    """Move rows that lie end to end to the output; at once if no gaps lie between them there."""
    together = rows if row_stride == width else 1
    for row in range(0, rows, together):
        put_row(made[row * width :], together * width, memory, to + row * row_stride, streamed)


@numba_kernel
def fetch_rows(rows, width, memory, to, row_stride):  # type: ignore[no-untyped-def]
    """Prefetch the lines at both ends of each piece that ``put_rows`` stores."""
    together = rows if row_stride == width else 1
    for row in range(0, rows, together):
        first = to + row * row_stride
        fetch_to_write(memory, first)  # numba passes the context
        fetch_to_write(memory, first + together * width - 1)
