"""The entries of a network file's layers, and the layers that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, PlainValidator, model_validator

from znni.core.shapes import ONE, ZERO, Vec3
from znni.core.yaml_file import LARGEST, Count, Entry, is_count
from znni.network.activations import LEAKY_SLOPE
from znni.network.layer_geometry import NO_PADDING
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
    PadLayer,
    Pool,
    Upsample,
    VoxelNorm,
)
from znni.network.model_files import model_layer
from znni.network.normalization import EPS
from znni.network.padding import Beyond

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
    """The part of a layer's entry under its kind, such as ``conv:``.

    Attributes:
        makes: the layer's class. Its fields have the values of the entry's keys.
        fields: the fields' names, where keys have others.
    """

    makes: ClassVar[type[Layer]]
    fields: ClassVar[Mapping[str, str]] = {}

    def layer(self, name: str, maps: Sequence[int]) -> Layer:
        """Return the layer."""
        given = {self.fields.get(key, key): value for key, value in self}
        if "activation" in given:
            given["activation"], given["slope"] = given["activation"]
        return self.makes(name=name, **given | self._from_maps(maps))

    def _from_maps(self, maps: Sequence[int]) -> dict[str, Any]:  # noqa: ARG002 - most have none
        """Return the fields that depend on the maps of the inputs."""
        return {}


class ConvEntry(LayerKind):
    """A convolution."""

    makes: ClassVar[type[Layer]] = Conv
    fields: ClassVar[Mapping[str, str]] = {"features": "out_features"}
    unneeded: ClassVar[Mapping[str, str]] = {"batchnorm": FOLDED, "batch_norm": FOLDED}
    features: Count
    kernel: Extents
    stride: Extents = ONE
    padding: Sides = "valid"
    dilation: Extents = ONE
    groups: Count = 1
    mode: Literal["correlation", "convolution"] = "correlation"
    activation: ActivationEntry = IDENTITY

    def _from_maps(self, maps: Sequence[int]) -> dict[str, Any]:
        total = (self.kernel - 1) * self.dilation
        same = Padding(total // 2, total - total // 2)
        by_name = {"valid": NO_PADDING, "same": same}
        padding = by_name[self.padding] if isinstance(self.padding, str) else self.padding
        return {"in_features": maps[0], "padding": padding}

    @model_validator(mode="after")
    def _same_has_no_stride(self) -> ConvEntry:
        if self.padding == "same" and self.stride != ONE:
            raise ValueError("padding: same needs stride 1; give the zeros per side as a number")
        return self


class ConvTransposeEntry(LayerKind):
    """A transposed convolution."""

    makes: ClassVar[type[Layer]] = ConvTranspose
    fields: ClassVar[Mapping[str, str]] = {
        "features": "out_features",
        "output_padding": "padding_after",
    }
    features: Count
    kernel: Extents
    stride: Extents
    padding: Margins = ZERO
    output_padding: Margins = ZERO
    groups: Count = 1
    activation: ActivationEntry = IDENTITY

    def _from_maps(self, maps: Sequence[int]) -> dict[str, Any]:
        return {"in_features": maps[0], "padding_after": self.padding - self.output_padding}


class PoolEntry(LayerKind):
    """A pooling."""

    makes: ClassVar[type[Layer]] = Pool
    fields: ClassVar[Mapping[str, str]] = {"kind": "reduce", "stride": "step"}
    unneeded: ClassVar[Mapping[str, str]] = {"kernel": "a pooling has a window:"}
    window: Extents
    kind: Literal["max", "average"] = "max"
    stride: Extents = ZERO
    padding: Sides = "valid"
    dilation: Extents = ONE

    def _from_maps(self, maps: Sequence[int]) -> dict[str, Any]:  # noqa: ARG002 - any number
        return {"padding": NO_PADDING} if self.padding == "valid" else {}

    @model_validator(mode="after")
    def _no_same(self) -> PoolEntry:
        if self.padding == "same":
            raise ValueError("padding: same is for convolutions; give the padding as a number")
        return self


class GlobalPoolEntry(LayerKind):
    """A pooling over a whole window."""

    makes: ClassVar[type[Layer]] = GlobalPool
    fields: ClassVar[Mapping[str, str]] = {"kind": "reduce"}
    unneeded: ClassVar[Mapping[str, str]] = {"window": "its window is that of the network"}
    kind: Literal["average", "max"] = "average"


class UpsampleEntry(LayerKind):
    """Upsampling."""

    makes: ClassVar[type[Layer]] = Upsample
    unneeded: ClassVar[Mapping[str, str]] = {
        "scale_factor": "it is called factor:",
        "size": "give a factor:, because sizes follow the volume",
        "align_corners": "leave it out: only interpolation without align_corners is the same "
        "everywhere in a volume",
    }
    factor: Extents
    mode: Literal["nearest", "trilinear"] = "nearest"
    shift: Margins = ZERO


class PadEntry(LayerKind):
    """Padding by a value's own samples."""

    makes: ClassVar[type[Layer]] = PadLayer
    padding: Sides
    mode: Beyond

    @model_validator(mode="after")
    def _is_a_number(self) -> PadEntry:
        if isinstance(self.padding, str):
            raise ValueError("padding is the samples on each side; give them as 1 or [z, y, x]")
        return self


class ConcatEntry(LayerKind):
    """The maps of several layers."""

    makes: ClassVar[type[Layer]] = Concat


class _ActivatedEntry(LayerKind):
    """A layer with an activation."""

    activation: ActivationEntry = IDENTITY


class AffineEntry(_ActivatedEntry):
    """A factor and a shift for each map."""

    makes: ClassVar[type[Layer]] = Affine

    def _from_maps(self, maps: Sequence[int]) -> dict[str, Any]:
        return {"features": maps[0]}


class AddEntry(_ActivatedEntry):
    """The sum of two layers."""

    makes: ClassVar[type[Layer]] = Add


class MultiplyEntry(_ActivatedEntry):
    """The product of two layers, the second of which may have one map or be globally pooled."""

    makes: ClassVar[type[Layer]] = Multiply

    def _from_maps(self, maps: Sequence[int]) -> dict[str, Any]:
        return {"is_gate": len(maps) == 2 and maps[1] == 1 < maps[0]}


class MaximumEntry(_ActivatedEntry):
    """The larger of two layers."""

    makes: ClassVar[type[Layer]] = Maximum


class InstanceNormEntry(_ActivatedEntry):
    """An instance norm, which has a group for each map."""

    makes: ClassVar[type[Layer]] = Normalize
    eps: Finite = EPS

    def _from_maps(self, maps: Sequence[int]) -> dict[str, Any]:
        return {"features": maps[0], "groups": maps[0]}


class GroupNormEntry(AffineEntry):
    """A group norm."""

    makes: ClassVar[type[Layer]] = Normalize
    groups: Count
    eps: Finite = EPS


class LayerNormEntry(GroupNormEntry):
    """A norm over the maps of each voxel."""

    makes: ClassVar[type[Layer]] = VoxelNorm
    groups: Count = 1


class ResponseNormEntry(GroupNormEntry):
    """A global response normalization."""

    groups: Count = 1

    def _from_maps(self, maps: Sequence[int]) -> dict[str, Any]:
        return {"features": maps[0], "by": "response"}


class ModelEntry(LayerKind):
    """A whole network in a file of another library."""

    file: str
    features: Count | None = None
    sha256: str | None = None

    def layer_in(self, folder: Path, name: str) -> Model:
        """Return the layer; the file's path starts in a folder."""
        return model_layer(name, folder / self.file, self.features, self.sha256)
