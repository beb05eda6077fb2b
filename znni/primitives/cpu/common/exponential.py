"""The exponential function in float32, in a form that compilers turn into vector code.

The argument is a multiple of ln 2 and a rest of at most half of that. A polynomial gives the
exponential of the rest (Cephes' ``expf``); the multiple goes into the number's exponent. The
relative error is below 2e-7.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from znni.primitives.cpu.common.lazy_kernel import lazy_intrinsic, lazy_njit

# Beyond these, float32 overflows, or a result below 1e-37 is as good as zero.
LEAST, MOST = np.float32(-86.0), np.float32(88.0)

LOG2_E = np.float32(1.44269504)
LN_2_HIGH, LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
MAGIC = np.float32(1.5 * 2**23)  # adding and subtracting it rounds to an integer

# Coefficients of (e^r - 1 - r) / r^2, from the highest power on.
POLYNOMIAL = tuple(
    map(
        np.float32,
        (
            1.9875691500e-4,
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        ),
    )
)


@lazy_intrinsic()
def _power_of_two(_context: Any, _exponent: Any) -> Any:
    """Return 2 to an int32 from -126 to 127, as a float32 with these bits in its exponent."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        biased = builder.add(arguments[0], ir.Constant(ir.IntType(32), 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(ir.IntType(32), 23)), ir.FloatType())

    from numba import types

    return types.float32(types.int32), generate


@lazy_njit(nogil=True, inline="always")
def _parts(value):  # type: ignore[no-untyped-def]
    """Return 2 to the n, and e to the r less 1, for value = n ln 2 + r."""
    value = LEAST if value < LEAST else value  # a NaN stays one
    value = MOST if value > MOST else value
    multiple = (value * LOG2_E + MAGIC) - MAGIC
    rest = value - multiple * LN_2_HIGH - multiple * LN_2_LOW
    p = POLYNOMIAL[0]
    for i in range(1, len(POLYNOMIAL)):
        p = p * rest + POLYNOMIAL[i]
    return _power_of_two(np.int32(multiple)), p * rest * rest + rest


@lazy_njit(nogil=True, inline="always")
def exponential(value):  # type: ignore[no-untyped-def]
    """Return e to a float32."""
    power, less_one = _parts(value)
    return power + power * less_one


@lazy_njit(nogil=True, inline="always")
def exponential_less_one(value):  # type: ignore[no-untyped-def]
    """Return e to a float32, less 1, without losing the digits of small values."""
    power, less_one = _parts(value)
    return power * less_one + (power - np.float32(1))
