"""Weighted sums of rows of floats, kept in registers until all rows are added."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from znni.primitives.cpu.common.lazy_kernel import LazyKernel, lazy_intrinsic
from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.primitives.cpu.common.vector_code import LANES
from znni.resampling.block_code import BlockCode


@numba_kernel
def sum_rows(rows, at, step, weights, made, to, count):  # type: ignore[no-untyped-def]
    """Set ``made[to + x]`` to the sum of ``weights[k] * rows[at + k * step + x]``, k in order.

    All x below ``count`` are rounded in the same way.
    """
    x = 0
    while x + 4 * LANES <= count:
        _sum_four(rows, at + x, step, weights, made, to + x)
        x += 4 * LANES
    while x + LANES <= count:
        _sum_one(rows, at + x, step, weights, made, to + x)
        x += LANES
    if x < count and count >= LANES:  # some columns before are computed again
        x = count - LANES
        _sum_one(rows, at + x, step, weights, made, to + x)
        x = count
    for rest in range(x, count):
        total = weights[0] * rows[at + rest]
        for k in range(1, weights.size):
            total += weights[k] * rows[at + k * step + rest]
        made[to + rest] = total


@numba_kernel
def sum_rows_of_32(rows, at, step, weights, made, to):  # type: ignore[no-untyped-def]
    """Sum as ``sum_rows`` does, for 32 columns."""
    _sum_two(rows, at, step, weights, made, to)


def _summing(vectors: int) -> LazyKernel:
    """Return an intrinsic that sums rows of ``vectors`` times 16 floats."""

    @lazy_intrinsic()
    def sum_vectors(
        _context: Any, rows: Any, _at: Any, _step: Any, weights: Any, made: Any, _to: Any
    ) -> Any:
        from numba import types
        from numba.core import cgutils

        index = types.intp
        signature = types.void(rows, index, index, weights, made, index)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, at, step, taps, _, to = arguments
            code = BlockCode(context, builder, signature, arguments)
            columns = [ir.IntType(64)(LANES * number) for number in range(vectors)]
            sums = [
                cgutils.alloca_once_value(builder, code.constant(0.0))  # type: ignore[no-untyped-call]
                for _ in columns
            ]
            count = context.make_array(signature.args[3])(context, builder, taps).nitems
            with cgutils.for_range(builder, count) as loop:
                weight = code.broadcast(code.float_at(3, loop.index))
                row = builder.add(at, builder.mul(step, loop.index))
                for column, total in zip(columns, sums, strict=True):
                    part = builder.load(code.vector_at(0, row, column), align=4)
                    added = code.multiply_add(weight, part, builder.load(total))
                    builder.store(added, total)
            for column, total in zip(columns, sums, strict=True):
                builder.store(builder.load(total), code.vector_at(4, to, column), align=4)
            return context.get_dummy_value()

        return signature, generate

    return sum_vectors


_sum_one, _sum_two, _sum_four = _summing(1), _summing(2), _summing(4)
