"""The operators of PyTorch's exported programs, as steps.

Each function here reads a call of one operator, and adds its steps to those of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from znni.core.shapes import Vec3
from znni.importing import checks
from znni.importing.calls import (
    GraphCall,
    Value,
    axes_of_one,
    largest_map,
    negation,
    plain,
    same,
)
from znni.importing.steps import GlobalPooling, Nonlinearity
from znni.importing.tracing import END
from znni.network.layer_geometry import ONE

TRAINING = "is in training mode, in which it computes something else; call eval() before exporting"


@dataclass(frozen=True)
class Call(GraphCall):
    """A call of an operator.

    Attributes:
        arguments: its arguments by name: Python values, constant arrays, or ``Value``.
    """

    arguments: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or a default if there is none."""
        return self.arguments.get(name, default)

    @property
    def first(self) -> object:
        """Its first argument."""
        return next(iter(self.arguments.values()), None)


Reader: TypeAlias = Callable[[Call], None]


def convolution(call: Call) -> None:
    """Read ``conv3d``."""
    weight, bias = call.get("weight"), call.get("bias")
    call.add(
        checks.convolution(
            call.origin,
            weight,
            bias,
            stride=call.get("stride", 1),
            padding=call.get("padding", 0),
            dilation=call.get("dilation", 1),
            groups=call.get("groups", 1),
        )
    )


def transposed_convolution(call: Call) -> None:
    """Read ``conv_transpose3d``."""
    call.add(
        checks.transposed_convolution(
            call.origin,
            call.get("weight"),
            call.get("bias"),
            stride=call.get("stride", 1),
            padding=call.get("padding", 0),
            output_padding=call.get("output_padding", 0),
            dilation=call.get("dilation", 1),
            groups=call.get("groups", 1),
        )
    )


def max_pooling(call: Call) -> None:
    """Read ``max_pool3d``."""
    call.add(
        checks.pooling(
            call.origin,
            call.get("kernel_size"),
            stride=call.get("stride"),
            padding=call.get("padding", 0),
            dilation=call.get("dilation", 1),
            ceil_mode=call.get("ceil_mode", False),
        )
    )


def average_pooling(call: Call) -> None:
    """Read ``avg_pool3d``."""
    if call.get("divisor_override") is not None:
        checks.refuse(call.origin, "has a divisor_override; give it none")
    call.add(
        checks.pooling(
            call.origin,
            call.get("kernel_size"),
            stride=call.get("stride"),
            reduce="average",
            padding=call.get("padding", 0),
            ceil_mode=call.get("ceil_mode", False),
            counts_padding=call.get("count_include_pad", True),
        )
    )


def adaptive_pooling(reduce: Literal["average", "max"]) -> Reader:
    """Return a function that reads ``adaptive_avg_pool3d`` or ``adaptive_max_pool3d``."""

    def read(call: Call) -> None:
        size = checks.extents(call.origin, "output_size", call.get("output_size"))
        if size != ONE:
            checks.refuse(call.origin, f"pools to {size}; only a whole window is pooled here, to 1")
        call.tracer.add(GlobalPooling(call.origin, reduce), (call.read,), call.results[0])

    return read


def reduction(reduce: Literal["average", "max"]) -> Reader:
    """Return a function that reads ``mean`` or ``amax`` over all voxels."""

    def read(call: Call) -> None:
        call.add(checks.global_pooling(call.origin, call.get("dim"), reduce))

    return read


def reshaping(call: Call) -> None:
    """Read ``view`` and ``reshape`` of globally pooled values."""
    axes = call.get("size", call.get("shape"))
    axes = axes if isinstance(axes, list) else [axes]
    call.tracer.reshaped(call.origin, call.read, axes, call.result)


def expansion(call: Call) -> None:
    """Read ``expand``, which may repeat a single map, or the sample of a globally pooled value."""
    read, axes = call.tracer.values[call.read], call.get("size")
    if isinstance(other := call.get("other"), Value):  # expand_as
        like = call.tracer.values[other.name]
        axes = [1, like.maps, *like.size]
    held = (1, read.maps, *read.size)
    new = [1, *axes[-4:]] if isinstance(axes, list) and len(axes) >= 4 else []
    fits = len(new) == 5 and all(
        wanted in (-1, own) or (own == 1 and (axis == 1 or read.is_pooled))
        for axis, (own, wanted) in enumerate(zip(held, new, strict=True))
    )
    if not fits:
        checks.refuse(call.origin, f"expands {held} to {axes}; only maps are repeated here")
    if new[1] in (-1, read.maps):
        same(call)
    else:
        call.tracer.repeated(call.origin, call.read, call.result, new[1])


def connection(call: Call) -> None:
    """Read ``linear``."""
    weight, bias = call.get("weight"), call.get("bias")
    call.tracer.connected(call.origin, call.read, weight, bias, call.result)


def maximum(call: Call) -> None:
    """Read ``maximum``, and ``max`` of two values."""
    if "other" not in call.arguments:
        checks.refuse(call.origin, "is over an axis or all values; use amax over all voxels")
    pair = call.read, call.named(call.get("other"))
    call.tracer.larger(call.origin, pair, call.result)


def instance_norm(call: Call) -> None:
    """Read ``instance_norm``; with running statistics it is a batch norm."""
    if call.get("use_input_stats") is False:
        batch_norm(call)
        return
    if call.get("running_mean") is not None:
        checks.refuse(call.origin, TRAINING)
    weight, bias, eps = map(call.get, ("weight", "bias", "eps"))
    call.add(checks.normalization(call.origin, call.maps, weight, bias, eps, call.maps))


def group_norm(call: Call) -> None:
    """Read ``group_norm``."""
    groups, weight, bias, eps = map(call.get, ("num_groups", "weight", "bias", "eps"))
    call.add(checks.normalization(call.origin, groups, weight, bias, eps, call.maps))


def batch_norm(call: Call) -> None:
    """Read ``batch_norm``, or an ``instance_norm`` that uses running statistics."""
    if call.get("training") and call.get("running_mean") is not None:
        checks.refuse(call.origin, TRAINING)
    names = ("weight", "bias", "running_mean", "running_var", "eps")
    call.add(checks.batch_norm(call.origin, *map(call.get, names)))


def leaky_relu(call: Call) -> None:
    """Read ``leaky_relu``."""
    call.add(checks.leaky_relu(call.origin, call.get("negative_slope")))


def elu(call: Call) -> None:
    """Read ``elu``."""
    call.add(checks.elu(call.origin, *map(call.get, ("alpha", "scale", "input_scale"))))


def prelu(call: Call) -> None:
    """Read ``prelu``."""
    call.add(checks.prelu(call.origin, call.get("weight"), call.maps))


def gelu(call: Call) -> None:
    """Read ``gelu``."""
    call.add(checks.gelu(call.origin, call.get("approximate")))


def silu(call: Call) -> None:
    """Read ``silu``: a value times its own sigmoid."""
    gate = call.tracer.fresh()
    call.tracer.add(Nonlinearity(call.origin, "sigmoid"), (call.read,), gate)
    call.tracer.multiplied(call.origin, (call.read, gate), call.result)


def softmax(call: Call) -> None:
    """Read ``softmax``."""
    if call.get("dtype") is not None:
        checks.refuse(call.origin, "changes the type of numbers; export it in float32")
    call.add(checks.softmax(call.origin, call.get("dim")))


def dropout(call: Call) -> None:
    """Read a dropout, which changes nothing in evaluation."""
    if call.get("train") and call.get("p") != 0:
        checks.refuse(call.origin, TRAINING)
    same(call)


def concatenation(call: Call) -> None:
    """Read ``cat``."""
    given = call.get("tensors")
    reads = [call.named(each) for each in (given if isinstance(given, list) else [given])]
    call.tracer.concatenated(call.origin, reads, call.get("dim", 0), call.result)


def addition(call: Call) -> None:
    """Read ``add``."""
    _sum(call, call.get("self"), call.get("other"), 1.0, call.get("alpha", 1))


def subtraction(call: Call) -> None:
    """Read ``sub``."""
    alpha = checks.number(call.origin, "alpha", call.get("alpha", 1))
    _sum(call, call.get("self"), call.get("other"), 1.0, -alpha)


def reversed_subtraction(call: Call) -> None:
    """Read ``rsub``."""
    alpha = checks.number(call.origin, "alpha", call.get("alpha", 1))
    _sum(call, call.get("self"), call.get("other"), -alpha, 1.0)


def _sum(call: Call, first: Any, second: Any, factor: float, other_factor: object) -> None:
    """Read a sum of two values with factors; one may be a constant."""
    origin, other = call.origin, checks.number(call.origin, "alpha", other_factor)
    if isinstance(second, Value) and not isinstance(first, Value):
        first, second, factor, other = second, first, other, factor
    read = call.named(first)
    if not isinstance(second, Value):
        shift = other * checks.per_map(origin, second, call.tracer.values[read].maps)
        shifts = shift.reshape(-1, 1, 1, 1)
        call.tracer.scaled(origin, read, call.result, scale=factor, shift=shifts)
        return
    pair = [_times(call, read, factor), _times(call, second.name, other)]
    call.tracer.added(origin, pair, call.result)


def _times(call: Call, name: str, factor: float) -> str:
    """Return the name of a value times a factor."""
    if factor == 1:
        return name
    scaled = call.tracer.fresh()
    call.tracer.scaled(call.origin, name, scaled, scale=factor)
    return scaled


def multiplication(call: Call) -> None:
    """Read ``mul``."""
    first, second = call.get("self"), call.get("other")
    if isinstance(second, Value) and not isinstance(first, Value):
        first, second = second, first
    read = call.named(first)
    if isinstance(second, Value):
        call.tracer.multiplied(call.origin, (read, second.name), call.result)
    else:
        call.tracer.scaled(call.origin, read, call.result, scale=second)


def division(call: Call) -> None:
    """Read ``div`` by a constant."""
    if isinstance(call.get("other"), Value) or call.get("rounding_mode") is not None:
        checks.refuse(call.origin, "divides by a value, or rounds; divide by constants only")
    divisor = checks.per_map(call.origin, call.get("other"), call.maps)
    if not divisor.all():
        checks.refuse(call.origin, "divides by zero; export it again")
    scale = (1 / divisor).reshape(-1, 1, 1, 1)
    call.tracer.scaled(call.origin, call.read, call.result, scale=scale)


def nearest(call: Call) -> None:
    """Read ``upsample_nearest3d``, which is the same for both ways of rounding."""
    factors, size = _resizing(call)
    call.tracer.resized(call.origin, call.read, call.result, "nearest", factors=factors, size=size)


def trilinear(call: Call) -> None:
    """Read ``upsample_trilinear3d``."""
    if call.get("align_corners"):
        checks.refuse(
            call.origin,
            f"has align_corners, and so {checks.WINDOWS}; train it with align_corners=False, "
            f"{checks.AS_IT_IS}",
        )
    factors, size = _resizing(call)
    call.tracer.resized(
        call.origin, call.read, call.result, "trilinear", factors=factors, size=size
    )


def _resizing(call: Call) -> tuple[list[float] | None, Vec3 | None]:
    """Return the factors or the size of a resizing."""
    factors = call.get("scale_factors")
    if factors is None and call.get("scales_d") is not None:
        factors = [call.get(f"scales_{axis}") for axis in "dhw"]
    if factors is not None:
        return [checks.number(call.origin, "factor", factor) for factor in factors], None
    if call.get("output_size") is None:
        return None, None
    return None, checks.extents(call.origin, "size", call.get("output_size"))


def slicing(call: Call) -> None:
    """Read ``slice``."""
    bounds = [call.get("dim", 0), call.get("start") or 0, call.get("end"), call.get("step", 1)]
    axis, start, stop, step = (
        END if bound is None else checks.integer(call.origin, "bounds", bound) for bound in bounds
    )
    call.tracer.sliced(call.origin, call.read, axis, start, stop, step, call.result)


def splitting(call: Call) -> None:
    """Read ``split``, ``split_with_sizes`` and ``chunk`` along the maps."""
    origin, maps = call.origin, call.maps
    if call.get("dim", 0) not in (1, -4):
        checks.refuse(origin, f"splits axis {call.get('dim', 0)}; only maps are split here: axis 1")
    chunks, size = call.get("chunks"), call.get("split_size")
    sizes = call.get("split_sizes")
    if chunks is not None:
        size = -(-maps // checks.count(origin, "chunks", chunks))
    if sizes is None:
        step = checks.count(origin, "split_size", size)
        sizes = [min(step, maps - start) for start in range(0, maps, step)]
    if len(sizes) != len(call.results):
        checks.refuse(origin, f"gives {len(call.results)} parts of {sizes}; export it again")
    start = 0
    for part, result in zip(sizes, call.results, strict=True):
        stop = start + checks.count(origin, "split_sizes", part)
        call.tracer.sliced(origin, call.read, 1, start, stop, 1, result)
        start = stop


def padding(call: Call) -> None:
    """Read ``pad``; negative numbers of samples crop."""
    given = [checks.integer(call.origin, "padding", side) for side in call.get("pad") or []]
    if len(given) % 2 or len(given) > 6:
        checks.refuse(call.origin, f"pads {given}; only the three axes of voxels are padded here")
    given += [0] * (6 - len(given))  # the last axis comes first
    before, after = Vec3(*given[4::-2]), Vec3(*given[5::-2])
    constant = call.get("mode", "constant") == "constant"
    zeros = constant and (call.get("value") or 0) == 0
    call.tracer.padded(call.origin, call.read, before, after, call.result, zeros=zeros)


def repetition(call: Call) -> None:
    """Read ``repeat`` of maps."""
    times = call.get("repeats")
    if not isinstance(times, list) or len(times) != 5 or [times[0], *times[2:]] != [1] * 4:
        checks.refuse(call.origin, f"repeats axes {times}; only maps are repeated here")
    count = checks.count(call.origin, "repeats", times[1])
    call.tracer.repeated(call.origin, call.read, call.result, count)


# Operators that change nothing, of constants too.
COPIES = ("alias", "clone", "contiguous", "detach", "lift_fresh_copy")
OPERATORS: Mapping[str, Reader] = {
    **dict.fromkeys(COPIES, same),
    "conv3d": convolution,
    "conv_transpose3d": transposed_convolution,
    "max_pool3d": max_pooling,
    "avg_pool3d": average_pooling,
    "adaptive_avg_pool3d": adaptive_pooling("average"),
    "adaptive_max_pool3d": adaptive_pooling("max"),
    "mean": reduction("average"),
    "amax": reduction("max"),
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), reshaping),
    **dict.fromkeys(("flatten", "squeeze", "unsqueeze"), axes_of_one),
    **dict.fromkeys(("expand", "expand_as"), expansion),
    "linear": connection,
    "max": maximum,
    "maximum": maximum,
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "group_norm": group_norm,
    "relu": plain("relu"),
    "sigmoid": plain("sigmoid"),
    "tanh": plain("tanh"),
    "leaky_relu": leaky_relu,
    "elu": elu,
    "prelu": prelu,
    "gelu": gelu,
    "silu": silu,
    "softmax": softmax,
    "cat": concatenation,
    "concat": concatenation,
    "add": addition,
    "sub": subtraction,
    "rsub": reversed_subtraction,
    "mul": multiplication,
    "div": division,
    "neg": negation,
    "argmax": largest_map,
    "upsample_nearest3d": nearest,
    "_upsample_nearest_exact3d": nearest,
    "upsample_trilinear3d": trilinear,
    "slice": slicing,
    "split": splitting,
    "split_with_sizes": splitting,
    "chunk": splitting,
    "pad": padding,
    "constant_pad_nd": padding,
    "repeat": repetition,
    "dropout": dropout,
    "feature_dropout": dropout,
    "alpha_dropout": dropout,
    "feature_alpha_dropout": dropout,
}
