"""The entries of a network file's layers, and the layers that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, PlainValidator, model_validator

from znni.core.shapes import Vec3
from znni.core.yaml_file import LARGEST, Count, Entry, is_count
from znni.network.activations import LEAKY_SLOPE
from znni.network.layer_geometry import NO_PADDING, ZERO
from znni.network.layers import (
    Activation,
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    GlobalPool,
    Layer,
    Maximum,
    Model,
    Multiply,
    Normalize,
    Padding,
    Pool,
    Upsample,
)
from znni.network.model_files import model_layer
from znni.network.normalization import EPS

FLOAT32_MAX = (2 - 2**-23) * 2.0**127

# Reasons why options of other libraries' layers are errors.
FOLDED = (
    "fold its scale and shift into the convolution's kernels and biases and leave it out, or give "
    "an affine layer"
)


def _is_margin(value: object) -> bool:
    return is_count(value) or (value == 0 and isinstance(value, int) and value is not False)


def _three(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value] * 3


def extents(value: object) -> Vec3:
    """Return three positive extents from ``3`` or ``[1, 5, 5]``."""
    three = _three(value)
    if len(three) != 3 or not all(map(is_count, three)):
        raise ValueError(f"give an integer from 1 to {LARGEST}, or three of them as [z, y, x]")
    return Vec3(*map(int, three))


def _margins(value: object) -> Vec3:
    """Return three extents of 0 or more."""
    three = _three(value)
    if len(three) != 3 or not all(map(_is_margin, three)):
        raise ValueError(f"give an integer from 0 to {LARGEST}, or three of them as [z, y, x]")
    return Vec3(*map(int, three))


def _padding(value: object) -> Padding | Literal["valid", "same"]:
    """Return padding from ``same``, ``valid``, extents, or a mapping of before and after."""
    if value == "same" or value == "valid":  # noqa: PLR1714 - a list in a set cannot be hashed
        return "same" if value == "same" else "valid"
    if isinstance(value, Mapping) and set(value) == {"before", "after"}:
        return Padding(_margins(value["before"]), _margins(value["after"]))
    try:
        return Padding(_margins(value), _margins(value))
    except ValueError:
        raise ValueError("give valid, same, or zeros per side as 1 or [z, y, x]") from None


def finite(value: object) -> float:
    """Return a finite number as a float."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -FLOAT32_MAX <= value <= FLOAT32_MAX
    ):
        raise ValueError("give a finite number")
    return float(value)


Extents = Annotated[Vec3, BeforeValidator(extents)]
Margins = Annotated[Vec3, BeforeValidator(_margins)]
Sides = Annotated[Padding | Literal["valid", "same"], BeforeValidator(_padding)]
Finite = Annotated[float, BeforeValidator(finite)]


class Activated(NamedTuple):
    """An activation, and the slope of ``leaky_relu`` for negative values."""

    activation: Activation
    slope: float = LEAKY_SLOPE


IDENTITY = Activated("identity")


def _activated(value: object) -> Activated:
    """Return an activation from ``relu`` or ``{leaky_relu: 0.2}``."""
    for known in get_args(Activation):
        if value == known:
            return Activated(known)
    if isinstance(value, Mapping) and list(value) == ["leaky_relu"]:
        return Activated("leaky_relu", finite(value["leaky_relu"]))
    known = ", ".join(get_args(Activation))
    raise ValueError(f"choose one of {known}, or {{leaky_relu: SLOPE}}")


ActivationEntry = Annotated[Activated, PlainValidator(_activated)]


class LayerKind(Entry):
    """The part of a layer's entry under its kind, such as ``conv:``."""

    def layer(self, name: str, maps: Sequence[int]) -> Layer:
        """Return the layer.

        Args:
            name: its name.
            maps: the maps of its inputs.

        Raises:
            InvalidInput: the entry's numbers make no layer.
        """
        raise NotImplementedError


class ConvEntry(LayerKind):
    """A convolution."""

    unneeded: ClassVar[Mapping[str, str]] = {"batchnorm": FOLDED, "batch_norm": FOLDED}
    features: Count
    kernel: Extents
    stride: Extents = Vec3(1, 1, 1)
    padding: Sides = "valid"
    dilation: Extents = Vec3(1, 1, 1)
    groups: Count = 1
    activation: ActivationEntry = IDENTITY

    def layer(self, name: str, maps: Sequence[int]) -> Conv:
        """Return the convolution."""
        activation, slope = self.activation
        return Conv(
            name, maps[0], self.features, self.kernel, activation, self.stride, self.dilation,
            self.groups, self._zeros, slope,
        )  # fmt: skip

    @property
    def _zeros(self) -> Padding:
        if self.padding == "valid":
            return NO_PADDING
        if isinstance(self.padding, Padding):
            return self.padding
        total = (self.kernel - 1) * self.dilation
        return Padding(total // 2, total - total // 2)

    @model_validator(mode="after")
    def _same_has_no_stride(self) -> ConvEntry:
        if self.padding == "same" and self.stride != Vec3(1, 1, 1):
            raise ValueError("padding: same needs stride 1; give the zeros per side as a number")
        return self


class ConvTransposeEntry(LayerKind):
    """A transposed convolution."""

    features: Count
    kernel: Extents
    stride: Extents
    padding: Margins = ZERO
    output_padding: Margins = ZERO
    activation: ActivationEntry = IDENTITY

    def layer(self, name: str, maps: Sequence[int]) -> ConvTranspose:
        """Return the transposed convolution."""
        activation, slope = self.activation
        return ConvTranspose(
            name, maps[0], self.features, self.kernel, activation, self.stride, self.padding,
            self.padding - self.output_padding, slope,
        )  # fmt: skip


class PoolEntry(LayerKind):
    """A pooling."""

    unneeded: ClassVar[Mapping[str, str]] = {"kernel": "a pooling has a window:"}
    window: Extents
    kind: Literal["max", "average"] = "max"
    stride: Extents | None = None
    padding: Sides = "valid"

    def layer(self, name: str, maps: Sequence[int]) -> Pool:  # noqa: ARG002 - any number of maps
        """Return the pooling."""
        padding = NO_PADDING if isinstance(self.padding, str) else self.padding
        step = ZERO if self.stride in (None, self.window) else self.stride
        return Pool(name, self.window, self.kind, step or ZERO, padding)

    @model_validator(mode="after")
    def _no_same(self) -> PoolEntry:
        if self.padding == "same":
            raise ValueError("padding: same is for convolutions; give the padding as a number")
        return self


class GlobalPoolEntry(LayerKind):
    """A pooling over a whole window."""

    unneeded: ClassVar[Mapping[str, str]] = {"window": "its window is that of the network"}
    kind: Literal["average", "max"] = "average"

    def layer(self, name: str, maps: Sequence[int]) -> GlobalPool:  # noqa: ARG002 - any number
        """Return the pooling."""
        return GlobalPool(name, self.kind)


class UpsampleEntry(LayerKind):
    """Upsampling."""

    unneeded: ClassVar[Mapping[str, str]] = {
        "scale_factor": "it is called factor:",
        "size": "give a factor:, because sizes follow the volume",
        "align_corners": "leave it out: only interpolation without align_corners is the same "
        "everywhere in a volume",
    }
    factor: Extents
    mode: Literal["nearest", "trilinear"] = "nearest"
    shift: Margins = ZERO

    def layer(self, name: str, maps: Sequence[int]) -> Upsample:  # noqa: ARG002
        """Return the upsampling."""
        return Upsample(name, self.factor, self.mode, self.shift)


class AffineEntry(LayerKind):
    """A factor and a shift for each map."""

    activation: ActivationEntry = IDENTITY

    def layer(self, name: str, maps: Sequence[int]) -> Affine:
        """Return the layer."""
        return Affine(name, maps[0], *self.activation)


class ConcatEntry(LayerKind):
    """The maps of several layers."""

    def layer(self, name: str, maps: Sequence[int]) -> Concat:  # noqa: ARG002
        """Return the join."""
        return Concat(name)


class AddEntry(LayerKind):
    """The sum of two layers."""

    activation: ActivationEntry = IDENTITY

    def layer(self, name: str, maps: Sequence[int]) -> Add:  # noqa: ARG002
        """Return the join."""
        return Add(name, *self.activation)


class MultiplyEntry(LayerKind):
    """The product of two layers, the second of which may have one map or be globally pooled."""

    activation: ActivationEntry = IDENTITY

    def layer(self, name: str, maps: Sequence[int]) -> Multiply:
        """Return the join."""
        is_gate = len(maps) == 2 and maps[1] == 1 < maps[0]
        return Multiply(name, *self.activation, is_gate)


class MaximumEntry(LayerKind):
    """The larger of two layers."""

    activation: ActivationEntry = IDENTITY

    def layer(self, name: str, maps: Sequence[int]) -> Maximum:  # noqa: ARG002
        """Return the join."""
        return Maximum(name, *self.activation)


class InstanceNormEntry(LayerKind):
    """An instance norm."""

    eps: Finite = EPS
    activation: ActivationEntry = IDENTITY

    def layer(self, name: str, maps: Sequence[int]) -> Normalize:
        """Return the norm, with a group for each map."""
        return Normalize(name, maps[0], maps[0], self.eps, *self.activation)


class GroupNormEntry(LayerKind):
    """A group norm."""

    groups: Count
    eps: Finite = EPS
    activation: ActivationEntry = IDENTITY

    def layer(self, name: str, maps: Sequence[int]) -> Normalize:
        """Return the norm."""
        return Normalize(name, maps[0], self.groups, self.eps, *self.activation)


class ModelEntry(LayerKind):
    """A whole network in a file of another library."""

    file: str
    features: Count | None = None
    sha256: str | None = None

    def layer_in(self, folder: Path, name: str) -> Model:
        """Return the layer; the file's path starts in a folder."""
        return model_layer(name, folder / self.file, self.features, self.sha256)
