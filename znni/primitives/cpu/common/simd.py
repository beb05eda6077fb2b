"""A generator of LLVM IR for kernels on vectors of 16 floats, with plain loops.

A kernel is written once for vectors of 16 floats. LLVM splits them for narrower registers (two on
AVX2, four on NEON). Strides and counts are arguments, so that one compiled kernel serves every
array shape. Only numbers that shape the code itself, such as a transform's length, are fixed in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

from llvmlite import ir

from znni.primitives.cpu.common.machine_code import Kernel, compiled, is_x86
from znni.primitives.cpu.common.vector_code import (
    FLOAT,
    FLOAT_BYTES,
    INT32,
    LANES,
    VECTOR,
    Value,
    VectorCode,
    shared_constant,
)

__all__ = ["FLOAT_BYTES", "LANES", "Argument", "Emitter", "Value", "Variable", "whole_vectors"]

VECTOR_BYTES = LANES * FLOAT_BYTES

# Number of looks at a counter before a waiting thread first yields the processor. They take some
# hundred nanoseconds, in which a thread that is nearly done finishes.
LOOKS = 1000

_INDEX = ir.IntType(64)
_INDEX_BYTES = 8
_MASK = ir.VectorType(ir.IntType(1), LANES)


def whole_vectors(count: int) -> int:
    """Return a number of maps or floats, rounded up to whole vectors."""
    return -(-count // LANES) * LANES


class Argument(Enum):
    """Kinds of arguments that a kernel can take."""

    FLOATS = FLOAT.as_pointer()  # address of float32 numbers
    INDICES = _INDEX.as_pointer()  # address of int64 numbers
    INDEX = _INDEX  # int64 number, or address of another kernel


class Emitter(VectorCode):
    """An emitter of one kernel: a function without a result, with named arguments in order.

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
        """Return the argument of that name."""
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
        """Repeat the code emitted inside for start, start + step, ... below stop."""
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

    def part(self, number: Value, size: Value, stop: Value) -> AbstractContextManager[Value]:
        """Repeat the code emitted inside for the indices in one part of 0 ... stop - 1."""
        first = self.times(number, size)
        return self.loop(self.smaller(self.plus(first, size), stop), first)

    @contextmanager
    def when(self, left: Value, relation: str, right: Value | int) -> Iterator[None]:
        """Run the code emitted inside only if the relation between the two indices holds."""
        build = self._build
        with build.if_then(build.icmp_signed(relation, left, self.index(right))):
            yield

    def call(self, address: Value, arguments: Sequence[Value]) -> None:
        """Call another kernel by its address."""
        signature = ir.FunctionType(ir.VoidType(), [value.type for value in arguments])
        target = self._build.inttoptr(address, signature.as_pointer())
        self._build.call(target, arguments)

    # Between threads

    @contextmanager
    def claims(self, counter: Value, stop: Value) -> Iterator[Value]:
        """Repeat the code emitted inside for numbers below stop that no other thread has claimed.

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

    @contextmanager
    def until_set(self, flag: Value) -> Iterator[None]:
        """Repeat the code emitted inside until another thread has stored a number other than 0."""
        build = self._build
        head, body, after = (
            self._function.append_basic_block(name) for name in ("look", "again", "set")
        )
        build.branch(head)
        build.position_at_end(head)
        number = build.load_atomic(flag, "acquire", _INDEX_BYTES)
        build.cbranch(build.icmp_signed("==", number, self.index(0)), body, after)
        build.position_at_end(body)
        yield
        build.branch(head)
        build.position_at_end(after)

    def added(self, counter: Value, number: Value) -> Value:
        """Add to a counter, and return the number before. Loads that follow come after it."""
        return self._build.atomic_rmw("add", counter, number, "acq_rel")

    def announce(self, counter: Value, number: Value) -> None:
        """Add to a counter; a thread that sees it by ``wait_for`` sees all stores before it."""
        if is_x86():
            # On x86, streaming stores are unordered with all others, despite LLVM's own fences.
            fence = self.intrinsic("llvm.x86.sse.sfence", ir.FunctionType(ir.VoidType(), []))
            self._build.call(fence, [])
        self._build.atomic_rmw("add", counter, number, "release")

    def wait_for(self, counter: Value, least: Value, pause: Value) -> None:
        """Wait until a counter has reached a number.

        Args:
            counter: counter to which other threads add by ``announce``.
            least: number to wait for.
            pause: address of a function without arguments; after the first looks, it is called
                before each further one.
        """
        build = self._build
        look, again, after = (
            self._function.append_basic_block(name) for name in ("look", "again", "reached")
        )
        looks = self.variable(self.index(0))
        build.branch(look)
        build.position_at_end(look)
        number = build.load_atomic(counter, "acquire", _INDEX_BYTES)
        build.cbranch(build.icmp_signed("<", number, least), again, after)
        build.position_at_end(again)
        looks.set(self.plus(looks.get(), 1))
        with self.when(looks.get(), ">", LOOKS):
            self.call(pause, [])
        build.branch(look)
        build.position_at_end(after)

    # Indices

    def index(self, value: Value | int) -> Value:
        """Return an int as a constant of the kernel, or any other value unchanged."""
        return shared_constant(_INDEX, value) if isinstance(value, int) else value

    def plus(self, left: Value, right: Value | int) -> Value:
        """Return the sum of two indices."""
        return self._build.add(left, self.index(right))

    def minus(self, left: Value, right: Value | int) -> Value:
        """Return the difference of two indices."""
        return self._build.sub(left, self.index(right))

    def times(self, left: Value, right: Value | int) -> Value:
        """Return the product of two indices."""
        return self._build.mul(left, self.index(right))

    def quotient(self, left: Value, right: Value | int) -> Value:
        """Return the quotient of two indices, neither negative, rounded down."""
        return self._build.udiv(left, self.index(right))

    def smaller(self, left: Value | int, right: Value | int) -> Value:
        """Return the smaller of two indices."""
        left, right = self.index(left), self.index(right)
        return self._build.select(self._build.icmp_signed("<", left, right), left, right)

    def select(self, left: Value, relation: str, right: Value, yes: Value, no: Value) -> Value:
        """Return ``yes`` if the relation between two indices holds, else ``no``."""
        return self._build.select(self._build.icmp_signed(relation, left, right), yes, no)

    def as_argument(self, number: Value, kind: Argument) -> Value:
        """Return an index as an argument of a kind: itself, or the pointer to its address."""
        is_index = kind is Argument.INDEX
        return number if is_index else self._build.inttoptr(number, kind.value)

    def index_at(self, indices: Value, position: Value) -> Value:
        """Return the index stored at a position of an array of indices."""
        return self._build.load(self._build.gep(indices, [position]))

    # Memory

    def at(self, floats: Value, index: Value | int) -> Value:
        """Return the address of an element."""
        return self._build.gep(floats, [self.index(index)])

    def load(self, address: Value) -> Value:
        """Load 16 floats from any address."""
        value = self._build.load(self._build.bitcast(address, VECTOR.as_pointer()))
        value.align = FLOAT_BYTES
        return value

    def store(self, vector: Value, address: Value) -> None:
        """Store 16 floats at any address."""
        target = self._build.bitcast(address, VECTOR.as_pointer())
        self._build.store(vector, target, align=FLOAT_BYTES)

    def stream(self, vector: Value, address: Value) -> None:
        """Store 16 floats in a cache line, past the caches, for data that is read much later."""
        target = self._build.bitcast(address, VECTOR.as_pointer())
        stored = self._build.store(vector, target, align=VECTOR_BYTES)
        one = self._module.add_metadata([shared_constant(INT32, 1)])
        stored.set_metadata("nontemporal", one)

    def store_lanes(self, vector: Value, address: Value, start: Value, stop: Value) -> None:
        """Store lanes from ``start`` up to but not including ``stop``, even if out of range."""
        build, mask = self._build, self._between(start, stop)
        pointer = VECTOR.as_pointer()
        store = self.intrinsic(
            f"llvm.masked.store.v{LANES}f32.p0",
            ir.FunctionType(ir.VoidType(), [VECTOR, pointer, INT32, _MASK]),
        )
        alignment = shared_constant(INT32, FLOAT_BYTES)
        build.call(store, [vector, build.bitcast(address, pointer), alignment, mask])

    def load_lanes(self, address: Value, start: Value, stop: Value) -> Value:
        """Load lanes from ``start`` up to but not including ``stop``; the others are zero."""
        build, mask = self._build, self._between(start, stop)
        pointer = VECTOR.as_pointer()
        load = self.intrinsic(
            f"llvm.masked.load.v{LANES}f32.p0",
            ir.FunctionType(VECTOR, [pointer, INT32, _MASK, VECTOR]),
        )
        alignment, nothing = shared_constant(INT32, FLOAT_BYTES), self.constant(0.0)
        return build.call(load, [build.bitcast(address, pointer), alignment, mask, nothing])

    def _between(self, start: Value, stop: Value) -> Value:
        """Return a mask of the lanes from ``start`` up to but not including ``stop``."""
        return self._build.and_(self.below(stop), self._build.not_(self.below(start)))

    def prefetch(self, address: Value, near: bool, written: bool = False) -> None:
        """Prefetch a cache line to be read or written soon (nearest cache) or later."""
        byte = ir.IntType(8).as_pointer()
        signature = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
        locality = 3 if near else 2
        use, keep, data = (shared_constant(INT32, value) for value in (int(written), locality, 1))
        target = self._build.bitcast(address, byte)
        self._build.call(self.intrinsic("llvm.prefetch.p0", signature), [target, use, keep, data])

    def copy_float(self, source: Value, target: Value) -> None:
        """Copy one float from one address to another."""
        self._build.store(self._build.load(source), target)

    def variable(self, value: Value) -> Variable:
        """Return a variable for a vector or an index that a loop changes."""
        return Variable(self._build, ir.IRBuilder(self._entry).alloca(value.type), value)


class Variable:
    """A vector or index that a loop changes; the optimiser keeps it in a register."""

    def __init__(self, build: Value, address: Value, value: Value) -> None:
        self._build, self._address = build, address
        self.set(value)

    def get(self) -> Value:
        """Return the current value."""
        return self._build.load(self._address)

    def set(self, value: Value) -> None:
        """Set the value."""
        self._build.store(value, self._address)
