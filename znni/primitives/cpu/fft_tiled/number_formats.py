"""Formats for the numbers of spectra, and the products of two such numbers.

A number holds the values of 16 maps at one frequency. Between the passes of a transform it is two
vectors of float32. In spectra it has a format. The format decides the accuracy of the layer, the
memory of the spectra, and the multiply-adds of their products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from znni.machine.machine import Device
from znni.machine.processor import PAIRS_PER_CYCLE
from znni.primitives.cpu.common.machine_code import has_wide_registers
from znni.primitives.cpu.common.simd import LANES, Emitter, Value
from znni.primitives.cpu.common.vector_code import NUMBER

__all__ = ["BFLOAT16", "FLOAT32", "NUMBER", "NumberFormat"]


class NumberFormat(ABC):
    """A format of spectra.

    A product consists of several sums. Sum j multiplies part ``row_parts[j]`` of an input map's
    number, broadcast to all lanes, by part j of a kernel's number.

    Attributes:
        suffix: suffix of the names of kernels and primitives.
        floats: size of a number, in floats of 4 bytes.
        row_parts: part of the input map's number that each sum takes.
        efficiencies: shares of a core's nominal operations per second that forward transforms,
            products and inverse transforms sustain on Zen 4.
    """

    suffix: ClassVar[str]
    floats: ClassVar[int]
    row_parts: ClassVar[tuple[int, ...]]
    efficiencies: ClassVar[tuple[float, float, float]]

    def __repr__(self) -> str:
        """Return the name of the format; a format has no other state."""
        return type(self).__name__

    @property
    @abstractmethod
    def blocks(self) -> dict[int, int]:
        """Rows of a block, by its groups of 16 output maps; registers hold a block's sums."""

    @property
    def products(self) -> int:
        """Number of multiply-adds in a complex one, which is the number of sums."""
        return len(self.row_parts)

    @property
    def parts(self) -> int:
        """Number of vectors that the product's rows hold for a number."""
        return max(self.row_parts) + 1

    def efficiencies_on(self, device: Device) -> tuple[float, float, float]:
        """Return the efficiencies on another processor."""
        del device  # its nominal operations already give its rate of float32
        return self.efficiencies

    @abstractmethod
    def reader(
        self, emit: Emitter, numbers: Sequence[Value], ahead: Value | None
    ) -> Callable[[int], Value]:
        """Return a loader of parts of the numbers at some addresses.

        The parts are numbered real 0, imaginary 0, real 1, and so on. If ``ahead`` is given, the
        loader also prefetches that many floats ahead.
        """

    @abstractmethod
    def writer(
        self, emit: Emitter, numbers: Sequence[Value], streaming: bool
    ) -> Callable[[int, Value], None]:
        """Return a function that stores parts of numbers at some addresses, called in order.

        With ``streaming``, the stores go past the caches.
        """

    @abstractmethod
    def row_vectors(self, emit: Emitter, number: Value) -> Iterator[Value]:
        """Yield the parts of an input map's number that a product takes, each when needed."""

    @abstractmethod
    def kernel_vectors(self, emit: Emitter, number: Value) -> Sequence[Value]:
        """Return the parts of a kernel's number that a product takes, one for each sum."""

    @abstractmethod
    def multiply_add(self, emit: Emitter, value: Value, kernel: Value, total: Value) -> Value:
        """Return a sum with one more term."""

    @abstractmethod
    def put_sums(self, emit: Emitter, sums: Sequence[Value], number: Value) -> None:
        """Store the number that a product's sums give."""


class Float32Format(NumberFormat):
    """Two vectors of float32, multiplied by three real products (Gauss, as in TAOCP 4.6.4).

        re = (a + b) c - b (c + d),   im = (a + b) c + a (d - c)   for (a + ib)(c + id)

    The sums of a and b, and of c and d, are formed once per row and per kernel. That saves a
    quarter of the multiply-adds. The error stays of the order of float32's, relative to the
    layer's output.
    """

    suffix = ""
    floats = NUMBER
    row_parts = (0, 1, 2)
    efficiencies = (0.31, 0.66, 0.19)

    @property
    def blocks(self) -> dict[int, int]:
        """As many rows as the processor's registers hold sums for."""
        return {1: 8, 2: 4} if has_wide_registers() else {1: 2}

    def reader(
        self, emit: Emitter, numbers: Sequence[Value], ahead: Value | None
    ) -> Callable[[int], Value]:
        """Return a loader of a vector, which is a cache line, for each part."""

        def read(part: int) -> Value:
            address = emit.at(numbers[part // 2], part % 2 * LANES)
            if ahead is not None:
                emit.prefetch(emit.at(address, ahead), near=True)
            return emit.load(address)

        return read

    def writer(
        self, emit: Emitter, numbers: Sequence[Value], streaming: bool
    ) -> Callable[[int, Value], None]:
        """Return a function that stores a vector for each part."""
        put = emit.stream if streaming else emit.store
        return lambda part, value: put(value, emit.at(numbers[part // 2], part % 2 * LANES))

    def row_vectors(self, emit: Emitter, number: Value) -> Iterator[Value]:
        """Yield the parts a, b and a + b."""
        real, imaginary = self._load(emit, number)
        yield from (real, imaginary)
        yield emit.add(real, imaginary)

    def kernel_vectors(self, emit: Emitter, number: Value) -> Sequence[Value]:
        """Return the parts d - c, c + d and c."""
        real, imaginary = self._load(emit, number)
        return emit.subtract(imaginary, real), emit.add(real, imaginary), real

    def multiply_add(self, emit: Emitter, value: Value, kernel: Value, total: Value) -> Value:
        """Add one real product."""
        return emit.multiply_add(value, kernel, total)

    def put_sums(self, emit: Emitter, sums: Sequence[Value], number: Value) -> None:
        """Store the two combinations of the three sums."""
        with_d_minus_c, with_c_plus_d, common = sums
        emit.store(emit.subtract(common, with_c_plus_d), number)
        emit.store(emit.add(common, with_d_minus_c), emit.at(number, LANES))

    def _load(self, emit: Emitter, number: Value) -> tuple[Value, Value]:
        return emit.load(number), emit.load(emit.at(number, LANES))


class Bfloat16Format(NumberFormat):
    """One vector of (real, imaginary) pairs of bfloat16, multiplied and added in float32.

    One instruction multiplies pairs and adds both products. So a complex multiply-add takes two:
    with (c, -d) for the real part, and with (d, c) for the imaginary part.
    """

    suffix = "_bfloat16"
    floats = LANES
    row_parts = (0, 0)
    efficiencies = (0.3, 0.69, 0.23)

    def efficiencies_on(self, device: Device) -> tuple[float, float, float]:
        """Return efficiencies for which products follow the processor's rate for pairs."""
        forward, product, inverse = self.efficiencies
        return forward, product * device.pairs_per_cycle / PAIRS_PER_CYCLE, inverse

    @property
    def blocks(self) -> dict[int, int]:
        """Rows with enough sums to hide the instruction's latency."""
        return {1: 8, 2: 4}

    def reader(
        self, emit: Emitter, numbers: Sequence[Value], ahead: Value | None
    ) -> Callable[[int], Value]:
        """Return a loader of one half of each pair; both halves are in one cache line."""

        def read(part: int) -> Value:
            number = numbers[part // 2]
            if ahead is not None and part % 2 == 0:
                emit.prefetch(emit.at(number, ahead), near=True)
            pairs = emit.load(number)
            return emit.seconds_of_pairs(pairs) if part % 2 else emit.firsts_of_pairs(pairs)

        return read

    def writer(
        self, emit: Emitter, numbers: Sequence[Value], streaming: bool
    ) -> Callable[[int, Value], None]:
        """Return a function that stores the pairs of a number when both parts are known."""
        put = emit.stream if streaming else emit.store
        firsts: list[Value] = []

        def write(part: int, value: Value) -> None:
            if part % 2:
                put(emit.pairs(firsts.pop(), value), numbers[part // 2])
            else:
                firsts.append(value)

        return write

    def row_vectors(self, emit: Emitter, number: Value) -> Iterator[Value]:
        """Yield the pairs unchanged."""
        yield emit.load(number)

    def kernel_vectors(self, emit: Emitter, number: Value) -> Sequence[Value]:
        """Return the parts (c, -d) and (d, c)."""
        pairs = emit.load(number)
        return emit.negate_seconds(pairs), emit.swap_pairs(pairs)

    def multiply_add(self, emit: Emitter, value: Value, kernel: Value, total: Value) -> Value:
        """Add the products of both halves."""
        return emit.multiply_add_pairs(value, kernel, total)

    def put_sums(self, emit: Emitter, sums: Sequence[Value], number: Value) -> None:
        """Store the two sums, which are the real and the imaginary parts."""
        real, imaginary = sums
        emit.store(emit.pairs(real, imaginary), number)


FLOAT32 = Float32Format()
BFLOAT16 = Bfloat16Format()
