"""Straight-line programs: additions and multiplications by constants, as data.

A codelet counts its operations and runs on any values that have the arithmetic. These may be
numbers, or the vectors of a kernel that is being generated. Steps that no output needs are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias


class Arithmetic(Protocol):
    """The arithmetic that a codelet needs on its values."""

    def constant(self, value: float) -> Any:
        """Return a value that equals a number."""

    def add(self, left: Any, right: Any) -> Any:
        """Return the sum."""

    def subtract(self, left: Any, right: Any) -> Any:
        """Return the difference."""

    def scale(self, value: Any, factor: float) -> Any:
        """Return the product with a number."""

    def negate(self, value: Any) -> Any:
        """Return the negative."""


class Instruction(NamedTuple):
    """One step; operands are the numbers of earlier steps, or of an input."""

    kind: Literal["input", "add", "subtract", "scale"]
    left: int
    right: int
    factor: float


class Term(NamedTuple):
    """The result of a step, or its negative. None in place of a term stands for zero."""

    step: int
    negative: bool = False


Real: TypeAlias = Term | None
Complex: TypeAlias = tuple[Real, Real]


@dataclass(frozen=True)
class Codelet:
    """A straight-line program.

    Attributes:
        steps: steps in an order in which they can be carried out.
        outputs: results, in the order of the transform's own outputs.
    """

    steps: tuple[Instruction, ...]
    outputs: tuple[Real, ...]

    def first(self, outputs: int) -> Codelet:
        """Return the codelet for the first outputs only; the result is cached.

        Steps that only the dropped outputs need are not counted or carried out.
        """
        if outputs not in self._first:
            self._first[outputs] = Codelet(self.steps, self.outputs[:outputs])
        return self._first[outputs]

    @cached_property
    def _first(self) -> dict[int, Codelet]:
        return {}

    @cached_property
    def flops(self) -> int:
        """Number of additions and multiplications."""
        used = self._used()
        return sum(used[i] and step.kind != "input" for i, step in enumerate(self.steps))

    def evaluate(
        self, arithmetic: Arithmetic, read: Callable[[int], Any], write: Callable[[int, Any], None]
    ) -> None:
        """Carry out the program.

        Args:
            arithmetic: operations on the values.
            read: function from an input's number to its value, called when first needed.
            write: function that takes an output's number and value, in the order of the numbers.
                All inputs have been read before the first output is written.
        """
        used = self._used()
        values: dict[int, Any] = {}
        for number, (kind, left, right, factor) in enumerate(self.steps):
            if not used[number]:
                continue
            if kind == "input":
                values[number] = read(left)
            elif kind == "scale":
                values[number] = arithmetic.scale(values[left], factor)
            else:
                operate = arithmetic.add if kind == "add" else arithmetic.subtract
                values[number] = operate(values[left], values[right])
        for number, term in enumerate(self.outputs):
            if term is None:
                write(number, arithmetic.constant(0.0))
            else:
                value = values[term.step]
                write(number, arithmetic.negate(value) if term.negative else value)

    def _used(self) -> list[bool]:
        used = [False] * len(self.steps)
        for term in self.outputs:
            if term is not None:
                used[term.step] = True
        for number in range(len(self.steps) - 1, -1, -1):
            kind, left, right, _ = self.steps[number]
            if used[number] and kind != "input":
                used[left] = True
                if kind != "scale":
                    used[right] = True
        return used


class Program:
    """A collector of steps that never repeats a step and never computes a sign."""

    def __init__(self) -> None:
        self._steps: dict[Instruction, int] = {}

    def codelet(self, outputs: Sequence[Real]) -> Codelet:
        """Return all collected steps as a codelet with these outputs."""
        return Codelet(tuple(self._steps), tuple(outputs))

    def input(self, number: int) -> Real:
        """Return the input of that number."""
        return self._step(Instruction("input", number, 0, 0.0))

    def add(self, left: Real, right: Real) -> Real:
        """Return the sum."""
        if left is None or right is None:
            return right if left is None else left
        if left.negative and right.negative:
            return negative(self.add(negative(left), negative(right)))
        if left.negative:
            left, right = right, left
        kind: Literal["add", "subtract"] = "subtract" if right.negative else "add"
        if kind == "add" and left.step > right.step:
            left, right = right, left
        return self._step(Instruction(kind, left.step, right.step, 0.0))

    def subtract(self, left: Real, right: Real) -> Real:
        """Return the difference."""
        return self.add(left, negative(right))

    def scale(self, value: Real, factor: float) -> Real:
        """Return the product with a number."""
        if value is None or math.isclose(factor, 0, abs_tol=1e-12):
            return None
        if factor < 0:
            return negative(self.scale(value, -factor))
        if math.isclose(factor, 1):
            return value
        scaled = self._step(Instruction("scale", value.step, 0, factor))
        return negative(scaled) if value.negative else scaled

    def plus(self, left: Complex, right: Complex) -> Complex:
        """Return the sum of complex values."""
        return self.add(left[0], right[0]), self.add(left[1], right[1])

    def minus(self, left: Complex, right: Complex) -> Complex:
        """Return the difference of complex values."""
        return self.subtract(left[0], right[0]), self.subtract(left[1], right[1])

    def times(self, value: Complex, factor: complex) -> Complex:
        """Return the product with a complex number."""
        real, imaginary = value
        return (
            self.subtract(self.scale(real, factor.real), self.scale(imaginary, factor.imag)),
            self.add(self.scale(real, factor.imag), self.scale(imaginary, factor.real)),
        )

    def _step(self, instruction: Instruction) -> Term:
        return Term(self._steps.setdefault(instruction, len(self._steps)))


def negative(term: Real) -> Real:
    """Return the negative of a term."""
    return None if term is None else Term(term.step, not term.negative)
