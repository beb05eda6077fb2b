"""Copies of every second sample of a row, or every third: compilers find no vectors for them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from znni.primitives.cpu.common.lazy_kernel import lazy_intrinsic
from znni.primitives.cpu.common.numba_kernel import numba_kernel

# Samples that are copied at a time.
VECTOR = 16


@numba_kernel
def take_every(step, source, target, count):  # type: ignore[no-untyped-def]
    """Set ``target[x] = source[step * x]`` for x below ``count``; reads nothing beyond the last."""
    done = 0
    if step == 1:
        for x in range(count):
            target[x] = source[x]
        return
    if step == 2:
        while done + VECTOR < count:
            _every_second(source, 2 * done, target, done)
            done += VECTOR
    for x in range(done, count):
        target[x] = source[step * x]


@lazy_intrinsic()
def _every_second(_context: Any, source: Any, _at: Any, target: Any, _to: Any) -> Any:
    """Copy 16 samples that lie two apart; the last load ends with the sample after them."""
    from numba import types

    signature = types.void(source, types.intp, target, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, lane = ir.VectorType(ir.FloatType(), VECTOR), ir.IntType(32)

        def address(argument: int, more: int) -> Any:
            array = context.make_array(signature.args[argument])
            data = array(context, builder, arguments[argument]).data
            at = builder.add(arguments[argument + 1], ir.IntType(64)(more))
            return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())

        low, high = (builder.load(address(0, more), align=4) for more in (0, VECTOR))
        mask = ir.Constant(ir.VectorType(lane, VECTOR), [lane(2 * i) for i in range(VECTOR)])
        builder.store(builder.shuffle_vector(low, high, mask), address(2, 0), align=4)
        return context.get_dummy_value()

    return signature, generate
