"""The operators of ONNX, as steps.

Each function here reads a call of one operator, and adds its steps to those of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
from znni.importing.steps import Affine, GlobalPooling, Nonlinearity
from znni.importing.tracing import END

TRAINING = "is in training mode; export the network in evaluation mode"


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


@dataclass(frozen=True)
class Grouped:
    """An array whose groups of maps are one axis, as opsets before 18 write a group norm.

    Attributes:
        of: the name of the same array with maps.
        groups: the number of groups.
    """

    of: str
    groups: int


@dataclass(frozen=True)
class Call(GraphCall):
    """A call of an operator.

    Attributes:
        opset: the version of the operators.
        attributes: its attributes by name.
        inputs: its inputs: ``Value``, constant arrays, or None for those that are left out.
    """

    opset: int
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...]

    def attribute(self, name: str, default: object = None) -> Any:
        """Return an attribute; text as str."""
        value = self.attributes.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def input(self, index: int) -> Any:
        """Return an input; None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def constant(self, index: int) -> NDArray[np.generic] | None:
        """Return an input that has to be constant; None if it is left out."""
        given = self.input(index)
        if given is not None and not isinstance(given, np.ndarray):
            checks.refuse(self.origin, f"computes its input {index + 1}; give it as a constant")
        return given

    def integers(self, index: int, attribute: str) -> list[int] | None:
        """Return integers that are a constant input, or an attribute in older versions."""
        given = self.constant(index)
        if given is None:
            stated = self.attribute(attribute)
            return None if stated is None else [int(number) for number in stated]
        if given.dtype.kind not in "iu" or given.ndim != 1:
            checks.refuse(self.origin, f"has {attribute} of {given.dtype}; give integers")
        return [int(number) for number in given]

    @property
    def first(self) -> object:
        """Its first input."""
        return self.input(0)


# A reader returns what is known of the result, if that is no array of the graph yet.
Reader: TypeAlias = Callable[[Call], PartOfGelu | Grouped | None]


def convolution(call: Call) -> None:
    """Read ``Conv``."""
    kernels = _kernels(call)
    stride, dilation = call.attribute("strides", 1), call.attribute("dilations", 1)
    call.add(
        checks.convolution(
            call.origin,
            kernels,
            call.constant(2),
            stride=stride,
            padding=_padding(call, kernels.shape[2:], stride, dilation),
            dilation=dilation,
            groups=call.attribute("group", 1),
        )
    )


def transposed_convolution(call: Call) -> None:
    """Read ``ConvTranspose``."""
    if call.attribute("output_shape") is not None:
        checks.refuse(call.origin, "has an output_shape; export it with output_padding instead")
    if call.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        checks.refuse(call.origin, "has auto_pad; export it with pads instead")
    call.add(
        checks.transposed_convolution(
            call.origin,
            _kernels(call),
            call.constant(2),
            stride=call.attribute("strides", 1),
            padding=call.attribute("pads", 0),
            output_padding=call.attribute("output_padding", 0),
            dilation=call.attribute("dilations", 1),
            groups=call.attribute("group", 1),
        )
    )


def _kernels(call: Call) -> NDArray[np.generic]:
    """Return the weights of a convolution."""
    kernels, stated = call.constant(1), call.attribute("kernel_shape")
    if kernels is None or kernels.ndim != 5:
        shape = None if kernels is None else kernels.shape
        checks.refuse(call.origin, f"has weights of shape {shape}; give a 3D convolution")
    if stated not in (None, list(kernels.shape[2:])):
        checks.refuse(call.origin, f"has kernel_shape {stated} and weights {kernels.shape}")
    return kernels


def _padding(call: Call, window: Any, stride: object, dilation: object) -> object:
    """Return a node's padding in the form that ``checks`` takes."""
    automatic = call.attribute("auto_pad", "NOTSET")
    if automatic in ("NOTSET", "VALID"):
        return call.attribute("pads", 0) if automatic == "NOTSET" else 0
    if automatic not in ("SAME_UPPER", "SAME_LOWER"):
        checks.refuse(call.origin, f"has auto_pad {automatic}; export it with pads")
    reach = (checks.extents(call.origin, "window", list(window)) - 1) * checks.extents(
        call.origin, "dilation", dilation
    ) + 1
    step = checks.extents(call.origin, "stride", stride)
    made = call.size.ceil_div(step)
    total = ((made - 1) * step + reach - call.size).maximum(Vec3(0, 0, 0))
    less = total // 2
    sides = (less, total - less) if automatic == "SAME_UPPER" else (total - less, less)
    return [*sides[0], *sides[1]]


def pooling(reduce: Literal["max", "average"]) -> Reader:
    """Return a function that reads ``MaxPool`` or ``AveragePool``."""

    def read(call: Call) -> None:
        window, stride = call.attribute("kernel_shape"), call.attribute("strides", 1)
        dilation = call.attribute("dilations", 1)
        call.add(
            checks.pooling(
                call.origin,
                window,
                stride=stride,
                reduce=reduce,
                padding=_padding(call, window, stride, dilation),
                dilation=dilation,
                ceil_mode=call.attribute("ceil_mode", 0),
                counts_padding=call.attribute("count_include_pad", 0),
            )
        )

    return read


def global_pooling(reduce: Literal["average", "max"]) -> Reader:
    """Return a function that reads ``GlobalAveragePool`` or ``GlobalMaxPool``."""

    def read(call: Call) -> None:
        call.add(GlobalPooling(call.origin, reduce))

    return read


def reduction(reduce: Literal["average", "max"]) -> Reader:
    """Return a function that reads ``ReduceMean`` or ``ReduceMax`` over all voxels."""

    def read(call: Call) -> None:
        call.add(checks.global_pooling(call.origin, call.integers(1, "axes"), reduce))

    return read


def connection(call: Call) -> None:
    """Read ``Gemm`` of a globally pooled value and constants: a fully connected layer."""
    if call.attribute("transA", 0):
        checks.refuse(call.origin, "transposes its input; export it again")
    weight, bias = call.constant(1), call.constant(2)
    if weight is None or weight.ndim != 2:
        checks.refuse(call.origin, "has no matrix of constants; export it again")
    factors = weight if call.attribute("transB", 0) else weight.T
    alpha, beta = (float(call.attribute(name, 1.0)) for name in ("alpha", "beta"))
    shifts = None
    if bias is not None:
        shifts = beta * checks.values(call.origin, "bias", bias).reshape(-1)
        shifts = shifts.repeat(len(factors)) if shifts.size == 1 else shifts
    scaled = alpha * checks.values(call.origin, "weight", factors)
    call.tracer.connected(call.origin, call.read, scaled, shifts, call.result)


def maximum(call: Call) -> None:
    """Read ``Max`` of two values."""
    if len(call.inputs) != 2:
        checks.refuse(call.origin, f"is of {len(call.inputs)} values; give it two")
    pair = call.read, call.named(call.input(1))
    call.tracer.larger(call.origin, pair, call.result)


def batch_norm(call: Call) -> None:
    """Read ``BatchNormalization``."""
    if call.attribute("training_mode", 0) or not call.attribute("is_test", 1):
        checks.refuse(call.origin, TRAINING)
    scale, shift, mean, variance = map(call.constant, range(1, 5))
    epsilon = call.attribute("epsilon", 1e-5)
    call.add(checks.batch_norm(call.origin, scale, shift, mean, variance, epsilon))


def instance_norm(call: Call) -> Grouped | None:
    """Read ``InstanceNormalization``, which may be of groups."""
    given, epsilon = call.input(0), call.attribute("epsilon", 1e-5)
    read = given.of if isinstance(given, Grouped) else call.read
    maps = call.tracer.values[read].maps
    groups = given.groups if isinstance(given, Grouped) else maps
    scale, shift = (
        None if one is None else one.repeat(maps // groups) for one in map(call.constant, (1, 2))
    )
    norm = checks.normalization(call.origin, groups, scale, shift, epsilon, maps)
    call.tracer.add(norm, (read,), call.result)
    return Grouped(call.result, groups) if isinstance(given, Grouped) else None


def reshaping(call: Call) -> Grouped | None:
    """Read ``Reshape`` of maps to groups, as before the norm of a group, and back.

    Globally pooled values may get another number of axes. A 0 keeps an axis.
    """
    given, axes = call.input(0), call.integers(1, "shape") or []
    name = given.of if isinstance(given, Grouped) else call.read
    taken = call.tracer.values[name]
    grouped = len(axes) == 3 and axes[0] in (0, 1) and axes[1] > 0 and not taken.is_pooled
    if grouped and not isinstance(given, Grouped) and taken.maps % axes[1] == 0:
        return Grouped(name, axes[1])
    own = (1, taken.maps, *taken.size)
    kept = [size if axis == 0 else axis for axis, size in zip(axes, own, strict=False)]
    call.tracer.reshaped(call.origin, name, kept + axes[len(own) :], call.result)
    return None


def group_norm(call: Call) -> None:
    """Read ``GroupNormalization``, whose factors were those of groups before opset 21."""
    maps, groups = call.maps, call.attribute("num_groups")
    scale, shift = call.constant(1), call.constant(2)
    if call.opset < 21 and scale is not None and shift is not None:
        each = maps // max(1, int(groups))
        scale, shift = np.repeat(scale, each), np.repeat(shift, each)
    epsilon = call.attribute("epsilon", 1e-5)
    call.add(checks.normalization(call.origin, groups, scale, shift, epsilon, maps))


def leaky_relu(call: Call) -> None:
    """Read ``LeakyRelu``."""
    call.add(checks.leaky_relu(call.origin, call.attribute("alpha", 0.01)))


def elu(call: Call) -> None:
    """Read ``Elu``."""
    call.add(checks.elu(call.origin, call.attribute("alpha", 1.0)))


def prelu(call: Call) -> None:
    """Read ``PRelu``, whose slopes are (maps, 1, 1, 1)."""
    call.add(checks.prelu(call.origin, call.constant(1), call.maps))


def gelu(call: Call) -> None:
    """Read ``Gelu``."""
    call.add(checks.gelu(call.origin, call.attribute("approximate", "none")))


def softmax(call: Call) -> None:
    """Read ``Softmax``."""
    if call.opset < 13:
        checks.refuse(
            call.origin,
            f"is of opset {call.opset}, in which it runs over maps and voxels together; "
            f"export with opset 13 or newer",
        )
    call.add(checks.softmax(call.origin, call.attribute("axis", -1)))


def dropout(call: Call) -> None:
    """Read ``Dropout``, which changes nothing in evaluation."""
    training = call.constant(2)
    if (training is not None and training.any()) or not call.attribute("is_test", 1):
        checks.refuse(call.origin, TRAINING)
    same(call)


def cast(call: Call) -> None:
    """Read ``Cast`` of numbers that stay numbers in float32."""
    if call.attribute("to") != 1:
        checks.refuse(call.origin, "changes the type of numbers; export it in float32")
    same(call)


def concatenation(call: Call) -> None:
    """Read ``Concat``."""
    reads = [call.named(given) for given in call.inputs]
    call.tracer.concatenated(call.origin, reads, call.attribute("axis"), call.result)


def several_sums(call: Call) -> None:
    """Read ``Sum`` of several values."""
    call.tracer.added(call.origin, [call.named(given) for given in call.inputs], call.result)


def addition(call: Call) -> PartOfGelu | None:
    """Read ``Add`` of two values, or of a value and a constant."""
    first, second = _constant_last(call)
    if isinstance(first, PartOfGelu):
        if first == PartOfGelu(first.of) and _is_number(second, 1.0):
            return replace(first, plus_one=True)
        checks.refuse(call.origin, f"is part of no gelu; {checks.LAYERS}")
    read = call.named(first)
    if isinstance(second, np.ndarray):
        call.tracer.scaled(call.origin, read, call.result, shift=second)
    else:
        call.tracer.added(call.origin, (read, call.named(second)), call.result)
    return None


def subtraction(call: Call) -> None:
    """Read ``Sub`` of two values, or of a value and a constant."""
    first, second = call.input(0), call.input(1)
    if isinstance(second, np.ndarray):
        call.tracer.scaled(call.origin, call.read, call.result, shift=np.asarray(-second))
        return
    read = call.named(second)
    if isinstance(first, np.ndarray):
        call.tracer.scaled(call.origin, read, call.result, scale=-1.0, shift=first)
        return
    negative = call.tracer.fresh()
    call.tracer.scaled(call.origin, read, negative, scale=-1.0)
    call.tracer.added(call.origin, (call.read, negative), call.result)


def multiplication(call: Call) -> PartOfGelu | None:
    """Read ``Mul`` of two values, or of a value and a constant."""
    first, second = _constant_last(call)
    if isinstance(first, PartOfGelu):
        return _gelu(call, first, second)
    read = call.named(first)
    if isinstance(second, np.ndarray):
        call.tracer.scaled(call.origin, read, call.result, scale=second)
    else:
        call.tracer.multiplied(call.origin, (read, call.named(second)), call.result)
    return None


def division(call: Call) -> None:
    """Read ``Div`` by a constant."""
    divisor = call.input(1)
    if not isinstance(divisor, np.ndarray):
        checks.refuse(call.origin, "divides by a value; divide by constants only")
    if not divisor.all():
        checks.refuse(call.origin, "divides by zero; export it again")
    scale = 1 / checks.values(call.origin, "divisor", divisor)
    call.tracer.scaled(call.origin, call.read, call.result, scale=scale)


def error_function(call: Call) -> PartOfGelu:
    """Read ``Erf``, which has to be part of a gelu."""
    of = _unscaled(call, call.read, math.sqrt(0.5))
    if of is None:
        checks.refuse(call.origin, f"is part of no gelu; {checks.LAYERS}")
    return PartOfGelu(of)


def _unscaled(call: Call, name: str, factor: float) -> str | None:
    """Return the name of the value that a value is a factor times of; None if it is not."""
    step = call.tracer.maker(name)
    if step is None or not isinstance(step.operation, Affine):
        return None
    scale, shift = step.operation.scale, step.operation.shift
    scaled = np.allclose(scale, factor, rtol=1e-6) and not shift.any()
    return step.reads[0] if scaled else None


def _gelu(call: Call, part: PartOfGelu, other: object) -> PartOfGelu | None:
    """Read a product with a part of a gelu."""
    if _is_number(other, 0.5) and not part.halved:
        part = replace(part, halved=True)
    elif isinstance(other, Value) and not part.times_x:
        halved = _unscaled(call, other.name, 0.5) == part.of
        if not (other.name == part.of or (halved and not part.halved)):
            checks.refuse(call.origin, f"is part of no gelu; {checks.LAYERS}")
        part = replace(part, times_x=True, halved=part.halved or halved)
    else:
        checks.refuse(call.origin, f"is part of no gelu; {checks.LAYERS}")
    if part.plus_one and part.times_x and part.halved:
        call.tracer.add(Nonlinearity(call.origin, "gelu"), (part.of,), call.result)
        return None
    return part


def _constant_last(call: Call) -> tuple[Any, Any]:
    """Return two inputs; parts of a gelu come first, and constants last."""
    first, second = call.input(0), call.input(1)
    swap = isinstance(first, np.ndarray) or isinstance(second, PartOfGelu)
    return (second, first) if swap else (first, second)


def _is_number(given: object, number: float) -> bool:
    return isinstance(given, np.ndarray) and given.size == 1 and float(given.item()) == number


def resizing(call: Call) -> None:
    """Read ``Resize``, or ``Upsample`` of older versions."""
    mode = call.attribute("mode", "nearest")
    where = call.attribute("coordinate_transformation_mode", "half_pixel")
    rounding = call.attribute("nearest_mode", "round_prefer_floor")
    if call.opset < 11:
        where, rounding = "asymmetric", "floor"
    if where == "align_corners":
        checks.refuse(
            call.origin,
            f"has align_corners, and so {checks.WINDOWS}; train it with align_corners=False, "
            f"{checks.AS_IT_IS}",
        )
    centred = where in ("half_pixel", "pytorch_half_pixel")
    repeats = (centred and rounding.startswith("round")) or (
        where in ("asymmetric", "tf_half_pixel_for_nn") and rounding == "floor"
    )
    known = repeats if mode == "nearest" else mode == "linear" and centred
    odd = call.attribute("antialias", 0) or call.attribute("exclude_outside", 0)
    if not known or odd or call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        checks.refuse(
            call.origin,
            f"resizes with mode {mode}, {where} and {rounding}; give nearest or linear, as "
            f"PyTorch does without align_corners",
        )
    by, size = _resized_to(call)
    kind: Literal["nearest", "trilinear"] = "nearest" if mode == "nearest" else "trilinear"
    call.tracer.resized(call.origin, call.read, call.result, kind, factors=by, size=size)


def _resized_to(call: Call) -> tuple[list[float] | None, Vec3 | None]:
    """Return the factors or the size of a resizing."""
    held = (1, call.maps, *call.size)
    axes = call.attribute("axes") or list(range(5))
    old = call.opset < 11
    scales = call.constant(1 if old else 2)
    factors = call.attribute("scales") if scales is None else scales.tolist()
    sizes = None if old else call.integers(3, "sizes")
    for given, same_as in ((factors, (1,) * 5), (sizes, held)):
        if not given:
            continue
        every = dict(zip(range(5), same_as, strict=True)) | dict(zip(axes, given, strict=False))
        if len(axes) != len(given) or len(every) != 5 or [every[0], every[1]] != [*same_as[:2]]:
            checks.refuse(call.origin, f"resizes axes {axes} by {given}; resize voxels only")
        if given is sizes:
            return None, checks.extents(call.origin, "size", [every[axis] for axis in (2, 3, 4)])
        return [checks.number(call.origin, "factor", every[axis]) for axis in (2, 3, 4)], None
    return None, None


def slicing(call: Call) -> None:
    """Read ``Slice``."""
    starts, ends = call.integers(1, "starts"), call.integers(2, "ends")
    axes, steps = call.integers(3, "axes"), call.integers(4, "steps")
    if starts is None or ends is None:
        checks.refuse(call.origin, "has no starts and ends; export it again")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not starts or len({len(starts), len(ends), len(axes), len(steps)}) != 1:
        checks.refuse(call.origin, f"slices axes {axes} from {starts} to {ends}; export it again")
    read = call.read
    for index, (axis, start, stop, step) in enumerate(zip(axes, starts, ends, steps, strict=True)):
        made = call.result if index == len(axes) - 1 else call.tracer.fresh()
        last = min(stop, END)
        call.tracer.sliced(call.origin, read, axis, start, last, step, made)
        read = made


def splitting(call: Call) -> None:
    """Read ``Split`` along the maps."""
    axis, maps = call.attribute("axis", 0), call.maps
    if axis not in (1, -4):
        checks.refuse(call.origin, f"splits axis {axis}; only maps are split here: axis 1")
    parts = call.integers(1, "split")
    if parts is None:
        step = -(-maps // len(call.results))
        parts = [min(step, maps - start) for start in range(0, maps, step)]
    if len(parts) != len(call.results):
        checks.refuse(call.origin, f"gives {len(call.results)} parts of {parts}; export it again")
    start = 0
    for part, result in zip(parts, call.results, strict=True):
        stop = start + checks.count(call.origin, "split", part)
        call.tracer.sliced(call.origin, call.read, 1, start, stop, 1, result)
        start = stop


def padding(call: Call) -> None:
    """Read ``Pad``; negative numbers of samples crop."""
    pads, axes = call.integers(1, "pads"), call.integers(3, "axes")
    axes = list(range(5)) if axes is None else [axis % 5 for axis in axes]
    if pads is None or len(pads) != 2 * len(axes):
        checks.refuse(call.origin, f"pads axes {axes} by {pads}; export it again")
    sides = dict.fromkeys(range(5), (0, 0))
    sides.update(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    if sides[0] != (0, 0) or sides[1] != (0, 0):
        checks.refuse(call.origin, f"pads axes {axes} by {pads}; pad voxels only")
    before, after = (Vec3(*(sides[axis][end] for axis in (2, 3, 4))) for end in (0, 1))
    value = call.constant(2)
    constant = call.attribute("mode", "constant") == "constant"
    filled = call.attribute("value", 0) if value is None else value.any()
    zeros = constant and not filled
    call.tracer.padded(call.origin, call.read, before, after, call.result, zeros=zeros)


def repetition(call: Call) -> None:
    """Read ``Tile`` of maps."""
    times = call.integers(1, "repeats")
    if times is None or len(times) != 5 or [times[0], *times[2:]] != [1] * 4:
        checks.refuse(call.origin, f"repeats axes {times}; only maps are repeated here")
    count = checks.count(call.origin, "repeats", times[1])
    call.tracer.repeated(call.origin, call.read, call.result, count)


def expansion(call: Call) -> None:
    """Read ``Expand``, which may repeat a single map."""
    shape = call.integers(1, "shape") or []
    held = [1, call.maps, *call.size]
    is_pooled = call.tracer.values[call.read].is_pooled
    wanted = [1] * (5 - len(shape)) + shape
    fits = len(wanted) == 5 and all(
        new in (1, old) or (old == 1 and new > 1 and (axis == 1 or (axis > 1 and is_pooled)))
        for axis, (old, new) in enumerate(zip(held, wanted, strict=True))
    )
    if not fits:
        checks.refuse(call.origin, f"expands to {shape}; only maps are repeated here")
    if wanted[1] in (1, held[1]):
        same(call)
    else:
        call.tracer.repeated(call.origin, call.read, call.result, wanted[1])


OPERATORS: Mapping[str, Reader] = {
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "MaxPool": pooling("max"),
    "AveragePool": pooling("average"),
    "GlobalAveragePool": global_pooling("average"),
    "GlobalMaxPool": global_pooling("max"),
    "ReduceMean": reduction("average"),
    "ReduceMax": reduction("max"),
    "Flatten": axes_of_one,
    "Squeeze": axes_of_one,
    "Unsqueeze": axes_of_one,
    "Gemm": connection,
    "Max": maximum,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "Reshape": reshaping,
    "GroupNormalization": group_norm,
    "Relu": plain("relu"),
    "Sigmoid": plain("sigmoid"),
    "Tanh": plain("tanh"),
    "LeakyRelu": leaky_relu,
    "Elu": elu,
    "PRelu": prelu,
    "Gelu": gelu,
    "Erf": error_function,
    "Softmax": softmax,
    "Dropout": dropout,
    "Identity": same,
    "Cast": cast,
    "Concat": concatenation,
    "Add": addition,
    "Sum": several_sums,
    "Sub": subtraction,
    "Mul": multiplication,
    "Div": division,
    "Neg": negation,
    "ArgMax": largest_map,
    "Resize": resizing,
    "Upsample": resizing,
    "Slice": slicing,
    "Split": splitting,
    "Pad": padding,
    "Tile": repetition,
    "Expand": expansion,
}
