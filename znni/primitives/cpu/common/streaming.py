"""Stores past the caches, for output that is read long after the caches have dropped it.

An ordinary store first reads the cache line that it changes. So output larger than the cache
crosses the memory bus twice, and replaces cached data that the next tasks need.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from znni.primitives.cpu.common.lazy_kernel import lazy_intrinsic

# Outputs from this size on are streamed. Smaller ones may still be cached for the next layer.
STREAMED_BYTES = 16 * 2**20

LINE = 16  # floats in a cache line, as in the vectors that fill it at once

FLOAT, INDEX, NUMBER = ir.FloatType(), ir.IntType(64), ir.IntType(32)


def is_streamed(output_bytes: int) -> bool:
    """Return whether an output is large enough to be streamed."""
    return output_bytes >= STREAMED_BYTES


def bytes_to_write(output_bytes: int) -> int:
    """Return the bytes that cross the memory bus for an output, including lines read first."""
    return output_bytes if is_streamed(output_bytes) else 2 * output_bytes


@lazy_intrinsic()
def stream(_context: Any, source: Any, target: Any, _start: Any, _count: Any) -> Any:
    """Set ``target[start + i] = source[i]`` for i below ``count``, whole lines past the caches.

    Both arrays are contiguous and of float32, and bounds are not checked. The first and the last
    line may be shared with other data and are stored as usual: see ``fetch_to_write``.
    """
    from numba import types
    from numba.core import cgutils

    signature = types.void(source, target, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line_pointer = ir.VectorType(FLOAT, LINE).as_pointer()
        one = builder.module.add_metadata([ir.Constant(NUMBER, 1)])
        source = _element(context, builder, signature, arguments, 0, INDEX(0))
        target = _element(context, builder, signature, arguments, 1, arguments[2])
        size = arguments[3]

        def copy_floats(start: Any, count: Any) -> None:
            with cgutils.for_range(builder, count) as loop:
                at = [builder.add(start, loop.index)]
                builder.store(builder.load(builder.gep(source, at)), builder.gep(target, at))

        floats_before = builder.lshr(builder.ptrtoint(target, INDEX), INDEX(2))
        head = builder.and_(builder.neg(floats_before), INDEX(LINE - 1))
        head = builder.select(builder.icmp_signed("<", head, size), head, size)
        lines = builder.udiv(builder.sub(size, head), INDEX(LINE))
        tail = builder.add(head, builder.mul(lines, INDEX(LINE)))
        copy_floats(INDEX(0), head)
        with cgutils.for_range(builder, lines) as loop:
            at = [builder.add(head, builder.mul(loop.index, INDEX(LINE)))]
            line = builder.load(builder.bitcast(builder.gep(source, at), line_pointer), align=4)
            to = builder.bitcast(builder.gep(target, at), line_pointer)
            builder.store(line, to, align=4 * LINE).set_metadata("nontemporal", one)
        copy_floats(tail, builder.sub(size, tail))
        return context.get_dummy_value()

    return signature, generate


@lazy_intrinsic()
def fetch_to_read(_context: Any, array: Any, _position: Any) -> Any:
    """Prefetch the cache line of ``array[position]``, which may be out of bounds."""
    from numba import types

    return types.void(array, types.intp), _prefetch(to_write=False)


@lazy_intrinsic()
def fetch_to_write(_context: Any, array: Any, _position: Any) -> Any:
    """Prefetch the cache line of ``array[position]``, part of which will be changed.

    Stores take effect in order: a store that waits for its line would delay all later ones.
    """
    from numba import types

    return types.void(array, types.intp), _prefetch(to_write=True)


def _prefetch(to_write: bool) -> Any:
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, NUMBER, NUMBER, NUMBER])
        prefetch = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, kind, "llvm.prefetch.p0"
        )
        element = _element(context, builder, signature, arguments, 0, arguments[1])
        near, data = NUMBER(3), NUMBER(1)
        builder.call(prefetch, [builder.bitcast(element, byte), NUMBER(int(to_write)), near, data])
        return context.get_dummy_value()

    return generate


def _element(
    context: Any, builder: Any, signature: Any, arguments: Any, argument: int, position: Any
) -> Any:
    """Return the address of an element of the array that is an intrinsic's argument."""
    array = context.make_array(signature.args[argument])(context, builder, arguments[argument])
    return builder.gep(array.data, [position])
