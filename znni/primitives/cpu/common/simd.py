"""Straight LLVM IR for kernels that think in vectors: 16 floats at a time, plain loops, no magic.

A kernel is written once, against vectors of 16 floats; LLVM splits them for narrower registers
(two on AVX2, four on NEON). Strides and counts are arguments, so that one compiled kernel serves
every array shape; only what shapes the code itself (a transform's length) is fixed in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Any, TypeAlias

from llvmlite import ir

from znni.primitives.cpu.common.machine_code import Kernel, compiled

LANES = 16
FLOAT_BYTES = 4
VECTOR_BYTES = LANES * FLOAT_BYTES

# Fused multiply-adds and the loss of a zero's sign are all that is asked of the optimiser:
# infinities and NaNs pass through as they do everywhere else.
_FLAGS = ("contract", "nsz")

_FLOAT = ir.FloatType()
_INDEX = ir.IntType(64)
_INT32 = ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_QUAD = ir.VectorType(_FLOAT, 4)
_INT32S = ir.VectorType(_INT32, LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)

Value: TypeAlias = Any  # an LLVM value: llvmlite has no types


class Argument(Enum):
    """What a kernel can be given."""

    FLOATS = _FLOAT.as_pointer()  # the address of float32 numbers
    INDICES = _INDEX.as_pointer()  # the address of int64 numbers
    INDEX = _INDEX  # an int64 number, or the address of another kernel


class Emitter:
    """Emits one kernel: a function without a result, of the arguments named in order.

    All indices and strides count floats, not bytes.
    """

    def __init__(self, name: str, **arguments: Argument) -> None:
        self._module = ir.Module(name)
        signature = ir.FunctionType(ir.VoidType(), [kind.value for kind in arguments.values()])
        self._function = ir.Function(self._module, signature, name)
        self._arguments = dict(zip(arguments, self._function.args, strict=True))
        self._entry = self._function.append_basic_block("entry")
        self._build = ir.IRBuilder(self._function.append_basic_block("body"))

    def __getitem__(self, name: str) -> Value:
        """The argument of that name."""
        return self._arguments[name]

    def compile(self) -> Kernel:
        """Close the function and make it callable."""
        self._build.ret_void()
        body = self._function.blocks[1]
        ir.IRBuilder(self._entry).branch(body)
        return compiled(self._module.name, str(self._module), tuple(self._arguments))

    # Control flow

    @contextmanager
    def loop(
        self, stop: Value | int, start: Value | int = 0, step: Value | int = 1
    ) -> Iterator[Value]:
        """Repeat what is emitted inside for start, start + step, ... below stop."""
        build = self._build
        start, stop = self.index(start), self.index(stop)
        before = build.block
        body = self._function.append_basic_block("loop")
        after = self._function.append_basic_block("after")
        build.cbranch(build.icmp_signed("<", start, stop), body, after)
        build.position_at_end(body)
        counter = build.phi(_INDEX)
        counter.add_incoming(start, before)
        yield counter
        following = build.add(counter, self.index(step))
        counter.add_incoming(following, build.block)
        build.cbranch(build.icmp_signed("<", following, stop), body, after)
        build.position_at_end(after)

    @contextmanager
    def claims(self, counter: Value, stop: Value) -> Iterator[Value]:
        """Repeat what is emitted inside for numbers below stop that nobody else has claimed.

        All threads that run the kernel share the counter, which starts at zero.
        """
        build = self._build
        head, body, after = (
            self._function.append_basic_block(name) for name in ("claim", "claimed", "unclaimed")
        )
        build.branch(head)
        build.position_at_end(head)
        number = build.atomic_rmw("add", counter, self.index(1), "monotonic")
        build.cbranch(build.icmp_signed("<", number, stop), body, after)
        build.position_at_end(body)
        yield number
        build.branch(head)
        build.position_at_end(after)

    def part(self, number: Value, size: Value, stop: Value) -> AbstractContextManager[Value]:
        """Repeat what is emitted inside for the indices of one of the parts of 0 ... stop."""
        first = self.times(number, size)
        return self.loop(self.smaller(self.plus(first, size), stop), first)

    @contextmanager
    def when(self, left: Value, relation: str, right: Value | int) -> Iterator[None]:
        """Do what is emitted inside only where the two indices are so related."""
        build = self._build
        with build.if_then(build.icmp_signed(relation, left, self.index(right))):
            yield

    def call(self, address: Value, arguments: Sequence[Value]) -> None:
        """Call another kernel by its address."""
        signature = ir.FunctionType(ir.VoidType(), [value.type for value in arguments])
        target = self._build.inttoptr(address, signature.as_pointer())
        self._build.call(target, arguments)

    # Indices

    def index(self, value: Value | int) -> Value:
        """An int as a constant of the kernel; anything else as it is."""
        return ir.Constant(_INDEX, value) if isinstance(value, int) else value

    def plus(self, left: Value, right: Value | int) -> Value:
        """The sum of two indices."""
        return self._build.add(left, self.index(right))

    def minus(self, left: Value, right: Value | int) -> Value:
        """The difference of two indices."""
        return self._build.sub(left, self.index(right))

    def times(self, left: Value, right: Value | int) -> Value:
        """The product of two indices."""
        return self._build.mul(left, self.index(right))

    def quotient(self, left: Value, right: Value | int) -> Value:
        """The quotient of two indices, neither negative, rounded down."""
        return self._build.udiv(left, self.index(right))

    def smaller(self, left: Value | int, right: Value | int) -> Value:
        """The smaller of two indices."""
        left, right = self.index(left), self.index(right)
        return self._build.select(self._build.icmp_signed("<", left, right), left, right)

    def chosen(self, left: Value, relation: str, right: Value, yes: Value, no: Value) -> Value:
        """One of two indices or addresses, by how two indices are related."""
        return self._build.select(self._build.icmp_signed(relation, left, right), yes, no)

    def index_at(self, indices: Value, position: Value) -> Value:
        """The index stored at a position of an array of indices."""
        return self._build.load(self._build.gep(indices, [position]))

    # Memory

    def at(self, floats: Value, index: Value | int) -> Value:
        """The address of an element."""
        return self._build.gep(floats, [self.index(index)])

    def load(self, address: Value) -> Value:
        """16 floats from any address."""
        value = self._build.load(self._build.bitcast(address, _VECTOR.as_pointer()))
        value.align = FLOAT_BYTES
        return value

    def store(self, vector: Value, address: Value) -> None:
        """16 floats to any address."""
        target = self._build.bitcast(address, _VECTOR.as_pointer())
        self._build.store(vector, target, align=FLOAT_BYTES)

    def stream(self, vector: Value, address: Value) -> None:
        """16 floats to a cache line, past the caches: for what is next read much later."""
        target = self._build.bitcast(address, _VECTOR.as_pointer())
        stored = self._build.store(vector, target, align=VECTOR_BYTES)
        one = self._module.add_metadata([ir.Constant(_INT32, 1)])
        stored.set_metadata("nontemporal", one)

    def store_lanes(self, vector: Value, address: Value, start: Value, stop: Value) -> None:
        """Lanes from ``start`` up to but not including ``stop``; either may be out of range."""
        build = self._build
        mask = build.and_(self._below(stop), build.not_(self._below(start)))
        pointer = _VECTOR.as_pointer()
        store = self._intrinsic(
            f"llvm.masked.store.v{LANES}f32.p0",
            ir.FunctionType(ir.VoidType(), [_VECTOR, pointer, _INT32, _MASK]),
        )
        alignment = ir.Constant(_INT32, FLOAT_BYTES)
        build.call(store, [vector, build.bitcast(address, pointer), alignment, mask])

    def prefetch(self, address: Value, near: bool, written: bool = False) -> None:
        """Ask for a cache line that will be read, or written: soon (nearest cache), or later."""
        byte = ir.IntType(8).as_pointer()
        signature = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
        locality = 3 if near else 2
        use, keep, data = (ir.Constant(_INT32, value) for value in (int(written), locality, 1))
        target = self._build.bitcast(address, byte)
        self._build.call(self._intrinsic("llvm.prefetch.p0", signature), [target, use, keep, data])

    def copy_float(self, source: Value, target: Value) -> None:
        """One float from one address to another."""
        self._build.store(self._build.load(source), target)

    # Arithmetic of vectors

    def constant(self, value: float) -> Value:
        """16 times one number."""
        return ir.Constant(_VECTOR, [value] * LANES)

    def broadcast(self, address: Value) -> Value:
        """16 times the float at an address."""
        return self._splat(self._build.load(address))

    def add(self, left: Value, right: Value) -> Value:
        """The sum, lane by lane."""
        return self._build.fadd(left, right, flags=_FLAGS)

    def subtract(self, left: Value, right: Value) -> Value:
        """The difference, lane by lane."""
        return self._build.fsub(left, right, flags=_FLAGS)

    def multiply(self, left: Value, right: Value) -> Value:
        """The product, lane by lane."""
        return self._build.fmul(left, right, flags=_FLAGS)

    def scale(self, value: Value, factor: float) -> Value:
        """The product with one number."""
        return self.multiply(value, self.constant(factor))

    def negate(self, value: Value) -> Value:
        """The negative, lane by lane."""
        return self._build.fneg(value)

    def multiply_add(self, left: Value, right: Value, addend: Value) -> Value:
        """``left * right + addend``, fused where the processor can."""
        signature = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        intrinsic = self._intrinsic(f"llvm.fmuladd.v{LANES}f32", signature)
        return self._build.call(intrinsic, [left, right, addend])

    # Pairs of bfloat16 (AVX512_BF16): 16 of them, as the floats that have their bits

    def pairs(self, firsts: Value, seconds: Value) -> Value:
        """Two vectors as pairs, rounded to nearest, ties to even; a denormal becomes zero."""
        halves = ir.VectorType(ir.IntType(16), 2 * LANES)
        convert = self._intrinsic(
            "llvm.x86.avx512bf16.cvtne2ps2bf16.512", ir.FunctionType(halves, [_VECTOR, _VECTOR])
        )
        rounded = self._build.call(convert, [seconds, firsts])  # the last operand comes first
        lanes = [lane for i in range(LANES) for lane in (i, i + LANES)]
        return self._build.bitcast(self._shuffle(rounded, rounded, lanes), _VECTOR)

    def firsts_of_pairs(self, pairs: Value) -> Value:
        """The first of each pair."""
        return self._bits("shl", pairs, 16)

    def seconds_of_pairs(self, pairs: Value) -> Value:
        """The second of each pair."""
        return self._bits("and_", pairs, 0xFFFF0000)

    def negate_seconds(self, pairs: Value) -> Value:
        """Pairs with the sign of the second turned."""
        return self._bits("xor", pairs, 0x80000000)

    def swap_pairs(self, pairs: Value) -> Value:
        """Pairs the other way around."""
        up, down = (
            self._build.bitcast(self._bits(shift, pairs, 16), _INT32S) for shift in ("shl", "lshr")
        )
        return self._build.bitcast(self._build.or_(up, down), _VECTOR)

    def multiply_add_pairs(self, left: Value, right: Value, addend: Value) -> Value:
        """``addend`` and the products of the firsts and of the seconds, summed in float32."""
        signature = ir.FunctionType(_VECTOR, [_VECTOR, _INT32S, _INT32S])
        multiply = self._intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", signature)
        pairs = [self._build.bitcast(value, _INT32S) for value in (left, right)]
        return self._build.call(multiply, [addend, *pairs])

    def at_least(self, value: Value, floor: Value) -> Value:
        """The larger of the two, lane by lane; NaN where the value is NaN."""
        below = self._build.fcmp_ordered("<", value, floor)
        return self._build.select(below, floor, value)

    def larger(self, left: Value, right: Value) -> Value:
        """The larger of the two, lane by lane; NaN where either is."""
        keep = self._build.or_(
            self._build.fcmp_ordered(">=", left, right),
            self._build.fcmp_unordered("uno", left, left),
        )
        return self._build.select(keep, left, right)

    def variable(self, value: Value) -> Variable:
        """A vector or an index that a loop changes."""
        return Variable(self._build, ir.IRBuilder(self._entry).alloca(value.type), value)

    # Between lanes

    def first(self, vector: Value, count: Value) -> Value:
        """The first ``count`` lanes, and zeros."""
        return self._build.select(self._below(count), vector, self.constant(0.0))

    def gather_quads(self, addresses: Sequence[Value]) -> Value:
        """Four floats from each of four addresses, side by side."""
        parts = []
        for address in addresses:
            part = self._build.load(self._build.bitcast(address, _QUAD.as_pointer()))
            part.align = FLOAT_BYTES
            parts.append(part)
        low, high = (self._shuffle(a, b, list(range(8))) for a, b in (parts[:2], parts[2:]))
        return self._shuffle(low, high, list(range(LANES)))

    def gather(self, addresses: Sequence[Value]) -> Value:
        """One float from each of 16 addresses."""
        vector: Value = ir.Constant(_VECTOR, ir.Undefined)
        for lane, address in enumerate(addresses):
            element = self._build.load(address)
            vector = self._build.insert_element(vector, element, ir.Constant(_INT32, lane))
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

    def _bits(self, operation: str, vector: Value, operand: int) -> Value:
        """An operation on the bits of each lane."""
        bits = self._build.bitcast(vector, _INT32S)
        operands = ir.Constant(_INT32S, [operand] * LANES)
        return self._build.bitcast(getattr(self._build, operation)(bits, operands), _VECTOR)

    def _below(self, count: Value) -> Value:
        """Which lanes have numbers below an index."""
        lanes = ir.Constant(_INT32S, list(range(LANES)))
        limit = self._splat(self._build.trunc(count, _INT32))
        return self._build.icmp_signed("<", lanes, limit)

    def _by_quads(self, left: Value, right: Value, pick: list[int]) -> Value:
        """The same choice of lanes within every quarter of two vectors."""
        return self._shuffle(left, right, [i + quad for quad in range(0, LANES, 4) for i in pick])

    def _shuffle(self, left: Value, right: Value, lanes: list[int]) -> Value:
        mask = ir.Constant(ir.VectorType(_INT32, len(lanes)), lanes)
        return self._build.shuffle_vector(left, right, mask)

    def _splat(self, scalar: Value) -> Value:
        undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
        first = self._build.insert_element(undefined, scalar, ir.Constant(_INT32, 0))
        return self._shuffle(first, undefined, [0] * LANES)

    def _intrinsic(self, name: str, signature: ir.FunctionType) -> Value:
        known = self._module.globals.get(name)
        return known or ir.Function(self._module, signature, name)


class Variable:
    """A vector or index that changes as a loop runs; the optimiser keeps it in a register."""

    def __init__(self, build: Value, address: Value, value: Value) -> None:
        self._build, self._address = build, address
        self.set(value)

    def get(self) -> Value:
        """The current value."""
        return self._build.load(self._address)

    def set(self, value: Value) -> None:
        """Change it."""
        self._build.store(value, self._address)
