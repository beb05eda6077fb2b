"""Straight-line programs: additions and multiplications by constants, as data.

A codelet says how many operations it takes, and can be carried out on anything that has the
arithmetic: numbers, or the vectors of a kernel being generated. What no output needs is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias


class Arithmetic(Protocol):
    """What a codelet needs of the values it works on."""

    def constant(self, value: float) -> Any:
        """A number."""

    def add(self, left: Any, right: Any) -> Any:
        """The sum."""

    def subtract(self, left: Any, right: Any) -> Any:
        """The difference."""

    def scale(self, value: Any, factor: float) -> Any:
        """The product with a number."""

    def negate(self, value: Any) -> Any:
        """The negative."""


class Instruction(NamedTuple):
    """One step; operands are numbers of earlier steps, or of inputs."""

    kind: Literal["input", "add", "subtract", "scale"]
    left: int
    right: int
    factor: float


class Term(NamedTuple):
    """A step's result, or its negative. None stands for zero."""

    step: int
    negative: bool = False


Real: TypeAlias = Term | None
Complex: TypeAlias = tuple[Real, Real]


@dataclass(frozen=True)
class Codelet:
    """A straight-line program.

    Attributes:
        steps: in an order in which they can be carried out.
        outputs: what is wanted, in the order of the transform's own outputs.
    """

    steps: tuple[Instruction, ...]
    outputs: tuple[Real, ...]

    def first(self, outputs: int) -> Codelet:
        """The same without the outputs from a number on, and what only they need; made once."""
        if outputs not in self._first:
            self._first[outputs] = Codelet(self.steps, self.outputs[:outputs])
        return self._first[outputs]

    @cached_property
    def _first(self) -> dict[int, Codelet]:
        return {}

    @cached_property
    def flops(self) -> int:
        """Additions and multiplications."""
        used = self._used()
        return sum(used[i] and step.kind != "input" for i, step in enumerate(self.steps))

    def evaluate(
        self,
        arithmetic: Arithmetic,
        read: Callable[[int], Any],
        write: Callable[[int, Any], None],
    ) -> None:
        """Carry it out.

        Args:
            arithmetic: of the values.
            read: gives the input of a number, when it is first needed.
            write: takes the output of a number, once it and those before it are known. All
                inputs have been read before the first output is written.
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
    """Collects steps; the same step is never taken twice, and signs are never computed."""

    def __init__(self) -> None:
        self._steps: dict[Instruction, int] = {}

    def codelet(self, outputs: Sequence[Real]) -> Codelet:
        """All that has been collected."""
        return Codelet(tuple(self._steps), tuple(outputs))

    def input(self, number: int) -> Real:
        """The input of that number."""
        return self._step(Instruction("input", number, 0, 0.0))

    def add(self, left: Real, right: Real) -> Real:
        """The sum."""
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
        """The difference."""
        return self.add(left, negative(right))

    def scale(self, value: Real, factor: float) -> Real:
        """The product with a number."""
        if value is None or math.isclose(factor, 0, abs_tol=1e-12):
            return None
        if factor < 0:
            return negative(self.scale(value, -factor))
        if math.isclose(factor, 1):
            return value
        scaled = self._step(Instruction("scale", value.step, 0, factor))
        return negative(scaled) if value.negative else scaled

    def plus(self, left: Complex, right: Complex) -> Complex:
        """The sum of complex values."""
        return self.add(left[0], right[0]), self.add(left[1], right[1])

    def minus(self, left: Complex, right: Complex) -> Complex:
        """The difference of complex values."""
        return self.subtract(left[0], right[0]), self.subtract(left[1], right[1])

    def times(self, value: Complex, factor: complex) -> Complex:
        """The product with a complex number."""
        real, imaginary = value
        return (
            self.subtract(self.scale(real, factor.real), self.scale(imaginary, factor.imag)),
            self.add(self.scale(real, factor.imag), self.scale(imaginary, factor.real)),
        )

    def _step(self, instruction: Instruction) -> Term:
        return Term(self._steps.setdefault(instruction, len(self._steps)))


def negative(term: Real) -> Real:
    """The negative of a term."""
    return None if term is None else Term(term.step, not term.negative)
