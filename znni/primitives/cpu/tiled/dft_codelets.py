"""Discrete Fourier transforms of small lengths as straight-line programs.

A codelet is data: a list of additions and multiplications by constants, found by running a
mixed-radix algorithm on symbols. It says how many operations it takes, and can be carried out
on anything that has the arithmetic: numbers, or the vectors of a kernel being generated.
Transforms of real numbers come from the same algorithm, computing only one half of the
Hermitian spectrum; what no output needs is dropped.

The idea is that of FFTW's generator (Frigo, "A fast Fourier transform compiler", 1999).
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
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


class Operation(NamedTuple):
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

    steps: tuple[Operation, ...]
    outputs: tuple[Real, ...]

    def first(self, outputs: int) -> Codelet:
        """The same without the outputs from a number on, and what only they need."""
        return Codelet(self.steps, self.outputs[:outputs])

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


@cache
def complex_dft(length: int, sign: Literal[-1, 1]) -> Codelet:
    """Sum over j of x[j] exp(sign 2 pi i j k / length): 2 length reals in, 2 length reals out.

    Inputs and outputs alternate real and imaginary parts.
    """
    program = _Program()
    inputs = [(program.input(2 * j), program.input(2 * j + 1)) for j in range(length)]
    return program.codelet(_flat(_complex(program, inputs, sign)))


@cache
def real_dft(length: int) -> Codelet:
    """The first length // 2 + 1 outputs of the transform (sign -1) of ``length`` reals."""
    program = _Program()
    return program.codelet(_flat(_real(program, [program.input(j) for j in range(length)])))


@cache
def inverse_real_dft(length: int) -> Codelet:
    """``length`` times the reals whose ``real_dft`` is given.

    The imaginary parts that are zero for every real input are taken to be zero.
    """
    program = _Program()
    spectrum: list[Complex] = [
        (program.input(2 * k), None if 2 * k % length == 0 else program.input(2 * k + 1))
        for k in range(length // 2 + 1)
    ]
    return program.codelet(_inverse_real(program, spectrum, length))


class _Program:
    """Collects steps; the same step is never taken twice, and signs are never computed."""

    def __init__(self) -> None:
        self._steps: dict[Operation, int] = {}

    def codelet(self, outputs: Sequence[Real]) -> Codelet:
        return Codelet(tuple(self._steps), tuple(outputs))

    def input(self, number: int) -> Real:
        return self._step(Operation("input", number, 0, 0.0))

    def add(self, left: Real, right: Real) -> Real:
        if left is None or right is None:
            return right if left is None else left
        if left.negative and right.negative:
            return _negative(self.add(_negative(left), _negative(right)))
        if left.negative:
            left, right = right, left
        kind: Literal["add", "subtract"] = "subtract" if right.negative else "add"
        if kind == "add" and left.step > right.step:
            left, right = right, left
        return self._step(Operation(kind, left.step, right.step, 0.0))

    def subtract(self, left: Real, right: Real) -> Real:
        return self.add(left, _negative(right))

    def scale(self, value: Real, factor: float) -> Real:
        if value is None or math.isclose(factor, 0, abs_tol=1e-12):
            return None
        if factor < 0:
            return _negative(self.scale(value, -factor))
        if math.isclose(factor, 1):
            return value
        scaled = self._step(Operation("scale", value.step, 0, factor))
        return _negative(scaled) if value.negative else scaled

    def plus(self, left: Complex, right: Complex) -> Complex:
        return self.add(left[0], right[0]), self.add(left[1], right[1])

    def minus(self, left: Complex, right: Complex) -> Complex:
        return self.subtract(left[0], right[0]), self.subtract(left[1], right[1])

    def times(self, value: Complex, factor: complex) -> Complex:
        real, imaginary = value
        return (
            self.subtract(self.scale(real, factor.real), self.scale(imaginary, factor.imag)),
            self.add(self.scale(real, factor.imag), self.scale(imaginary, factor.real)),
        )

    def _step(self, operation: Operation) -> Term:
        return Term(self._steps.setdefault(operation, len(self._steps)))


def _complex(program: _Program, x: Sequence[Complex], sign: int) -> list[Complex]:
    """By coprime factors; else decimation in time: transforms of every radix-th input, combined."""
    length = len(x)
    factors = _coprime_factors(length)
    if factors:
        return _complex_by_factors(program, x, sign, factors)
    radix = _radix(length)
    if radix == length:
        return _butterfly(program, x, sign)
    part = length // radix
    parts = [_complex(program, x[j::radix], sign) for j in range(radix)]
    out: list[Complex] = [(None, None)] * length
    for k in range(part):
        turned = [program.times(parts[j][k], _root(sign * j * k, length)) for j in range(radix)]
        out[k::part] = _butterfly(program, turned, sign)
    return out


def _real(program: _Program, x: Sequence[Real]) -> list[Complex]:
    """Decimation in time; outputs beyond the middle are conjugates of those before it."""
    length = len(x)
    if length == 1:
        return [(x[0], None)]
    factors = _coprime_factors(length)
    if factors:
        return _real_by_factors(program, x, factors)
    radix = _radix(length)
    part = length // radix
    parts = [_real(program, x[j::radix]) for j in range(radix)]
    out: list[Complex] = [(None, None)] * (length // 2 + 1)
    for k in range(part // 2 + 1):
        turned = [program.times(parts[j][k], _root(-j * k, length)) for j in range(radix)]
        for q, (real, imaginary) in enumerate(_butterfly(program, turned, -1)):
            frequency = k + q * part
            if 2 * frequency <= length:
                out[frequency] = real, imaginary
            else:
                out[length - frequency] = real, _negative(imaginary)
    return out


def _inverse_real(program: _Program, spectrum: Sequence[Complex], length: int) -> list[Real]:
    """Decimation in frequency: the steps of ``_real`` backwards."""
    if length == 1:
        return [spectrum[0][0]]
    factors = _coprime_factors(length)
    if factors:
        return _inverse_real_by_factors(program, spectrum, factors)
    radix = _radix(length)
    part = length // radix
    parts: list[list[Complex]] = [[] for _ in range(radix)]
    for k in range(part // 2 + 1):
        aliases = [_hermitian(spectrum, k + q * part, length) for q in range(radix)]
        for j, value in enumerate(_butterfly(program, aliases, 1)):
            real, imaginary = program.times(value, _root(j * k, length))
            parts[j].append((real, None if 2 * k % part == 0 else imaginary))
    out: list[Real] = [None] * length
    for j in range(radix):
        out[j::radix] = _inverse_real(program, parts[j], part)
    return out


def _complex_by_factors(
    program: _Program, x: Sequence[Complex], sign: int, factors: tuple[int, int]
) -> list[Complex]:
    """Good's prime factor algorithm: a two-dimensional transform without twiddle factors.

    For coprime a and b, input b i + a j (modulo a b) is at (i, j) and output k at (k mod a,
    k mod b): I. J. Good, "The interaction algorithm and practical Fourier analysis", 1958.
    """
    a, b = factors
    rows = [_complex(program, [x[n] for n in row], sign) for row in _input_rows(a, b)]
    columns = [_complex(program, [row[i] for row in rows], sign) for i in range(a)]
    return [columns[k % a][k % b] for k in range(a * b)]


def _real_by_factors(
    program: _Program, x: Sequence[Real], factors: tuple[int, int]
) -> list[Complex]:
    """As ``_complex_by_factors``; conjugate columns are left out, and b is odd."""
    a, b = factors
    rows = [_real(program, [x[n] for n in row]) for row in _input_rows(a, b)]
    columns: list[list[Complex]] = []
    for i in range(a // 2 + 1):
        if 2 * i % a == 0:
            lower = _real(program, [row[i][0] for row in rows])
            columns.append([_hermitian(lower, k, b) for k in range(b)])
        else:
            columns.append(_complex(program, [row[i] for row in rows], -1))
    out = []
    for k in range(a * b // 2 + 1):
        if k % a <= a // 2:
            out.append(columns[k % a][k % b])
        else:
            real, imaginary = columns[-k % a][-k % b]
            out.append((real, _negative(imaginary)))
    return out


def _inverse_real_by_factors(
    program: _Program, spectrum: Sequence[Complex], factors: tuple[int, int]
) -> list[Real]:
    """The steps of ``_real_by_factors`` backwards."""
    a, b = factors
    place = {(k % a, k % b): k for k in range(a * b)}
    columns: list[list[Complex]] = []
    for i in range(a // 2 + 1):
        column = [_hermitian(spectrum, place[i, j], a * b) for j in range(b)]
        if 2 * i % a == 0:
            reals = _inverse_real(program, column[: b // 2 + 1], b)
            columns.append([(real, None) for real in reals])
        else:
            columns.append(_complex(program, column, 1))
    out: list[Real] = [None] * (a * b)
    for j, row in enumerate(_input_rows(a, b)):
        values = _inverse_real(program, [column[j] for column in columns], a)
        for n, value in zip(row, values, strict=True):
            out[n] = value
    return out


def _input_rows(a: int, b: int) -> list[list[int]]:
    """Which inputs each transform of length a takes."""
    return [[(b * i + a * j) % (a * b) for i in range(a)] for j in range(b)]


def _coprime_factors(length: int) -> tuple[int, int] | None:
    """The power of the smallest prime in a length, and the rest; None for a prime's power."""
    prime = next((p for p in range(2, length + 1) if length % p == 0), 1)
    power = prime
    while prime > 1 and length % (power * prime) == 0:
        power *= prime
    return (power, length // power) if power < length else None


def _hermitian(spectrum: Sequence[Complex], frequency: int, length: int) -> Complex:
    if 2 * frequency <= length:
        return spectrum[frequency]
    real, imaginary = spectrum[length - frequency]
    return real, _negative(imaginary)


def _butterfly(program: _Program, x: Sequence[Complex], sign: int) -> list[Complex]:
    """The transform of 1 to 5 numbers, or of any other prime number of them."""
    quarter = complex(0, sign)
    if len(x) == 2:
        return [program.plus(x[0], x[1]), program.minus(x[0], x[1])]
    if len(x) == 4:
        even, odd = program.plus(x[0], x[2]), program.plus(x[1], x[3])
        even_difference = program.minus(x[0], x[2])
        odd_difference = program.times(program.minus(x[1], x[3]), quarter)
        return [
            program.plus(even, odd),
            program.plus(even_difference, odd_difference),
            program.minus(even, odd),
            program.minus(even_difference, odd_difference),
        ]
    # An odd length: pair inputs j and -j, whose sums meet cosines and whose differences sines.
    length, half = len(x), range(1, len(x) // 2 + 1)
    sums = {j: program.plus(x[j], x[length - j]) for j in half}
    differences = {j: program.minus(x[j], x[length - j]) for j in half}
    out = [x[0]] * length
    for j in half:
        out[0] = program.plus(out[0], sums[j])
    for k in half:
        even, odd = x[0], (None, None)
        for j in half:
            root = _root(j * k, length)
            even = program.plus(even, program.times(sums[j], root.real))
            odd = program.plus(odd, program.times(differences[j], quarter * root.imag))
        out[k], out[length - k] = program.plus(even, odd), program.minus(even, odd)
    return out


def _radix(length: int) -> int:
    return next((radix for radix in (4, 2, 3, 5) if length % radix == 0), length)


def _root(power: int, length: int) -> complex:
    return cmath.exp(2j * math.pi * power / length)


def _negative(term: Real) -> Real:
    return None if term is None else Term(term.step, not term.negative)


def _flat(values: Sequence[Complex]) -> list[Real]:
    return [part for value in values for part in value]
