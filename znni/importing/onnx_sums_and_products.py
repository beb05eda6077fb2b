"""Sums and products of ONNX, which may be parts of a gelu that older opsets write out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from znni.importing import checks
from znni.importing.calls import Value
from znni.importing.onnx_nodes import NodeCall
from znni.importing.steps import Layered, Nonlinearity
from znni.network.layers import Affine


@dataclass(frozen=True)
class PartOfGelu:
    """A part of ``x * (erf(x / sqrt(2)) + 1) / 2``, which is a gelu.

    Attributes:
        of: the name of x.
        plus_one: whether 1 is added.
        times_x: whether x is a factor of it.
        halved: whether it is halved.
    """

    of: str
    plus_one: bool = False
    times_x: bool = False
    halved: bool = False


def addition(node: NodeCall) -> object:
    """Read ``Add`` of two values, or of a value and a constant."""
    first, second = _part_first(node)
    if not isinstance(first, PartOfGelu):
        return node.of(first).read_as("add", other=second)
    if first == PartOfGelu(first.of) and _is_number(second, 1.0):
        return replace(first, plus_one=True)
    return _no_gelu(node)


def multiplication(node: NodeCall) -> object:
    """Read ``Mul`` of two values, or of a value and a constant, or of a part of a gelu."""
    part, other = _part_first(node)
    if not isinstance(part, PartOfGelu):
        return node.of(part).read_as("mul", other=other)
    if _is_number(other, 0.5) and not part.halved:
        part = replace(part, halved=True)
    elif isinstance(other, Value) and not part.times_x:
        values, half = node.tracer.values, _unscaled(node, other.name, 0.5)
        halved = half is not None and values[half] == values[part.of]
        if values[other.name] != values[part.of] and (part.halved or not halved):
            _no_gelu(node)
        part = replace(part, times_x=True, halved=part.halved or halved)
    else:
        _no_gelu(node)
    if part.plus_one and part.times_x and part.halved:
        node.add(Nonlinearity(node.origin, "gelu"), part.of)
        return None
    return part


def error_function(node: NodeCall) -> PartOfGelu:
    """Read ``Erf``, which has to be part of a gelu."""
    of = _unscaled(node, node.read, math.sqrt(0.5))
    return _no_gelu(node) if of is None else PartOfGelu(of)


def _no_gelu(node: NodeCall) -> NoReturn:
    node.refuse(f"is part of no gelu; {checks.LAYERS}")


def _unscaled(node: NodeCall, name: str, factor: float) -> str | None:
    """Return the name of the value that a value is a factor times of; None if it is not."""
    step = node.tracer.maker(name)
    match step and step.operation:
        case Layered(layer=Affine(), weight=scale, bias=shift):
            if step and np.allclose(scale, factor, rtol=1e-6) and not shift.any():
                return step.reads[0]
    return None


def _part_first(node: NodeCall) -> tuple[Any, Any]:
    """Return two inputs; a part of a gelu comes first."""
    first, second = node.input(0), node.input(1)
    return (second, first) if isinstance(second, PartOfGelu) else (first, second)


def _is_number(given: object, number: float) -> bool:
    return isinstance(given, np.ndarray) and given.size == 1 and float(given.item()) == number
