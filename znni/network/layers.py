"""The layers of networks: what each computes, and the geometry of its input and output.

Weights are kept apart (``znni.network.weights``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from znni.core.shapes import ZERO, Vec3
from znni.network.activations import LEAKY_SLOPE, Activation
from znni.network.convolutions import Conv, ConvTranspose
from znni.network.layer_geometry import NO_PADDING, Padding
from znni.network.models import Model
from znni.network.normalization import Normalize, VoxelNorm
from znni.network.padding import PadLayer
from znni.network.pointwise import Add, Affine, Concat, Maximum, Multiply, PerMap
from znni.network.pooling import GlobalPool, Pool
from znni.network.resizing import Upsample

__all__ = [
    "LEAKY_SLOPE",
    "NO_PADDING",
    "Activation",
    "Add",
    "Affine",
    "Concat",
    "Conv",
    "ConvPair",
    "ConvTranspose",
    "Elementwise",
    "Fused",
    "FusedOperation",
    "GlobalPool",
    "Join",
    "Layer",
    "Maximum",
    "Model",
    "Multiply",
    "Normalize",
    "Operation",
    "PackedLayer",
    "PadLayer",
    "Padding",
    "PerMap",
    "Pool",
    "PooledConv",
    "SlidingLayer",
    "SummedConv",
    "SummedConvPair",
    "Upsample",
    "VoxelNorm",
    "Weighted",
    "WholeWindow",
    "layers_of",
    "on_float32",
    "unnamed",
]

# Layers that make one voxel from two.
Elementwise: TypeAlias = Add | Multiply | Maximum

# Layers that take several values.
Join: TypeAlias = Concat | Elementwise

# Layers that depend on all voxels of a window.
WholeWindow: TypeAlias = Normalize | GlobalPool | Model

# Layers with weights.
Weighted: TypeAlias = Conv | ConvTranspose | Affine | Normalize | VoxelNorm

# The kinds of layers of sliding networks. Those that are dense can be slid over every voxel.
SlidingLayer: TypeAlias = Conv | Pool

Layer: TypeAlias = (
    Conv
    | ConvTranspose
    | Pool
    | GlobalPool
    | Upsample
    | PadLayer
    | Affine
    | Normalize
    | VoxelNorm
    | Join
    | Model
)


class Fused:
    """Layers that follow each other, as one operation: nothing between them is stored.

    A subclass is a dataclass with a field for each layer, in order. A rule in
    ``znni.plans.rewrites`` says where networks have such layers.
    """

    adds_in_place: ClassVar[bool] = False  # to the last value that it takes

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in order."""
        return tuple(vars(self).values())

    @property
    def name(self) -> str:
        """The names of all layers."""
        return "+".join(layer.name for layer in self.layers)


@dataclass(frozen=True)
class PooledConv(Fused):
    """A convolution and the pooling after it as one operation: nothing between is stored."""

    conv: Conv
    pool: Pool


@dataclass(frozen=True)
class SummedConv(Fused):
    """A convolution and the sum after it as one operation: it adds to a value in memory."""

    conv: Conv
    add: Add
    adds_in_place: ClassVar[bool] = True

    @property
    def activated(self) -> Conv:
        """The convolution with the activation of the sum."""
        return _activated(self.conv, self.add)


@dataclass(frozen=True)
class ConvPair(Fused):
    """Two convolutions of one tap as one operation: the maps between them are not stored."""

    conv: Conv
    after: Conv


@dataclass(frozen=True)
class SummedConvPair(Fused):
    """Two convolutions of one tap and the sum after them as one operation.

    It adds to a value in memory.
    """

    conv: Conv
    after: Conv
    add: Add
    adds_in_place: ClassVar[bool] = True

    @property
    def activated(self) -> ConvPair:
        """Both convolutions, with the activation of the sum."""
        return ConvPair(self.conv, _activated(self.after, self.add))


def _activated(conv: Conv, add: Add) -> Conv:
    """Return a convolution with the activation of a sum."""
    return replace(conv, activation=add.activation, slope=add.slope)


# An operation of several layers.
FusedOperation: TypeAlias = PooledConv | SummedConv | ConvPair | SummedConvPair


@dataclass(frozen=True)
class PackedLayer:
    """A layer whose input or output is packed: float16, 8 maps of a voxel together.

    All its packed values have numbers of as many parts.

    Attributes:
        layer: the layer, or several as one operation.
        reads: whether all its inputs are packed.
        writes: whether its output is.
        sums: whether a convolution also adds up each map that it makes, for the norm after it; or
            whether a norm takes such sums.
        parts: the float16 whose sum is a number, one or two.
        leaves: whether a norm leaves its numbers to the layer after it, and changes no voxel.
        norm: the norm before, if it leaves that: the layer applies it to what it loads.
        left_out: the last planes, rows and columns of its output that a transposed convolution does
            not add up, because the norm does not read them.
    """

    layer: Layer | FusedOperation
    reads: bool
    writes: bool
    sums: bool = False
    parts: int = 1
    leaves: bool = False
    norm: Normalize | None = None
    left_out: Vec3 = ZERO

    @property
    def name(self) -> str:
        """The name of the layer."""
        return self.layer.name


# The operation of a primitive: one layer or several, perhaps on packed values.
Operation: TypeAlias = Layer | FusedOperation | PackedLayer


def on_float32(operation: Operation) -> Layer | FusedOperation:
    """Return an operation as it is if no value is packed."""
    return operation.layer if isinstance(operation, PackedLayer) else operation


def layers_of(operation: Operation) -> tuple[Layer, ...]:
    """Return the layers of an operation, in order."""
    plain = on_float32(operation)
    return plain.layers if isinstance(plain, Fused) else (plain,)


def unnamed(operation: Operation) -> Operation:
    """Return an operation with neutral names, which all that take the same time share.

    The time of a packed layer does not depend on the voxels that it does not add up.
    """
    if isinstance(operation, PackedLayer):
        norm = operation.norm and replace(operation.norm, name=operation.norm.kind)
        layer = _unnamed_layer(operation.layer)
        return replace(operation, layer=layer, norm=norm, left_out=ZERO)
    return _unnamed_layer(operation)


def _unnamed_layer(layer: Layer | FusedOperation) -> Layer | FusedOperation:
    if isinstance(layer, Fused):
        neutral: dict[str, Any] = {
            field: replace(it, name=field) for field, it in vars(layer).items()
        }
        return replace(layer, **neutral)
    return replace(layer, name=layer.kind)
