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
from functools import cache, cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from znni.primitives.common.codelets import Codelet, Program, Real

# Points other than infinity, by their number: pairs that differ by sign, and zero if it is odd.
# With integers in their place, such as 1 and 2, the errors of a layer are seven to ten times as
# large. Four points with zero, or with 3/4 in place of 1/2, give twice the error.
POINTS = {
    4: (Fraction(1, 2), Fraction(-1, 2), Fraction(3, 2), Fraction(-3, 2)),
    5: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}

# Largest number of taps of a phase that leaves two outputs.
MOST_TAPS = max(POINTS)


@dataclass(frozen=True)
class MinimalFiltering:
    """An algorithm for some outputs of a valid cross-correlation.

    With a stride, outputs see samples and taps by phase: those whose numbers leave the same
    remainder. Each phase is a correlation by itself, and the outputs are their sum. All phases are
    evaluated at the same points, so their products are added before they are transformed. A phase
    with one tap less than the others has one value less: it has no product at infinity.

    Attributes:
        taps: taps of the kernel.
        outputs: outputs computed together.
        stride: samples from one output to the next.
    """

    taps: int
    outputs: int
    stride: int = 1

    @cached_property
    def phase_taps(self) -> tuple[int, ...]:
        """The taps of each phase."""
        return tuple(len(range(first, self.taps, self.stride)) for first in range(self.stride))

    @cached_property
    def length(self) -> int:
        """The points at which products are made."""
        return self.outputs + max(self.phase_taps) - 1

    @property
    def seen(self) -> int:
        """The samples that the outputs see."""
        return self.stride * (self.outputs - 1) + self.taps

    @cached_property
    def point_of_value(self) -> tuple[int, ...]:
        """The number of the point of each value that is made of the samples, phase by phase."""
        return tuple(point for taps in self.phase_taps for point in range(self.outputs + taps - 1))

    @cached_property
    def values(self) -> int:
        """The values that are made of the samples."""
        return len(self.point_of_value)

    @cached_property
    def samples(self) -> Codelet:
        """The transform of the samples into values at points."""
        if self.length == 1:
            return _identity(self.values)
        return _samples(self.points, self.stride, self.outputs, self.phase_taps)

    @cached_property
    def results(self) -> Codelet:
        """The transform of ``length`` products into the outputs."""
        return _results(self.points, self.outputs) if self.length > 1 else _identity(1)

    @property
    def points(self) -> tuple[Fraction, ...]:
        """The points other than infinity."""
        return POINTS[self.length - 1]

    def kernel_matrix(self) -> NDArray[np.float64]:
        """Return the matrix (values, taps) that transforms a kernel."""
        if self.length == 1:
            return np.eye(self.taps)
        matrix = np.zeros((self.values, self.taps))
        first = 0
        for phase, taps in enumerate(self.phase_taps):
            count = self.outputs + taps - 1
            columns = matrix[:, phase :: self.stride]
            columns[first : first + count] = _kernel_rows(self.points, taps)[:count]
            first += count
        return matrix


@cache  # a search asks for the same few of thousands of layers
def minimal_filtering(taps: int, stride: int = 1) -> MinimalFiltering | None:
    """Return the algorithm for a kernel along one axis.

    Returns:
        The algorithm. The result is None if a phase has too many taps, or one has none.
    """
    if taps < stride:
        return None
    most = -(-taps // stride)  # of a phase
    if most == 1:
        return MinimalFiltering(taps, 1, stride)
    if most > MOST_TAPS:
        return None
    # Five outputs of two taps would have errors that are twice as large.
    points = min(POINTS) if most == 2 else max(POINTS)
    return MinimalFiltering(taps, points + 2 - most, stride)


def _kernel_rows(points: tuple[Fraction, ...], taps: int) -> NDArray[np.float64]:
    """Return the matrix (points and infinity, taps) that transforms the taps of a phase."""
    rows = [
        [point**tap / prod(point - other for other in points if other != point)
         for tap in range(taps)]
        for point in points
    ]  # fmt: skip
    rows.append([Fraction(tap == taps - 1) for tap in range(taps)])
    return np.array(rows, np.float64)


@cache
def _identity(length: int) -> Codelet:
    program = Program()
    return program.codelet([program.input(i) for i in range(length)])


@cache
def _samples(
    points: tuple[Fraction, ...], stride: int, outputs: int, phase_taps: tuple[int, ...]
) -> Codelet:
    """Return the transform that weighs samples of each phase, for each point, by a polynomial.

    The roots of the polynomial are all other points. A phase without a product at infinity takes
    only the samples that the polynomials of the other points weigh.
    """
    program = Program()
    values: list[Real] = []
    for phase, taps in enumerate(phase_taps):
        count = outputs + taps - 1
        x = [program.input(phase + stride * i) for i in range(count)]
        values += _values(program, points, x)[:count]
    return program.codelet(values)


def _values(program: Program, points: tuple[Fraction, ...], x: Sequence[Real]) -> list[Real]:
    """Return the values of a phase's samples at all points, the last of them infinity."""
    single = len(points) % 2  # whether zero is among them
    made = [_sum(program, _polynomial(points[1:]), x)] if single else []
    for i in range(single, len(points), 2):
        factors = _polynomial([point for point in points if point != points[i]])
        # The polynomial of the point of other sign has odd coefficients, or even ones, of other
        # sign.
        even = _sum(program, factors[::2], x[::2])
        odd = _sum(program, factors[1::2], x[1::2])
        negated = program.subtract(even, odd) if single else program.subtract(odd, even)
        made += [program.add(even, odd), negated]
    return [*made, _sum(program, _polynomial(points), x)]


@cache
def _results(points: tuple[Fraction, ...], outputs: int) -> Codelet:
    """Return the transform of products: the sums of their products with powers of the points."""
    program = Program()
    products = [program.input(i) for i in range(len(points) + 1)]
    single = len(points) % 2  # whether zero is among the points
    pairs = [
        (program.add(left, right), program.subtract(left, right))
        for left, right in zip(products[single:-1:2], products[single + 1 : -1 : 2], strict=True)
    ]
    made: list[Real] = []
    for power in range(outputs):
        factors = [point**power for point in points[single::2]]
        total = _sum(program, factors, [pair[power % 2] for pair in pairs])
        if single and power == 0:
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
