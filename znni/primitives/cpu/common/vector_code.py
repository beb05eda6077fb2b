"""Operations on vectors of 16 floats: arithmetic, lane by lane and between lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from llvmlite import ir

LANES = 16
FLOAT_BYTES = 4
# Floats in 16 complex numbers: a vector of real parts, and one of imaginary parts.
NUMBER = 2 * LANES

FLOAT = ir.FloatType()
INT32 = ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, LANES)
_QUAD = ir.VectorType(FLOAT, 4)
_INT32S = ir.VectorType(INT32, LANES)

# The optimiser may only fuse multiply-adds and lose a zero's sign. Infinities and NaNs behave as
# everywhere else.
_FLAGS = ("contract", "nsz")

Value: TypeAlias = Any  # an LLVM value: llvmlite has no types

_CONSTANTS: dict[tuple[ir.Type, str], Value] = {}


def shared_constant(kind: ir.Type, value: Any) -> Value:
    """Return a constant, the same for all that ask for it: llvmlite takes long to write each one.

    Args:
        kind: its type in LLVM.
        value: a number, a list of them, or ``ir.Undefined``.
    """
    asked = kind, repr(value)  # which tells -0.0 from 0.0
    if asked not in _CONSTANTS:
        _CONSTANTS[asked] = ir.Constant(kind, value)
    return _CONSTANTS[asked]


class VectorCode:
    """An emitter of vector operations, at the current place of a function being built."""

    _module: ir.Module
    _build: ir.IRBuilder

    # Arithmetic of vectors

    def constant(self, value: float) -> Value:
        """Return a vector of 16 equal numbers."""
        return shared_constant(VECTOR, [value] * LANES)

    def broadcast(self, address: Value) -> Value:
        """Return 16 copies of the float at an address."""
        return self._splat(self._build.load(address))

    def add(self, left: Value, right: Value) -> Value:
        """Return the sum, lane by lane."""
        return self._build.fadd(left, right, flags=_FLAGS)

    def subtract(self, left: Value, right: Value) -> Value:
        """Return the difference, lane by lane."""
        return self._build.fsub(left, right, flags=_FLAGS)

    def multiply(self, left: Value, right: Value) -> Value:
        """Return the product, lane by lane."""
        return self._build.fmul(left, right, flags=_FLAGS)

    def scale(self, value: Value, factor: float) -> Value:
        """Return the product with one number."""
        return self.multiply(value, self.constant(factor))

    def negate(self, value: Value) -> Value:
        """Return the negative, lane by lane."""
        return self._build.fneg(value)

    def multiply_add(self, left: Value, right: Value, addend: Value) -> Value:
        """Return ``left * right + addend``, fused if the processor can."""
        signature = ir.FunctionType(VECTOR, [VECTOR] * 3)
        intrinsic = self.intrinsic(f"llvm.fmuladd.v{LANES}f32", signature)
        return self._build.call(intrinsic, [left, right, addend])

    # Vectors of 16 bfloat16 pairs (AVX512_BF16), typed as the floats that have their bits

    def pairs(self, firsts: Value, seconds: Value) -> Value:
        """Return two vectors as pairs, rounded to nearest, ties to even; denormals become zero."""
        halves = ir.VectorType(ir.IntType(16), 2 * LANES)
        convert = self.intrinsic(
            "llvm.x86.avx512bf16.cvtne2ps2bf16.512", ir.FunctionType(halves, [VECTOR, VECTOR])
        )
        rounded = self._build.call(convert, [seconds, firsts])  # the last operand comes first
        lanes = [lane for i in range(LANES) for lane in (i, i + LANES)]
        return self._build.bitcast(self._shuffle(rounded, rounded, lanes), VECTOR)

    def firsts_of_pairs(self, pairs: Value) -> Value:
        """Return the first of each pair."""
        return self._bits("shl", pairs, 16)

    def seconds_of_pairs(self, pairs: Value) -> Value:
        """Return the second of each pair."""
        return self._bits("and_", pairs, 0xFFFF0000)

    def negate_seconds(self, pairs: Value) -> Value:
        """Return the pairs with the sign of the second changed."""
        return self._bits("xor", pairs, 0x80000000)

    def swap_pairs(self, pairs: Value) -> Value:
        """Return the pairs with first and second exchanged."""
        up, down = (
            self._build.bitcast(self._bits(shift, pairs, 16), _INT32S) for shift in ("shl", "lshr")
        )
        return self._build.bitcast(self._build.or_(up, down), VECTOR)

    def multiply_add_pairs(self, left: Value, right: Value, addend: Value) -> Value:
        """Return ``addend`` plus the products of firsts and of seconds, summed in float32."""
        signature = ir.FunctionType(VECTOR, [VECTOR, _INT32S, _INT32S])
        multiply = self.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", signature)
        pairs = [self._build.bitcast(value, _INT32S) for value in (left, right)]
        return self._build.call(multiply, [addend, *pairs])

    def at_least(self, value: Value, floor: Value) -> Value:
        """Return the larger of the two, lane by lane; NaN where the value is NaN."""
        below = self._build.fcmp_ordered("<", value, floor)
        return self._build.select(below, floor, value)

    def at_most(self, value: Value, ceiling: Value) -> Value:
        """Return the smaller of the two, lane by lane; NaN where the value is NaN."""
        above = self._build.fcmp_ordered(">", value, ceiling)
        return self._build.select(above, ceiling, value)

    def where_positive(self, value: Value, yes: Value, no: Value) -> Value:
        """Return ``yes`` where a value is positive, and ``no`` elsewhere."""
        above = self._build.fcmp_ordered(">", value, self.constant(0.0))
        return self._build.select(above, yes, no)

    def divide(self, left: Value, right: Value) -> Value:
        """Return the quotient, lane by lane."""
        return self._build.fdiv(left, right, flags=_FLAGS)

    def power_of_two(self, shifted: Value) -> Value:
        """Return 2 to the integers n from -126 to 127, which are given as n + 1.5 * 2^23.

        In such a number, n is in the lowest bits.
        """
        return self._bits("add", self._bits("shl", shifted, 23), 127 << 23)

    def larger(self, left: Value, right: Value) -> Value:
        """Return the larger of the two, lane by lane; NaN where either is NaN."""
        keep = self._build.or_(
            self._build.fcmp_ordered(">=", left, right),
            self._build.fcmp_unordered("uno", left, left),
        )
        return self._build.select(keep, left, right)

    def finished(self, value: Value, bias: Value, slope: Value, floor: Value) -> Value:
        """Return w = max(value + bias, floor), or w * slope where w is negative."""
        bounded = self.at_least(self.add(value, bias), floor)
        below = self._build.fcmp_ordered("<", bounded, self.constant(0.0))
        return self._build.select(below, self.multiply(bounded, slope), bounded)

    # Between lanes

    def first(self, vector: Value, count: Value) -> Value:
        """Return the first ``count`` lanes, with zeros in the others."""
        return self._build.select(self.below(count), vector, self.constant(0.0))

    def gather_quads(self, addresses: Sequence[Value]) -> Value:
        """Load four floats from each of four addresses, side by side."""
        parts = []
        for address in addresses:
            part = self._build.load(self._build.bitcast(address, _QUAD.as_pointer()))
            part.align = FLOAT_BYTES
            parts.append(part)
        low, high = (self._shuffle(a, b, list(range(8))) for a, b in (parts[:2], parts[2:]))
        return self._shuffle(low, high, list(range(LANES)))

    def gather(self, addresses: Sequence[Value]) -> Value:
        """Load one float from each of 16 addresses."""
        vector: Value = shared_constant(VECTOR, ir.Undefined)
        for lane, address in enumerate(addresses):
            element = self._build.load(address)
            vector = self._build.insert_element(vector, element, shared_constant(INT32, lane))
        return vector

    def transpose_within_quads(self, rows: Sequence[Value]) -> list[Value]:
        """Transpose four vectors as four separate 4 x 4 matrices, one in each quarter."""
        low, high = [0, 16, 1, 17], [2, 18, 3, 19]
        ab_low, ab_high = (self._by_quads(rows[0], rows[1], pick) for pick in (low, high))
        cd_low, cd_high = (self._by_quads(rows[2], rows[3], pick) for pick in (low, high))
        first, second = [0, 1, 16, 17], [2, 3, 18, 19]
        return [
            self._by_quads(left, right, pick)
            for left, right in ((ab_low, cd_low), (ab_high, cd_high))
            for pick in (first, second)
        ]

    def transpose_quads(self, rows: Sequence[Value]) -> list[Value]:
        """Transpose four vectors as one 4 x 4 matrix whose elements are quarters."""
        quads = [list(range(start, start + 4)) for start in range(0, 2 * LANES, 4)]
        even = quads[0] + quads[4] + quads[2] + quads[6]
        odd = quads[1] + quads[5] + quads[3] + quads[7]
        ab_even, ab_odd = (self._shuffle(rows[0], rows[1], pick) for pick in (even, odd))
        cd_even, cd_odd = (self._shuffle(rows[2], rows[3], pick) for pick in (even, odd))
        lower = quads[0] + quads[1] + quads[4] + quads[5]
        upper = quads[2] + quads[3] + quads[6] + quads[7]
        return [
            self._shuffle(ab_even, cd_even, lower),
            self._shuffle(ab_odd, cd_odd, lower),
            self._shuffle(ab_even, cd_even, upper),
            self._shuffle(ab_odd, cd_odd, upper),
        ]

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """Transpose 16 vectors as one 16 x 16 matrix."""
        within = [self.transpose_within_quads(rows[i : i + 4]) for i in range(0, LANES, 4)]
        across = [self.transpose_quads([part[i] for part in within]) for i in range(4)]
        return [across[lane % 4][lane // 4] for lane in range(LANES)]

    def every_second(self, first: Value, after: Value) -> Value:
        """Return every second of 31 floats, the middle one of which both vectors hold."""
        return self._shuffle(first, after, [*range(0, LANES, 2), *range(LANES + 1, 2 * LANES, 2)])

    def interleaved(self, left: Value, right: Value) -> list[Value]:
        """Return the lanes of two vectors in turn, as two vectors."""
        lanes = [lane for i in range(LANES) for lane in (i, i + LANES)]
        return [self._shuffle(left, right, part) for part in (lanes[:LANES], lanes[LANES:])]

    def _bits(self, operation: str, vector: Value, operand: int) -> Value:
        """Return the result of an operation on the bits of each lane."""
        bits = self._build.bitcast(vector, _INT32S)
        operands = shared_constant(_INT32S, [operand] * LANES)
        return self._build.bitcast(getattr(self._build, operation)(bits, operands), VECTOR)

    def below(self, count: Value) -> Value:
        """Return a mask of the lanes whose numbers are below an index."""
        lanes = shared_constant(_INT32S, list(range(LANES)))
        limit = self._splat(self._build.trunc(count, INT32))
        return self._build.icmp_signed("<", lanes, limit)

    def _by_quads(self, left: Value, right: Value, pick: list[int]) -> Value:
        """Return the same choice of lanes within every quarter of two vectors."""
        return self._shuffle(left, right, [i + quad for quad in range(0, LANES, 4) for i in pick])

    def _shuffle(self, left: Value, right: Value, lanes: list[int]) -> Value:
        mask = shared_constant(ir.VectorType(INT32, len(lanes)), lanes)
        return self._build.shuffle_vector(left, right, mask)

    def _splat(self, scalar: Value) -> Value:
        undefined = shared_constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
        first = self._build.insert_element(undefined, scalar, shared_constant(INT32, 0))
        return self._shuffle(first, undefined, [0] * LANES)

    def intrinsic(self, name: str, signature: ir.FunctionType) -> Value:
        """Return an LLVM intrinsic as a function."""
        known = self._module.globals.get(name)
        return known or ir.Function(self._module, signature, name)
