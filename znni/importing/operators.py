"""PyTorch's operators, as steps. Those of ONNX are read as these, with other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from znni.core.errors import option
from znni.importing import axis_operators as axes
from znni.importing import checks, norm_parts, operations
from znni.importing.calls import (
    MAPS_LAST,
    MAPS_SECOND,
    MapsLast,
    OperatorCall,
    Reader,
    Value,
    made_by,
    read_by,
)
from znni.importing.checks import number
from znni.importing.margins import Unsuited
from znni.importing.operations import TRAINING
from znni.importing.steps import Layered, Nonlinearity, affine
from znni.network.layers import Add, Concat, Maximum, Multiply, VoxelNorm


def unchanged(call: OperatorCall) -> None:
    """Read an operator that changes nothing."""
    call.same()


def connection(call: OperatorCall, weight: object, bias: object = None) -> None:
    """Read ``linear``: each map from all maps, which are the last axis."""
    factors = checks.floats(call.origin, "weight", weight)
    if not (call.held.is_pooled or call.is_last) or factors.ndim != 2:
        call.cannot_express(
            f"multiplies by a matrix what is not globally pooled; {checks.ATTENTION}"
        )
    call.add(operations.convolution(call.origin, factors[:, :, None, None, None], bias))


def silu(call: OperatorCall) -> None:
    """Read ``silu``: a value times its own sigmoid."""
    gate = call.aside(Nonlinearity(call.origin, "sigmoid"))
    multiply(call, call.read, gate)


def dropout(call: OperatorCall, train: object = False, p: object = None) -> None:
    """Read a dropout, which changes nothing in evaluation."""
    if train and p != 0:
        call.refuse(TRAINING)
    call.same()


def concatenation(call: OperatorCall, tensors: object, dim: object = 0) -> None:
    """Read ``cat`` of maps."""
    if dim not in (1, -4):
        call.refuse(f"joins values along axis {dim}; here maps are joined: axis 1")
    reads = [call.named(each) for each in (tensors if isinstance(tensors, list) else [tensors])]
    if len(reads) == 1:
        call.same(reads[0])
    else:
        _check_extents(call, reads)
        call.add(Layered(Concat(call.origin)), *reads)


def total(call: OperatorCall, tensors: Sequence[object]) -> None:
    """Read the sum of several values. One with a single map is added to all maps of the others."""
    reads = [call.named(each) for each in tensors]
    _check_extents(call, reads)
    most = max(call.tracer.values[name].maps for name in reads)
    sum_of, *others = reads
    for name in others:
        pair = [_wide(call, each, most) for each in (sum_of, name)]
        sum_of = call.aside(Layered(Add(call.origin)), *pair)
    call.same(sum_of)


def addition(call: OperatorCall, other: object, alpha: object = 1) -> None:
    """Read ``add``."""
    _sum(call, other, 1.0, number(call.origin, "alpha", alpha))


def subtraction(call: OperatorCall, other: object, alpha: object = 1) -> None:
    """Read ``sub``."""
    _sum(call, other, 1.0, -number(call.origin, "alpha", alpha))


def reversed_subtraction(call: OperatorCall, other: object, alpha: object = 1) -> None:
    """Read ``rsub``."""
    _sum(call, other, -number(call.origin, "alpha", alpha), 1.0)


def _sum(call: OperatorCall, other: object, factor: float, other_factor: float) -> None:
    """Read a sum of two values with factors; one may be a constant."""
    terms = [(call.first, factor), (other, other_factor)]
    if not isinstance(call.first, Value):
        terms.reverse()
    (first, factor), (second, other_factor) = terms
    if isinstance(second, Value):
        total(call, [_times(call, value, by) for value, by in ((first, factor), terms[1])])
        return
    read = call.named(first)
    shift = other_factor * call.per_map(second, call.tracer.values[read].maps)
    call.add(affine(call.origin, np.full(len(shift), factor), shift), read)


def _times(call: OperatorCall, value: object, factor: float) -> Value:
    """Return a value times a factor."""
    read = call.named(value)
    if factor == 1:
        return Value(read)
    maps = call.tracer.values[read].maps
    return Value(call.aside(affine(call.origin, np.full(maps, factor), np.zeros(maps)), read))


def negation(call: OperatorCall) -> None:
    """Read ``neg``."""
    multiplication(call, -1.0)


def multiplication(call: OperatorCall, other: object) -> None:
    """Read ``mul`` of two values, or of a value and a constant."""
    first, second = call.first, other
    if not isinstance(first, Value):
        first, second = second, first
    read = call.named(first)
    if isinstance(second, Value):
        multiply(call, read, second.name)
    else:
        scale = call.per_map(second, call.tracer.values[read].maps)
        call.add(affine(call.origin, scale, np.zeros(len(scale))), read)


def multiply(call: OperatorCall, first: str, second: str) -> None:
    """Multiply two values. One with a single map multiplies all maps of the other.

    A globally pooled value multiplies all samples of the other.

    Raises:
        InvalidInput: their extents or maps differ.
    """
    held = call.tracer.values
    spreads = held[first].is_pooled != held[second].is_pooled
    if not spreads:
        _check_extents(call, (first, second))
    if held[first].is_pooled if spreads else held[first].maps == 1:
        first, second = second, first
    if spreads:
        first = _wide(call, first, held[second].maps)
    is_gate = held[second].maps == 1 < held[first].maps
    call.add(Layered(Multiply(call.origin, is_gate=is_gate, spreads=spreads)), first, second)


def division(call: OperatorCall, other: object, rounding_mode: object = None) -> None:
    """Read ``div`` by a constant."""
    if isinstance(other, Value) or rounding_mode is not None:
        call.refuse("divides by a value, or rounds; divide by constants only")
    divisor = call.per_map(other, call.held.maps)
    if not divisor.all():
        call.refuse("divides by zero; export it again")
    call.add(affine(call.origin, 1 / divisor, np.zeros(len(divisor))))


def maximum(call: OperatorCall, other: object = None) -> None:
    """Read ``maximum``, and ``max`` of two values."""
    if other is None:
        call.refuse("is over an axis or all values; use amax over all voxels")
    reads = call.read, call.named(other)
    _check_extents(call, reads)
    most = max(call.tracer.values[name].maps for name in reads)
    call.add(Layered(Maximum(call.origin)), *(_wide(call, name, most) for name in reads))


def largest_map(call: OperatorCall) -> None:
    """Refuse to read the number of the largest map: a run stores labels itself."""
    call.refuse(
        f"gives the number of the largest map; export the network without it, and give a run "
        f"{option('labels', True)}"
    )


def _wide(call: OperatorCall, name: str, maps: int) -> str:
    """Return the name of a value with so many maps, repeated from one map if needed."""
    if call.tracer.values[name].maps != 1 or maps == 1:
        return name
    widened = call.tracer.widened
    if (name, maps) not in widened:
        widened[name, maps] = call.aside(axes.repeated(call, name, maps), name)
    return widened[name, maps]


def _check_extents(call: OperatorCall, reads: Sequence[str]) -> None:
    """Check that values have the same extents in the source."""
    sizes = {call.tracer.values[name].size for name in reads}
    if len(sizes) > 1:
        listed = " and ".join(map(str, sorted(sizes)))
        raise Unsuited(f"{call.origin} joins values of {listed}; give them equal extents")


def layer_norm(
    call: OperatorCall,
    normalized_shape: object,
    weight: object = None,
    bias: object = None,
    eps: object = 1e-5,
) -> None:
    """Read ``layer_norm`` over maps that are the last axis."""
    maps = call.held.maps
    if not call.is_last or normalized_shape != [maps]:
        call.cannot_express(f"{checks.WINDOWS}; {checks.NORMS}")
    layer = VoxelNorm(call.origin, maps, 1, number(call.origin, "epsilon", eps))
    call.add(operations.norm(layer, weight, bias))


def permutation(call: OperatorCall, dims: object) -> Value | MapsLast:
    """Read ``permute``, which makes the maps the last axis, or the second one again."""
    axes = [axis % 5 for axis in dims if isinstance(axis, int)] if isinstance(dims, list) else []
    if axes != (MAPS_SECOND if call.is_last else MAPS_LAST):
        call.cannot_express(
            f"permutes axes to {dims}; only maps become the last axis here, and the second one "
            f"again: {checks.LAYERS}"
        )
    call.same()
    return Value(call.result) if call.is_last else MapsLast(Value(call.result))


# Operators that change nothing, of constants too.
COPIES = ("alias", "clone", "contiguous", "detach", "lift_fresh_copy")
DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
OPERATORS: Mapping[str, Reader] = {
    **dict.fromkeys(COPIES, unchanged),
    "conv3d": made_by(operations.convolution),
    "conv_transpose3d": made_by(operations.transposed_convolution),
    "max_pool3d": made_by(partial(operations.max_pooling, reduce="max")),
    "avg_pool3d": made_by(operations.average_pooling),
    "adaptive_avg_pool3d": made_by(partial(operations.adaptive_pooling, reduce="average")),
    "adaptive_max_pool3d": made_by(partial(operations.adaptive_pooling, reduce="max")),
    "mean": made_by(partial(operations.global_pooling, reduce="average")),
    "amax": made_by(partial(operations.global_pooling, reduce="max")),
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), axes.reshaping),
    **dict.fromkeys(("flatten", "squeeze", "unsqueeze"), axes.axes_of_one),
    **dict.fromkeys(("expand", "expand_as"), axes.expansion),
    "linear": connection,
    "max": maximum,
    "maximum": maximum,
    "batch_norm": made_by(operations.batch_norm),
    "instance_norm": made_by(operations.instance_norm),
    "group_norm": made_by(operations.group_norm),
    "relu": made_by(partial(Nonlinearity, kind="relu")),
    "sigmoid": made_by(partial(Nonlinearity, kind="sigmoid")),
    "tanh": made_by(partial(Nonlinearity, kind="tanh")),
    "leaky_relu": made_by(operations.leaky_relu),
    "elu": made_by(operations.elu),
    "prelu": made_by(operations.prelu),
    "gelu": made_by(operations.gelu),
    "silu": silu,
    "softmax": made_by(operations.softmax),
    "cat": concatenation,
    "concat": concatenation,
    **dict.fromkeys(norm_parts.BEGIN, norm_parts.no_norm),
    "layer_norm": layer_norm,
    "permute": permutation,
    "add": addition,
    "sub": subtraction,
    "rsub": reversed_subtraction,
    "mul": multiplication,
    "div": division,
    "neg": negation,
    "argmax": largest_map,
    "upsample_nearest3d": partial(axes.resizing, method="nearest"),
    "_upsample_nearest_exact3d": partial(axes.resizing, method="nearest"),
    "upsample_trilinear3d": partial(axes.resizing, method="trilinear"),
    "slice": axes.slicing,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), axes.splitting),
    **dict.fromkeys(("pad", "constant_pad_nd"), axes.padding),
    "reflection_pad3d": axes.reflection,
    "replication_pad3d": axes.replication,
    "repeat": axes.repetition,
    **dict.fromkeys(DROPOUTS, dropout),
}

# Operators that may take arrays whose maps are the last axis: none of them looks at other voxels.
OF_MAPS_LAST = {
    *COPIES, *DROPOUTS, *norm_parts.BEGIN, "mean", "linear", "layer_norm", "permute", "add", "sub",
    "rsub", "mul", "div", "neg", "relu", "sigmoid", "tanh", "leaky_relu", "elu", "gelu", "silu",
    "softmax", "cat", "concat",
}  # fmt: skip


def _second(axes: Any) -> Any:
    """Return an axis, or several, of arrays whose maps are last, as those of (n, f, z, y, x)."""
    if isinstance(axes, list | tuple):
        return [_second(axis) for axis in axes]
    return MAPS_LAST[axes] if isinstance(axes, int) and -5 <= axes < 5 else axes


def read(operator: str, call: OperatorCall) -> object:
    """Read a call of a known operator, and return what its reader returns."""
    if call.is_last:
        if operator not in OF_MAPS_LAST:
            call.cannot_express(
                f"takes an array whose maps are the last axis; they are the second one here, and "
                f"{checks.LAYERS}"
            )
        given = {**call.arguments, "dim": _second(call.arguments.get("dim"))}
        call = replace(call, arguments=given)
    if norm_parts.is_part(operator, call):
        return norm_parts.read_part(operator, call)
    return read_by(OPERATORS[operator], call)
