"""Norms that a source writes out, operator by operator: layer norm over maps, and by response.

The values between are no layers. A part says which of them one is, until the norm is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn, TypeAlias

import numpy as np

from znni.importing import checks, operations
from znni.importing.calls import OperatorCall, Value
from znni.importing.steps import Float64
from znni.network.layers import Normalize, VoxelNorm

Stage: TypeAlias = Literal[
    "mean", "centred", "squares", "variance", "deviation", "unit",
    "norm", "mean norm", "share", "response", "with input",
]  # fmt: skip

# What an operator makes of a value x, of parts of its norm, or of both in alphabetic order.
STAGES: Mapping[tuple[str, ...], Stage] = {
    ("mean", "x"): "mean",
    ("sub", "x", "mean"): "centred",
    ("pow", "centred"): "squares",
    ("mul", "centred", "centred"): "squares",
    ("mean", "squares"): "variance",
    ("sqrt", "variance"): "deviation",
    ("div", "centred", "deviation"): "unit",
    ("linalg_vector_norm", "x"): "norm",
    ("mean", "norm"): "mean norm",
    ("div", "norm", "mean norm"): "share",
    ("mul", "share", "x"): "response",
    ("add", "response", "x"): "with input",
}
BEGIN = ("linalg_vector_norm", "pow", "sqrt")  # operators that only norms have here
ORDERED = ("sub", "div")  # operators whose values may not change places
# The axes of (n, f, z, y, x) over which an operator goes, and its argument that has to be 2.
OVER: Mapping[str, tuple[int, ...]] = {"mean": (1,), "linalg_vector_norm": (2, 3, 4)}
POWERS: Mapping[str, str] = {"pow": "exponent", "linalg_vector_norm": "ord"}


@dataclass(frozen=True, eq=False)
class PartOfNorm:
    """A part of a norm.

    Attributes:
        of: the name of the value x that is normalized.
        stage: what it is of x.
        eps: what is added to the variance, or to the mean norm.
        factors: what a response is multiplied by, for each map.
        shifts: what is added then.
    """

    of: str
    stage: Stage
    eps: float = 0.0
    factors: Float64 | float = 1.0
    shifts: Float64 | float = 0.0


def is_part(operator: str, call: OperatorCall) -> bool:
    """Return whether a call takes a part of a norm, or begins one."""
    if operator == "mean" and isinstance(call.first, Value):
        return _axes(call) == OVER["mean"]
    begins = operator == "linalg_vector_norm"
    return begins or any(isinstance(each, PartOfNorm) for each in _taken(call))


def read_part(operator: str, call: OperatorCall) -> PartOfNorm | None:
    """Read a call that is part of a norm; return None if it completes the norm.

    Raises:
        NotExpressed: it is part of no norm that is known here.
    """
    taken = _taken(call)
    parts = [each for each in taken if isinstance(each, PartOfNorm)]
    values = [each.name for each in taken if isinstance(each, Value)]
    names = [part.of for part in parts] + values
    if len({call.tracer.values[name] for name in names}) != 1:
        no_norm(call)
    if len(names) < len(taken):
        return _with_constant(operator, call, parts, taken)
    kinds = [each.stage if isinstance(each, PartOfNorm) else "x" for each in taken]
    stage = STAGES.get((operator, *(kinds if operator in ORDERED else sorted(kinds))))
    if stage is None or not _has_its_arguments(operator, call):
        no_norm(call)
    first = parts[0] if parts else PartOfNorm(names[0], stage)
    made = replace(first, stage=stage, eps=sum(part.eps for part in parts))
    if stage not in ("unit", "with input"):
        return made
    maps = call.tracer.values[made.of].maps
    scale, shift = (np.broadcast_to(each, maps).copy() for each in (made.factors, made.shifts))
    layer: Normalize | VoxelNorm = VoxelNorm(call.origin, maps, 1, made.eps)
    if stage == "with input":
        layer = Normalize(call.origin, maps, 1, made.eps, by="response")
    call.add(operations.norm(layer, scale, shift), made.of)
    return None


def _with_constant(
    operator: str, call: OperatorCall, parts: Sequence[PartOfNorm], taken: Sequence[object]
) -> PartOfNorm:
    """Read a sum or product of a part and a constant."""
    (part,), (constant,) = parts, (each for each in taken if not isinstance(each, PartOfNorm))
    given = call.per_map(constant, call.tracer.values[part.of].maps)
    match part.stage, operator:
        case (("variance" | "mean norm"), "add") if np.ptp(given) == 0:
            return replace(part, eps=part.eps + float(given[0]))
        case "response", "mul":
            return replace(part, factors=part.factors * given, shifts=part.shifts * given)
        case "response", "add":
            return replace(part, shifts=part.shifts + given)
    return no_norm(call)


def _taken(call: OperatorCall) -> list[object]:
    """Return the arrays and constants that a call takes: one or two."""
    return [call.first, *([call.arguments["other"]] if "other" in call.arguments else [])]


def _axes(call: OperatorCall) -> tuple[int, ...]:
    """Return the axes of (n, f, z, y, x) over which a call goes."""
    given = call.arguments.get("dim")
    listed = given if isinstance(given, list | tuple) else [given]
    return tuple(sorted(axis % 5 for axis in listed if isinstance(axis, int)))


def _has_its_arguments(operator: str, call: OperatorCall) -> bool:
    """Return whether a call goes over the axes of its norm, and keeps them, or squares."""
    given = call.arguments
    over, power = OVER.get(operator), POWERS.get(operator)
    keeps = given.get("keepdim", given.get("keepdims", False))
    is_square = power is None or np.all(np.asarray(given.get(power, 2), float) == 2)
    return (
        (over is None or (_axes(call) == over and bool(keeps)))
        and bool(is_square)
        and given.get("alpha", 1) == 1
    )


def no_norm(call: OperatorCall) -> NoReturn:
    """Refuse an operator that only norms have here."""
    call.cannot_express(
        f"is part of no norm that is known here: layer norm over maps, and global response "
        f"normalization; {checks.LAYERS}"
    )
