"""Maxima over pooling windows, plane by plane, for plain pooling and for fragments.

If a window contains a NaN, its maximum is NaN, as with ``numpy.maximum``. Otherwise a maximum
starts from the window's first voxel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import workspace
from znni.network.weights import Float32
from znni.primitives.cpu.common.lazy_kernel import lazy_intrinsic
from znni.primitives.cpu.common.numba_kernel import flat_view, larger, numba_kernel, output_view
from znni.primitives.cpu.common.streaming import (
    LINE,
    fetch_to_read,
    fetch_to_write,
    is_streamed,
    stream,
)
from znni.primitives.cpu.common.workers import Workers, share_count

# Fewest bytes of input in a task. Threads that end together wait for Python's lock, some 70
# microseconds each on virtual machines. With 16 threads, tasks of 2.7 MB took 1.2 to 1.8 times as
# long as tasks of 5 to 11 MB.
TASK_BYTES = 8 * 2**20
# Output rows are computed in whole vectors, up to one float less than this beyond their ends.
VECTOR = 16


class Scratch(NamedTuple):
    """Sizes of a thread's workspace, in floats.

    Attributes:
        maxima: size of a plane of maxima over z, or over z and y.
        result: size of an output plane.
    """

    maxima: int
    result: int

    @classmethod
    def of(cls, shape: Shape5, out: Shape5, window: Vec3) -> Scratch:
        """Return the sizes for an input, its output and the window between them."""
        return cls(shape.y * shape.x + VECTOR * window.x, out.y * out.x + VECTOR)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole workspace."""
        return 4 * (2 * self.maxima + self.result)


def task_count(shape: Shape5, out: Shape5, threads: int) -> int:
    """Return the number of tasks that ``window_maxima`` hands out for an input and its output."""
    return share_count(threads, shape.n * shape.f * out.z, shape.nbytes // TASK_BYTES)


def window_maxima(
    x: Float32, y: Float32, window: Vec3, fragments_per_axis: Vec3, pool: Workers
) -> None:
    """Pool ``x`` (n, f, z, y, x), with stride = window, into ``y`` (n * fragments, f, z, y, x).

    Fragment (oz, oy, ox) starts at that offset. There are ``fragments_per_axis`` of them for each
    n, in C order.
    """
    view = flat_view(x)
    planes = x.shape[0] * y.shape[1] * y.shape[2]
    scratch = Scratch.of(Shape5(*x.shape), Shape5(*y.shape), window)
    maxima = workspace((pool.threads, 2, scratch.maxima), np.float32)
    result = workspace((pool.threads, scratch.result), np.float32)
    pool_planes, target = _plane_kernel(window.x), output_view(y)

    def task(worker: int, part: slice) -> None:
        pool_planes(
            *view, x.shape[3:], *target, y.shape, tuple(window), tuple(fragments_per_axis),
            part.start, part.stop, *maxima[worker], result[worker], is_streamed(y.nbytes),
        )  # fmt: skip

    pool.for_each(task, pool.shares(planes, x.nbytes // TASK_BYTES))


@numba_kernel
def _slide(source, at, step, extent, target, size):  # type: ignore[no-untyped-def]
    """Set ``target[i]`` to the maximum of ``extent`` elements, ``step`` apart, from ``at + i``."""
    first = source[at:]
    if extent == 1:
        for i in range(size):
            target[i] = first[i]
        return
    second = source[at + step :]
    for i in range(size):
        target[i] = larger(first[i], second[i])
    for d in range(2, extent):
        other = source[at + d * step :]
        for i in range(size):
            target[i] = larger(target[i], other[i])


@lazy_intrinsic(prefer_literal=True)
def _strided_maxima(
    _context: Any, across: Any, source: Any, _at: Any, target: Any, _to: Any
) -> Any:
    """Store a vector at ``to``: each lane is a maximum of ``across`` adjacent elements from ``at``.

    ``across`` is a compile-time constant. Compilers vectorise over rows, but not to their ends.
    """
    count = across.literal_value
    from numba import types

    signature = types.void(across, source, types.intp, target, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        result, elements = (ir.VectorType(ir.FloatType(), VECTOR * i) for i in (1, count))
        lane = ir.IntType(32)

        def vector_at(argument: int, position: Any, kind: Any) -> Any:
            array = context.make_array(signature.args[argument])
            data = array(context, builder, arguments[argument]).data
            return builder.bitcast(builder.gep(data, [position]), kind.as_pointer())

        values = builder.load(vector_at(1, arguments[2], elements), align=4)
        parts = []
        for first in range(count):
            lanes = [lane(first + count * i) for i in range(VECTOR)]
            mask = ir.Constant(ir.VectorType(lane, VECTOR), lanes)
            parts.append(builder.shuffle_vector(values, values, mask))
        largest, *others = parts
        for other in others:
            at_least = builder.fcmp_ordered(">=", largest, other)
            keep = builder.or_(at_least, builder.fcmp_unordered("uno", largest, largest))
            largest = builder.select(keep, largest, other)
        builder.store(largest, vector_at(3, arguments[4], result), align=4)
        return context.get_dummy_value()

    return signature, generate


@cache
def _plane_kernel(across: int) -> Callable[..., None]:
    """Return the compiled loop over planes, for one extent of the window along x."""

    @numba_kernel
    def pool_planes(  # type: ignore[no-untyped-def]
        memory, start, strides, size, flat, to_start, to_strides, out, window, counts, first, stop,
        over_z, over_zy, result, streamed,
    ):  # fmt: skip
        """Pool the output planes (n, f, z) with these indices, for all fragments."""
        _, features, out_z, out_y, out_x = out
        height, width = size
        # The next plane is prefetched little by little, while the rows of this one are computed.
        share = height * width // (counts[1] * counts[2] * out_y)
        for index in range(first, stop):
            rest, z = divmod(index, out_z)
            n, f = divmod(rest, features)
            for oz in range(counts[0]):
                at = start + n * strides[0] + f * strides[1] + (z * window[0] + oz) * strides[2]
                if strides[3] == width:
                    _slide(memory, at, strides[2], window[0], over_z, height * width)
                else:
                    for y in range(height):
                        row = over_z[y * width :]
                        _slide(memory, at + y * strides[3], strides[2], window[0], row, width)
                _slide(over_z, 0, width, window[1], over_zy, (height - window[1] + 1) * width)
                ahead = at + window[0] * strides[2]
                for o in range(counts[1] * counts[2]):
                    fragment = (n * counts[0] + oz) * counts[1] * counts[2] + o
                    to = to_start + fragment * to_strides[0] + f * to_strides[1] + z * to_strides[2]
                    # Whole planes are stored at once if no gaps lie between their rows.
                    rows = 1 if to_strides[3] == out_x else out_y
                    length = out_y * out_x // rows
                    for y in range(rows):
                        at_row = to + y * to_strides[3]
                        fetch_to_write(flat, at_row)  # numba adds it
                        fetch_to_write(flat, at_row + length - 1)
                    oy, ox = divmod(o, counts[2])
                    for y in range(out_y):
                        for i in range(0, share, LINE):
                            fetch_to_read(memory, ahead + i)
                        ahead += share
                        row = (y * window[1] + oy) * width + ox
                        for x in range(0, out_x, VECTOR):
                            # Values beyond a row's end are overwritten by the next row.
                            left = row + x * across
                            _strided_maxima(across, over_zy, left, result, y * out_x + x)
                    for y in range(rows):
                        made, at_row = result[y * length :], to + y * to_strides[3]
                        if streamed:
                            stream(made, flat, at_row, length)
                        else:
                            target = flat[at_row:]
                            for i in range(length):
                                target[i] = made[i]

    return pool_planes
