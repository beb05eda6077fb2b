"""The innermost step of a direct convolution: a tile of sums that stays in registers.

It is written as LLVM instructions on explicit vectors, because compilers do not find this blocking
by themselves. The idea is from Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from llvmlite import binding, ir

from znni.primitives.cpu.common.lazy_kernel import lazy_intrinsic

FLOAT = ir.FloatType()


class Registers(NamedTuple):
    """The processor's vector registers.

    Attributes:
        lanes: floats in one register.
        sums: number of registers that hold sums; the others hold inputs and weights.
        maps: largest number of output maps in a tile.
    """

    lanes: int
    sums: int
    maps: int


REGISTERS = {"avx512f": Registers(16, 24, 8), "avx2": Registers(8, 12, 4)}
BASELINE = Registers(4, 12, 4)
MOST_VECTORS = 6


@cache
def registers() -> Registers:
    """Return the vector registers of the processor at hand."""
    features = binding.get_host_cpu_features()
    found = (kind for name, kind in REGISTERS.items() if features.get(name))
    return next(found, BASELINE)


def tile_width(maps: int) -> int:
    """Return the positions per tile for which ``maps`` rows of sums fill the sums' registers."""
    kind = registers()
    return kind.lanes * min(kind.sums // maps, MOST_VECTORS)


@lazy_intrinsic(prefer_literal=True)
def add_tile(
    _context: Any,
    maps: Any,
    width: Any,
    sums: Any,
    _sums_start: Any,
    _sums_pitch: Any,
    _continued: Any,
    inputs: Any,
    _inputs_start: Any,
    offsets: Any,
    _taps: Any,
    weights: Any,
    _weights_start: Any,
) -> Any:
    """Add a convolution's taps to a tile of sums, ``maps`` rows of ``width`` positions.

    ``sums[sums_start + m * sums_pitch + i] += weights[weights_start + t * maps + m]
    * inputs[inputs_start + offsets[t] + i]``, summed over all taps t, for every m and i. ``maps``
    and ``width`` are compile-time constants. The arrays are one-dimensional, and bounds are not
    checked. Unless ``continued``, the sums before are taken to be zero.
    """
    from numba import types
    from numba.core import cgutils

    rows, vectors = maps.literal_value, width.literal_value // registers().lanes
    signature = types.void(
        maps,
        width,
        sums,
        types.intp,
        types.intp,
        types.boolean,
        inputs,
        types.intp,
        offsets,
        types.intp,
        weights,
        types.intp,
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = registers().lanes
        vector, index = ir.VectorType(FLOAT, lanes), ir.IntType(64)
        multiply_add = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{lanes}f32"
        )

        def elements(argument: int, start: Any) -> Any:
            array = context.make_array(signature.args[argument])
            return builder.gep(array(context, builder, arguments[argument]).data, [start])

        def vectors_at(pointer: Any) -> list[Any]:
            starts = (builder.gep(pointer, [index(lanes * i)]) for i in range(vectors))
            return [builder.bitcast(start, vector.as_pointer()) for start in starts]

        def broadcast(value: Any) -> Any:
            undefined = ir.Constant(vector, ir.Undefined)
            all_first = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
            first = builder.insert_element(undefined, value, ir.IntType(32)(0))
            return builder.shuffle_vector(first, undefined, all_first)

        first_sums = elements(2, arguments[3])
        first_input = elements(6, arguments[7])
        first_weight = elements(10, arguments[11])
        targets = [
            vectors_at(builder.gep(first_sums, [builder.mul(arguments[4], index(row))]))
            for row in range(rows)
        ]
        # LLVM turns these stack slots into registers, as they are only loaded and stored whole.
        slots = [
            [cgutils.alloca_once(builder, vector) for _ in row]  # type: ignore[no-untyped-call]
            for row in targets
        ]
        pairs = list(zip(chain(*slots), chain(*targets), strict=True))
        zero = ir.Constant(vector, [0.0] * lanes)
        for slot, _ in pairs:
            builder.store(zero, slot)
        with builder.if_then(arguments[5]):
            for slot, target in pairs:
                builder.store(builder.load(target, align=4), slot)
        with cgutils.for_range(builder, arguments[9]) as loop:
            offset = builder.load(elements(8, loop.index))
            inputs_here = vectors_at(builder.gep(first_input, [offset]))
            values = [builder.load(pointer, align=4) for pointer in inputs_here]
            tap = builder.gep(first_weight, [builder.mul(loop.index, index(rows))])
            for row in range(rows):
                weight = broadcast(builder.load(builder.gep(tap, [index(row)])))
                for slot, value in zip(slots[row], values, strict=True):
                    added = builder.call(multiply_add, [value, weight, builder.load(slot)])
                    builder.store(added, slot)
        for slot, target in pairs:
            builder.store(builder.load(slot), target, align=4)
        return context.get_dummy_value()

    return signature, generate
