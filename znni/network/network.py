"""What a network is: a chain of convolutions and poolings, and its geometry.

Weights live apart (``znni.network.weights``), so that a network can be hashed, compared and planned
for without an array in sight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.core.text import counted

Activation: TypeAlias = Literal[
    "relu", "sigmoid", "tanh", "leaky_relu", "elu", "identity", "softmax"
]


@dataclass(frozen=True)
class Conv:
    """A valid 3D convolution (cross-correlation, as in PyTorch), a bias and an activation.

    Attributes:
        name: unique within the network; names its weights.
        in_features: input maps.
        out_features: output maps.
        kernel: extents in voxels.
        activation: applied to the sum; ``softmax`` runs over the maps of each voxel.

    Raises:
        InvalidInput: no maps, an extent that is not positive, or an unknown activation.
    """

    name: str
    in_features: int
    out_features: int
    kernel: Vec3
    activation: Activation

    def __post_init__(self) -> None:
        for what, maps in (("in_features", self.in_features), ("out_features", self.out_features)):
            if not _is_positive(maps):
                raise InvalidInput(f"layer {self.name}: {what} is {maps!r}; give 1 or more")
        _check_extents(f"layer {self.name}: kernel", self.kernel)
        if self.activation not in get_args(Activation):
            raise InvalidInput(
                f"layer {self.name}: unknown activation {self.activation!r}; choose one of "
                f"{', '.join(get_args(Activation))}"
            )

    @property
    def weight_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of the weights: (out, in, z, y, x)."""
        return (self.out_features, self.in_features, *self.kernel)

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.out_features * (self.in_features * self.kernel.volume + 1)


@dataclass(frozen=True)
class Pool:
    """Max-pooling with stride = window. Pooled or dense (fragments) is the plan's choice.

    Attributes:
        name: unique within the network.
        window: extents in voxels.

    Raises:
        InvalidInput: an extent that is not positive.
    """

    name: str
    window: Vec3

    def __post_init__(self) -> None:
        _check_extents(f"layer {self.name}: window", self.window)


Layer: TypeAlias = Conv | Pool


@dataclass(frozen=True)
class PooledConv:
    """A convolution and the pooling after it as one operation: nothing between is stored."""

    conv: Conv
    pool: Pool

    @property
    def name(self) -> str:
        """Of both layers."""
        return f"{self.conv.name}+{self.pool.name}"


# What a primitive does: a layer, or two in one.
Operation: TypeAlias = Conv | Pool | PooledConv


@dataclass(frozen=True)
class InputScaling:
    """How stored values become the network's input: ``float32 = value * scale + offset``."""

    scale: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True)
class Network:
    """A chain of layers.

    Attributes:
        name: for reports.
        in_features: input maps.
        layers: first to last.
        scaling: of the input.
        weights: the file that the network names for its weights, if it names one.

    Raises:
        InvalidInput: no convolution, names used twice, or maps that do not chain.
    """

    name: str
    in_features: int
    layers: tuple[Layer, ...]
    scaling: InputScaling = InputScaling()
    weights: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.convolutions:
            raise InvalidInput(f"network {self.name} has no convolution; give it at least one")
        features, seen = self.in_features, set[str]()
        for layer in self.layers:
            if layer.name in seen:
                raise InvalidInput(
                    f"network {self.name} has two layers named {layer.name!r}; rename one"
                )
            seen.add(layer.name)
            if isinstance(layer, Conv):
                if layer.in_features != features:
                    raise InvalidInput(
                        f"layer {layer.name} takes {counted(layer.in_features, 'map')}, but the "
                        f"layer before it gives {features}"
                    )
                features = layer.out_features

    @cached_property
    def convolutions(self) -> tuple[Conv, ...]:
        """The convolutions, first to last."""
        return tuple(layer for layer in self.layers if isinstance(layer, Conv))

    @property
    def out_features(self) -> int:
        """Output maps."""
        return self.convolutions[-1].out_features

    @cached_property
    def parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum(conv.parameters for conv in self.convolutions)

    @cached_property
    def total_pooling(self) -> Vec3:
        """The product P of all pooling windows, per axis."""
        windows = (layer.window for layer in self.layers if isinstance(layer, Pool))
        return reduce(Vec3.__mul__, windows, Vec3(1, 1, 1))

    @cached_property
    def field_of_view(self) -> Vec3:
        """Input voxels that one output voxel depends on, per axis."""
        view, stride = Vec3(1, 1, 1), Vec3(1, 1, 1)
        for layer in self.layers:
            extent = layer.kernel if isinstance(layer, Conv) else layer.window
            view += (extent - 1) * stride
            if isinstance(layer, Pool):
                stride *= layer.window
        return view

    def __str__(self) -> str:
        return (
            f"{self.name}: {counted(len(self.layers), 'layer')}, "
            f"{counted(self.parameters, 'parameter')}, "
            f"{self.in_features} -> {counted(self.out_features, 'map')}, "
            f"field of view {self.field_of_view}, total pooling {self.total_pooling}"
        )


def _check_extents(what: str, extents: object) -> None:
    """Check three positive extents, of a caller without a type checker too."""
    if not isinstance(extents, Vec3) or not all(map(_is_positive, extents)):
        raise InvalidInput(
            f"{what} is {extents!r}; give a Vec3 of three positive integers, as Vec3(3, 3, 3)"
        )


def _is_positive(number: object) -> bool:
    return isinstance(number, int) and number >= 1
