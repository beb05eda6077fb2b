"""Transposition of a matrix of floats in registers, in parts of 16 x 16."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from znni.primitives.cpu.common.lazy_kernel import lazy_intrinsic
from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.primitives.cpu.common.vector_code import LANES
from znni.resampling.block_code import BlockCode


@numba_kernel
def transpose_matrix(  # type: ignore[no-untyped-def]
    source, at, step, target, to, to_step, rows, columns
):  # fmt: skip
    """Set ``target[to + j * to_step + i] = source[at + i * step + j]`` for all rows and columns.

    If their number is no multiple of 16, some rows or columns are done twice.
    """
    if rows < LANES or columns < LANES:
        for i in range(rows):
            for j in range(columns):
                target[to + j * to_step + i] = source[at + i * step + j]
        return
    for top in range(0, rows, LANES):
        i = min(top, rows - LANES)
        for left in range(0, columns, LANES):
            j = min(left, columns - LANES)
            _transpose_lanes(source, at + i * step + j, step, target, to + j * to_step + i, to_step)


@lazy_intrinsic()
def _transpose_lanes(
    _context: Any, source: Any, _at: Any, _step: Any, target: Any, _to: Any, _to_step: Any
) -> Any:
    """Transpose 16 x 16 floats. Both arrays are contiguous, and bounds are not checked."""
    from numba import types

    index = types.intp
    signature = types.void(source, index, index, target, index, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, at, step, _, to, to_step = arguments
        code = BlockCode(context, builder, signature, arguments)

        def row_at(array: int, start: Any, step: Any, number: int) -> Any:
            return code.vector_at(array, start, builder.mul(step, ir.IntType(64)(number)))

        rows = [builder.load(row_at(0, at, step, number), align=4) for number in range(LANES)]
        for number, column in enumerate(code.transpose(rows)):
            builder.store(column, row_at(3, to, to_step, number), align=4)
        return context.get_dummy_value()

    return signature, generate
