"""Convolutions of a few samples with the fewest multiplications, along one axis.

Samples and taps are evaluated as polynomials at a few points. Products at the points are the values
of the product polynomial, from which the outputs follow (Toom and Cook; Winograd, "Arithmetic
complexity of computations", 1980). Lavin and Gray ("Fast algorithms for convolutional neural
networks", 2016) brought it to layers; Jia and others (PPoPP 2018) to three dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from znni.primitives.common.codelets import Codelet, Program, Real

# Points other than infinity, in pairs that differ by sign after zero. With integers in their place,
# such as 1 and 2, the errors of a layer are seven to ten times as large.
POINTS = (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2))

# Largest kernel that leaves two outputs.
MOST_TAPS = len(POINTS)


@dataclass(frozen=True)
class MinimalFiltering:
    """An algorithm for some outputs of a valid cross-correlation.

    Attributes:
        taps: taps of the kernel.
        outputs: outputs computed together.
    """

    taps: int
    outputs: int

    @property
    def length(self) -> int:
        """Samples that the outputs see, and products that are made of them."""
        return self.outputs + self.taps - 1

    @property
    def samples(self) -> Codelet:
        """The transform of ``length`` samples."""
        return _samples(self.points) if self.taps > 1 else _identity(self.length)

    @property
    def results(self) -> Codelet:
        """The transform of ``length`` products into the outputs."""
        return _results(self.points, self.outputs) if self.taps > 1 else _identity(self.length)

    @property
    def points(self) -> tuple[Fraction, ...]:
        """The points other than infinity."""
        return POINTS[: self.length - 1]

    def kernel_matrix(self) -> NDArray[np.float64]:
        """Return the matrix (length, taps) that transforms a kernel."""
        if self.taps == 1:
            return np.ones((self.length, 1))
        rows = [
            [point**tap / prod(point - other for other in self.points if other != point)
             for tap in range(self.taps)]
            for point in self.points
        ]  # fmt: skip
        rows.append([Fraction(tap == self.taps - 1) for tap in range(self.taps)])
        return np.array(rows, np.float64)


def minimal_filtering(taps: int) -> MinimalFiltering:
    """Return the algorithm for a kernel along one axis, of up to ``MOST_TAPS`` taps."""
    if taps == 1:
        return MinimalFiltering(1, 1)
    # Five outputs of two taps would have errors that are twice as large as four of three taps.
    return MinimalFiltering(taps, 3 if taps == 2 else len(POINTS) + 2 - taps)


@cache
def _identity(length: int) -> Codelet:
    program = Program()
    return program.codelet([program.input(i) for i in range(length)])


@cache
def _samples(points: tuple[Fraction, ...]) -> Codelet:
    """Return the transform that weighs samples, for each point, by a polynomial.

    The roots of the polynomial are all other points.
    """
    program = Program()
    x = [program.input(i) for i in range(len(points) + 1)]
    outputs = [_sum(program, _polynomial(points[1:]), x)]
    for i in range(1, len(points), 2):
        factors = _polynomial([point for point in points if point != points[i]])
        even = _sum(program, factors[::2], x[::2])
        odd = _sum(program, factors[1::2], x[1::2])
        outputs += [program.add(even, odd), program.subtract(even, odd)]
    outputs.append(_sum(program, _polynomial(points), x))
    return program.codelet(outputs)


@cache
def _results(points: tuple[Fraction, ...], outputs: int) -> Codelet:
    """Return the transform of products: the sums of their products with powers of the points."""
    program = Program()
    products = [program.input(i) for i in range(len(points) + 1)]
    pairs = [
        (program.add(left, right), program.subtract(left, right))
        for left, right in zip(products[1:-1:2], products[2:-1:2], strict=True)
    ]
    made: list[Real] = []
    for power in range(outputs):
        factors = [point**power for point in points[1::2]]
        total = _sum(program, factors, [pair[power % 2] for pair in pairs])
        if power == 0:
            total = program.add(products[0], total)
        if power == outputs - 1:
            total = program.add(total, products[-1])
        made.append(total)
    return program.codelet(made)


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the product of (x - root), the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        raised, scaled = [Fraction(0), *found], [*(root * each for each in found), Fraction(0)]
        found = [up - down for up, down in zip(raised, scaled, strict=True)]
    return found


def _sum(program: Program, factors: Sequence[Fraction], values: Sequence[Real]) -> Real:
    """Return the sum of values times factors, those with the factor 1 first."""
    total: Real = None
    for factor, value in sorted(
        zip(factors, values, strict=False), key=lambda term: abs(term[0]) != 1
    ):
        total = program.add(total, program.scale(value, float(factor)))
    return total
