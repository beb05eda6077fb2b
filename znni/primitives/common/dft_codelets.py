"""Discrete Fourier transforms of small lengths as codelets.

A mixed-radix algorithm runs on symbols and records its operations. Transforms of real numbers use
the same algorithm, but compute only one half of the Hermitian spectrum.

FFTW's generator has the same idea (Frigo, "A fast Fourier transform compiler", 1999).
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from functools import cache
from typing import Literal

from znni.primitives.common.codelets import Codelet, Complex, Program, Real, negative


@cache
def complex_dft(length: int, sign: Literal[-1, 1]) -> Codelet:
    """Return the DFT: sum over j of x[j] exp(sign 2 pi i j k / length).

    It has 2 length reals as inputs and as outputs, real and imaginary parts in turn.
    """
    program = Program()
    inputs = [(program.input(2 * j), program.input(2 * j + 1)) for j in range(length)]
    return program.codelet(_flat(_complex(program, inputs, sign)))


@cache
def real_dft(length: int) -> Codelet:
    """Return the transform (sign -1) of ``length`` reals: its first length // 2 + 1 outputs."""
    program = Program()
    return program.codelet(_flat(_real(program, [program.input(j) for j in range(length)])))


@cache
def inverse_real_dft(length: int) -> Codelet:
    """Return the inverse of ``real_dft``, times ``length``.

    Imaginary parts that are zero for every real input are taken to be zero.
    """
    program = Program()
    spectrum: list[Complex] = [
        (program.input(2 * k), None if 2 * k % length == 0 else program.input(2 * k + 1))
        for k in range(length // 2 + 1)
    ]
    return program.codelet(_inverse_real(program, spectrum, length))


def _complex(program: Program, x: Sequence[Complex], sign: int) -> list[Complex]:
    """Transform by coprime factors if there are any, else by decimation in time.

    Decimation in time transforms every radix-th input and combines the results.
    """
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


def _real(program: Program, x: Sequence[Real]) -> list[Complex]:
    """Transform reals by decimation in time.

    Outputs beyond the middle are conjugates of those before it.
    """
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
                out[length - frequency] = real, negative(imaginary)
    return out


def _inverse_real(program: Program, spectrum: Sequence[Complex], length: int) -> list[Real]:
    """Transform back to reals by decimation in frequency: the steps of ``_real`` in reverse."""
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
    program: Program, x: Sequence[Complex], sign: int, factors: tuple[int, int]
) -> list[Complex]:
    """Transform by Good's prime factor algorithm: two dimensions without twiddle factors.

    For coprime a and b, input b i + a j (modulo a b) is at (i, j). Output k is at (k mod a,
    k mod b). Source: I. J. Good, "The interaction algorithm and practical Fourier analysis", 1958.
    """
    a, b = factors
    rows = [_complex(program, [x[n] for n in row], sign) for row in _input_rows(a, b)]
    columns = [_complex(program, [row[i] for row in rows], sign) for i in range(a)]
    return [columns[k % a][k % b] for k in range(a * b)]


def _real_by_factors(
    program: Program, x: Sequence[Real], factors: tuple[int, int]
) -> list[Complex]:
    """Transform reals as ``_complex_by_factors`` does, without conjugate columns; b is odd."""
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
            out.append((real, negative(imaginary)))
    return out


def _inverse_real_by_factors(
    program: Program, spectrum: Sequence[Complex], factors: tuple[int, int]
) -> list[Real]:
    """Transform back to reals: the steps of ``_real_by_factors`` in reverse."""
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
    """Return the inputs of each transform of length a."""
    return [[(b * i + a * j) % (a * b) for i in range(a)] for j in range(b)]


def _coprime_factors(length: int) -> tuple[int, int] | None:
    """Return the power of a length's smallest prime and the rest; None for a prime's power."""
    prime = next((p for p in range(2, length + 1) if length % p == 0), 1)
    power = prime
    while prime > 1 and length % (power * prime) == 0:
        power *= prime
    return (power, length // power) if power < length else None


def _hermitian(spectrum: Sequence[Complex], frequency: int, length: int) -> Complex:
    if 2 * frequency <= length:
        return spectrum[frequency]
    real, imaginary = spectrum[length - frequency]
    return real, negative(imaginary)


def _butterfly(program: Program, x: Sequence[Complex], sign: int) -> list[Complex]:
    """Return the transform of 1 to 5 numbers, or of any other prime number of them."""
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
    # An odd length: pair inputs j and -j. Cosines multiply their sums, sines their differences.
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


def _flat(values: Sequence[Complex]) -> list[Real]:
    return [part for value in values for part in value]
