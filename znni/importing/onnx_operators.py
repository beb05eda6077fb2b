"""The operators of ONNX, as calls of PyTorch's operators.

Most have PyTorch's arguments, with other names. The others have a function each here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import ZERO
from znni.importing import checks
from znni.importing.axis_operators import END
from znni.importing.calls import Value
from znni.importing.onnx_nodes import NodeCall
from znni.importing.onnx_sums_and_products import addition, error_function, multiplication
from znni.importing.operators import total

VOXELS = (2, 3, 4)  # the axes of (n, f, z, y, x)


@dataclass(frozen=True)
class Grouped:
    """An array whose groups of maps are one axis, as opsets before 18 write a group norm.

    Attributes:
        of: the name of the same array with maps.
        groups: the number of groups.
    """

    of: str
    groups: int


# A reader returns what is known of the result, if that is no array of the graph yet.
Reader: TypeAlias = Callable[[NodeCall], object]


@dataclass(frozen=True)
class Renamed:
    """A reader of an operator that PyTorch has, too.

    Attributes:
        operator: PyTorch's operator.
        inputs: PyTorch's names of the inputs after the first. Only ``other`` may be computed.
        defaults: values of arguments that the node does not give.
        integers: the names, in ONNX and PyTorch, of integers that are the second input or an
            attribute.
    """

    operator: str
    inputs: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    integers: tuple[str, str] | None = None

    def __call__(self, node: NodeCall) -> object:
        """Read a node."""
        return node.read_as(self.operator, **self.arguments(node))

    def arguments(self, node: NodeCall) -> dict[str, object]:
        """Return PyTorch's arguments of a node."""
        given = {**self.defaults, **node.arguments}
        for index, name in enumerate(self.inputs, 1):
            given[name] = node.input(index) if name == "other" else node.constant(index)
        if self.integers:
            given[self.integers[1]] = node.integers(1, self.integers[0])
        return given


@dataclass(frozen=True)
class Windowed(Renamed):
    """A reader of an operator that slides a window, and may pad by itself."""

    def arguments(self, node: NodeCall) -> dict[str, object]:
        """Return PyTorch's arguments of a node, with the padding that it has."""
        given = super().arguments(node)
        if "weight" in self.inputs:
            given["kernel_size"] = list(_kernels(node).shape[2:])
        automatic = node.attributes.get("auto_pad", "NOTSET")
        if automatic not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
            node.refuse(f"has auto_pad {automatic}; export it with pads")
        if automatic != "NOTSET":
            given["padding"] = _automatic(node, automatic, given)
        return given


def _automatic(node: NodeCall, automatic: str, given: Mapping[str, object]) -> object:
    """Return the padding that a node has by itself."""
    if automatic == "VALID":
        return 0
    window, step, spread = (
        checks.extents(node.origin, what, given.get(name, 1))
        for what, name in (("window", "kernel_size"), ("stride", "stride"), ("dilation",) * 2)
    )
    size = node.held.size
    reach = (window - 1) * spread + 1
    total = ((size.ceil_div(step) - 1) * step + reach - size).maximum(ZERO)
    less = total // 2
    sides = (less, total - less) if automatic == "SAME_UPPER" else (total - less, less)
    return [*sides[0], *sides[1]]


def _kernels(node: NodeCall) -> NDArray[np.generic]:
    """Return the weights of a convolution."""
    kernels, stated = node.constant(1), node.attributes.get("kernel_shape")
    if kernels is None or kernels.ndim != 5:
        shape = None if kernels is None else kernels.shape
        node.refuse(f"has weights of shape {shape}; give a 3D convolution")
    if stated not in (None, list(kernels.shape[2:])):
        node.refuse(f"has kernel_shape {stated} and weights {kernels.shape}")
    return kernels


def transposed_convolution(node: NodeCall) -> None:
    """Read ``ConvTranspose``."""
    if node.attributes.get("output_shape") is not None:
        node.refuse("has an output_shape; export it with output_padding instead")
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        node.refuse("has auto_pad; export it with pads instead")
    _kernels(node)
    Renamed("conv_transpose3d", ("weight", "bias"))(node)


def connection(node: NodeCall) -> None:
    """Read ``Gemm`` of a globally pooled value and constants: a fully connected layer."""
    if node.attributes.get("transA", 0):
        node.refuse("transposes its input; export it again")
    weight, bias = node.constant(1), node.constant(2)
    if weight is None or weight.ndim != 2:
        node.refuse("has no matrix of constants; export it again")
    factors = weight if node.attributes.get("transB", 0) else weight.T
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if bias is not None:
        bias = beta * checks.floats(node.origin, "bias", bias).reshape(-1)
        bias = bias.repeat(len(factors)) if bias.size == 1 else bias
    scaled = alpha * checks.floats(node.origin, "weight", factors)
    node.read_as("linear", weight=scaled, bias=bias)


def product(node: NodeCall) -> None:
    """Read ``MatMul`` by a matrix of constants: each map from all maps, which are the last axis."""
    factors = node.constant(1)
    if factors is None or factors.ndim != 2:
        node.refuse("multiplies by no matrix; export it again")
    node.read_as("linear", weight=factors.T)


def layer_norm(node: NodeCall) -> None:
    """Read ``LayerNormalization``."""
    shape = [node.held.maps] if node.attributes.get("axis", -1) in (-1, 4) else None
    weight, bias = node.constant(1), node.constant(2)
    node.read_as("layer_norm", normalized_shape=shape, weight=weight, bias=bias)


def maximum(node: NodeCall) -> None:
    """Read ``Max`` of two values."""
    if len(node.inputs) != 2:
        node.refuse(f"is of {len(node.inputs)} values; give it two")
    node.read_as("maximum", other=node.input(1))


def batch_norm(node: NodeCall) -> None:
    """Read ``BatchNormalization``."""
    names = ("weight", "bias", "running_mean", "running_var")
    training = node.attributes.get("training_mode", 0) or not node.attributes.get("is_test", 1)
    Renamed("batch_norm", names, {"training": training})(node)


def instance_norm(node: NodeCall) -> Grouped | None:
    """Read ``InstanceNormalization``, which may be of groups."""
    given = node.input(0)
    if isinstance(given, Grouped):
        node = node.of(Value(given.of))
    maps = node.held.maps
    groups = given.groups if isinstance(given, Grouped) else maps
    weight, bias = (
        None if one is None else one.repeat(maps // groups) for one in map(node.constant, (1, 2))
    )
    node.read_as("group_norm", num_groups=groups, weight=weight, bias=bias)
    return Grouped(node.result, groups) if isinstance(given, Grouped) else None


def group_norm(node: NodeCall) -> None:
    """Read ``GroupNormalization``, whose factors were those of groups before opset 21."""
    maps, groups = node.held.maps, node.attributes.get("num_groups")
    weight, bias = node.constant(1), node.constant(2)
    if node.opset < 21 and weight is not None and bias is not None:
        each = maps // max(1, groups or 1)
        weight, bias = np.repeat(weight, each), np.repeat(bias, each)
    node.read_as("group_norm", weight=weight, bias=bias)


def reshaping(node: NodeCall) -> Grouped | None:
    """Read ``Reshape`` of maps to groups, as before the norm of a group, and back.

    Globally pooled values may get another number of axes. A 0 keeps an axis.
    """
    given, axes = node.input(0), node.integers(1, "shape") or []
    if isinstance(given, Grouped):
        node = node.of(Value(given.of))
    grouped = len(axes) == 3 and axes[0] in (0, 1) and axes[1] > 0 and not node.held.is_pooled
    if grouped and not isinstance(given, Grouped) and node.held.maps % axes[1] == 0:
        return Grouped(node.read, axes[1])
    own = node.held.shape
    kept = [size if axis == 0 else axis for axis, size in zip(axes, own, strict=False)]
    node.read_as("reshape", shape=kept + axes[len(own) :])
    return None


def leaky_relu(node: NodeCall) -> None:
    """Read ``LeakyRelu``."""
    node.read_as("leaky_relu", negative_slope=node.attributes.get("alpha", 0.01))


def softmax(node: NodeCall) -> None:
    """Read ``Softmax``."""
    if node.opset < 13:
        node.refuse(
            f"is of opset {node.opset}, in which it runs over maps and voxels together; "
            f"export with opset 13 or newer"
        )
    Renamed("softmax", defaults={"dim": -1})(node)


def dropout(node: NodeCall) -> None:
    """Read ``Dropout``, which changes nothing in evaluation."""
    training = node.constant(2)
    is_on = training is not None and training.any()
    node.read_as("dropout", train=is_on or not node.attributes.get("is_test", 1))


def cast(node: NodeCall) -> None:
    """Read ``Cast`` of numbers that stay numbers in float32."""
    if node.attributes.get("to") != 1:
        node.refuse("changes the type of numbers; export it in float32")
    node.read_as("alias")


def concatenation(node: NodeCall) -> None:
    """Read ``Concat``."""
    node.read_as("cat", tensors=list(node.inputs))


def several_sums(node: NodeCall) -> None:
    """Read ``Sum`` of several values."""
    total(node, node.inputs)


def resizing(node: NodeCall) -> None:
    """Read ``Resize``, or ``Upsample`` of older versions."""
    mode = node.attributes.get("mode", "nearest")
    where = node.attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = node.attributes.get("nearest_mode", "round_prefer_floor")
    if node.opset < 11:
        where, rounding = "asymmetric", "floor"
    centred = where in ("half_pixel", "pytorch_half_pixel")
    repeats = (centred and rounding.startswith("round")) or (
        where in ("asymmetric", "tf_half_pixel_for_nn") and rounding == "floor"
    )
    aligned = where == "align_corners"  # which has an error of its own
    known = repeats if mode == "nearest" else mode == "linear" and centred
    odd = node.attributes.get("antialias", 0) or node.attributes.get("exclude_outside", 0)
    stretches = node.attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    if not aligned and (not known or odd or not stretches):
        node.refuse(
            f"resizes with mode {mode}, {where} and {rounding}; give nearest or linear, as "
            f"PyTorch does without align_corners"
        )
    operator = "upsample_nearest3d" if mode == "nearest" else "upsample_trilinear3d"
    node.read_as(operator, align_corners=aligned, **({} if aligned else _resized_to(node)))


def _resized_to(node: NodeCall) -> dict[str, object]:
    """Return the factors or the size of a resizing."""
    axes = node.attributes.get("axes") or list(range(5))
    old = node.opset < 11
    scales = node.constant(1 if old else 2)
    factors = node.attributes.get("scales") if scales is None else scales.tolist()
    sizes = None if old else node.integers(3, "sizes")
    for name, given, same_as in (
        ("scale_factors", factors, (1,) * 5),
        ("output_size", sizes, node.held.shape),
    ):
        if given:
            every = dict(enumerate(same_as)) | dict(zip(axes, given, strict=False))
            if len(axes) != len(given) or len(every) != 5 or (every[0], every[1]) != same_as[:2]:
                node.refuse(f"resizes axes {axes} by {given}; resize voxels only")
            return {name: [every[axis] for axis in VOXELS]}
    return {}


def slicing(node: NodeCall) -> None:
    """Read ``Slice``."""
    starts, ends = node.integers(1, "starts"), node.integers(2, "ends")
    if starts is None or ends is None:
        node.refuse("has no starts and ends; export it again")
    axes = node.integers(3, "axes") or list(range(len(starts)))
    steps = node.integers(4, "steps") or [1] * len(starts)
    if not starts or len({len(starts), len(ends), len(axes), len(steps)}) != 1:
        node.refuse(f"slices axes {axes} from {starts} to {ends}; export it again")
    last = len(axes) - 1
    for index, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps, strict=True)):
        made = node.result if index == last else node.tracer.fresh()
        part = replace(node, results=(made,))
        part.read_as("slice", dim=axis, start=start, end=min(end, END), step=step)
        node = node.of(Value(made))


def splitting(node: NodeCall) -> None:
    """Read ``Split`` along the maps."""
    parts = node.integers(1, "split")
    node.read_as("split", chunks=len(node.results), split_sizes=parts)


def padding(node: NodeCall) -> None:
    """Read ``Pad``; negative numbers of samples crop."""
    pads, axes = node.integers(1, "pads"), node.integers(3, "axes")
    axes = list(range(5)) if axes is None else [axis % 5 for axis in axes]
    if pads is None or len(pads) != 2 * len(axes):
        node.refuse(f"pads axes {axes} by {pads}; export it again")
    sides = dict.fromkeys(range(5), (0, 0))
    sides.update(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    if sides[0] != (0, 0) or sides[1] != (0, 0):
        node.refuse(f"pads axes {axes} by {pads}; pad voxels only")
    pad = [side for axis in reversed(VOXELS) for side in sides[axis]]
    constant = node.constant(2)
    value = node.attributes.get("value", 0) if constant is None else constant.any()
    node.read_as("pad", pad=pad, value=value)


def expansion(node: NodeCall) -> None:
    """Read ``Expand``, in which a 1 keeps an axis."""
    shape = node.integers(1, "shape") or []
    node.read_as("expand", size=[-1 if extent == 1 else extent for extent in shape])


OTHER = ("other",)
# fmt: off
ALIKE = (
    "ArgMax", "Elu", "Flatten", "Gelu", "Neg", "Relu", "Sigmoid", "Squeeze", "Tanh", "Unsqueeze",
)
# fmt: on
OPERATORS_OF_ONNX: Mapping[str, Reader] = {
    **{name: Renamed(name.lower()) for name in ALIKE},
    "Conv": Windowed("conv3d", ("weight", "bias")),
    "ConvTranspose": transposed_convolution,
    "MaxPool": Windowed("max_pool3d", defaults={"stride": 1}),
    "AveragePool": Windowed("avg_pool3d", defaults={"stride": 1, "count_include_pad": 0}),
    "GlobalAveragePool": Renamed("mean", defaults={"dim": VOXELS}),
    "GlobalMaxPool": Renamed("amax", defaults={"dim": VOXELS}),
    "ReduceMean": Renamed("mean", integers=("axes", "dim")),
    "ReduceMax": Renamed("amax", integers=("axes", "dim")),
    "ReduceL2": Renamed("linalg_vector_norm", integers=("axes", "dim")),
    "Pow": Renamed("pow", ("exponent",)),
    "Sqrt": Renamed("sqrt"),
    "Transpose": Renamed("permute"),
    "LayerNormalization": layer_norm,
    "MatMul": product,
    "Gemm": connection,
    "Max": maximum,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "Reshape": reshaping,
    "GroupNormalization": group_norm,
    "LeakyRelu": leaky_relu,
    "PRelu": Renamed("prelu", ("weight",)),
    "Erf": error_function,
    "Softmax": softmax,
    "Dropout": dropout,
    "Identity": Renamed("alias"),
    "Cast": cast,
    "Concat": concatenation,
    "Add": addition,
    "Sum": several_sums,
    "Sub": Renamed("sub", OTHER),
    "Mul": multiplication,
    "Div": Renamed("div", OTHER),
    "Resize": resizing,
    "Upsample": resizing,
    "Slice": slicing,
    "Split": splitting,
    "Pad": padding,
    "Tile": Renamed("repeat", integers=("repeats", "repeats")),
    "Expand": expansion,
}
