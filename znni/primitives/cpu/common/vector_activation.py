"""Bias and activation of vectors of 16 maps, as kernels store them.

The formulas are those of ``exponential`` and ``activation``, which compute row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from znni.network.activations import TRAITS, Activation
from znni.primitives.cpu.common.activation import (
    ERF_DENOMINATOR,
    ERF_NUMERATOR,
    GELU_CUBIC,
    GELU_LINEAR,
    MOST_TANH,
)
from znni.primitives.cpu.common.exponential import (
    LEAST,
    LN_2_HIGH,
    LN_2_LOW,
    LOG2_E,
    MAGIC,
    MOST,
    POLYNOMIAL,
)
from znni.primitives.cpu.common.simd import Emitter, Value

# An activation that needs more than a slope and a floor. Each is compiled into kernels of its own.
Curve: TypeAlias = Activation | Literal[""]


def curve(activation: Activation) -> Curve:
    """Return the curve of an activation, or an empty string if its kernels need none."""
    return activation if TRAITS[activation].kind == "curve" else ""


def finished(emit: Emitter, value: Value, finish: Sequence[Value], curve: Curve) -> Value:
    """Return a layer's result, with bias and activation.

    Args:
        emit: the emitter of the kernel.
        value: sums without the bias.
        finish: bias, slope and floor: see ``VectorFinish``.
        curve: the curve that the activation has beside slope and floor.
    """
    bias, slope, floor = finish
    if not curve:
        return emit.finished(value, bias, slope, floor)
    value = emit.add(value, bias)
    one = emit.constant(1.0)
    if curve == "elu":
        power, less_one = _exponential_parts(emit, value)
        below = emit.multiply_add(power, less_one, emit.subtract(power, one))
        return emit.where_positive(value, value, below)
    if curve == "sigmoid":
        power, less_one = _exponential_parts(emit, emit.negate(value))
        return emit.divide(one, emit.add(one, emit.multiply_add(power, less_one, power)))
    if curve == "tanh":
        return _tanh(emit, value)
    if curve == "gelu_tanh":
        cubic, half = emit.scale(emit.multiply(value, value), float(GELU_CUBIC)), emit.constant(0.5)
        inner = emit.multiply(value, emit.add(cubic, emit.constant(float(GELU_LINEAR))))
        return emit.multiply(value, emit.multiply_add(_tanh(emit, inner), half, half))
    return emit.multiply(value, _normal_share(emit, value))


def _exponential_parts(emit: Emitter, value: Value) -> tuple[Value, Value]:
    """Return 2 to the n, and e to the r less 1, for value = n ln 2 + r."""
    value = emit.at_least(value, emit.constant(float(LEAST)))
    value = emit.at_most(value, emit.constant(float(MOST)))
    magic = emit.constant(float(MAGIC))
    shifted = emit.multiply_add(value, emit.constant(float(LOG2_E)), magic)
    multiple = emit.subtract(shifted, magic)
    rest = emit.multiply_add(multiple, emit.constant(-float(LN_2_HIGH)), value)
    rest = emit.multiply_add(multiple, emit.constant(-float(LN_2_LOW)), rest)
    sum_ = _polynomial(emit, rest, POLYNOMIAL)
    less_one = emit.multiply_add(emit.multiply(sum_, rest), rest, rest)
    return emit.power_of_two(shifted), less_one


def _tanh(emit: Emitter, value: Value) -> Value:
    """Return the hyperbolic tangent of a value."""
    bounded = emit.at_most(value, emit.constant(float(MOST_TANH)))
    power, less_one = _exponential_parts(emit, emit.add(bounded, bounded))
    twice = emit.multiply_add(power, less_one, emit.subtract(power, emit.constant(1.0)))
    return emit.divide(twice, emit.add(twice, emit.constant(2.0)))


def _normal_share(emit: Emitter, value: Value) -> Value:
    """Return (1 + erf(value / sqrt(2))) / 2."""
    u = emit.scale(value, 0.70710678)
    u = emit.at_most(emit.at_least(u, emit.constant(-4.0)), emit.constant(4.0))
    square = emit.multiply(u, u)
    numerator = emit.multiply(u, _polynomial(emit, square, ERF_NUMERATOR))
    erf = emit.divide(numerator, _polynomial(emit, square, ERF_DENOMINATOR))
    half = emit.constant(0.5)
    return emit.multiply_add(erf, half, half)


def _polynomial(emit: Emitter, value: Value, coefficients: Sequence[np.float32]) -> Value:
    """Return a polynomial's value, by its coefficients from the highest power on."""
    first, *others = coefficients
    total = emit.constant(float(first))
    for coefficient in others:
        total = emit.multiply_add(total, value, emit.constant(float(coefficient)))
    return total
