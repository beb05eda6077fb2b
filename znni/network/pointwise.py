"""Layers that compute each voxel from the same voxel of their inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.network.activations import LEAKY_SLOPE, Activation, check_activation, has_slopes
from znni.network.convolutions import check_maps
from znni.network.layer_checks import check_count
from znni.network.layer_geometry import SameVoxel


class PerMap(SameVoxel):
    """A layer with a factor and a shift for each map, and an activation."""

    name: str
    features: int
    activation: Activation

    @property
    def out_features(self) -> int:
        """The number of output maps."""
        return self.features

    def maps_from(self, *maps: int) -> int:
        """Return the output maps for an input of that many maps.

        Raises:
            InvalidInput: the layer takes another number of maps.
        """
        check_maps(self.name, self.features, maps[0])
        return self.features

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of the factors: one for each map."""
        return (self.features,)

    @property
    def parameters(self) -> int:
        """The number of factors, shifts and slopes."""
        return self.features * (2 + has_slopes(self.activation))


@dataclass(frozen=True, repr=False)
class Affine(PerMap):
    """A factor and a shift for each map, and an activation: a batch norm that cannot be folded.

    Attributes:
        name: the name, unique within the network; it also names the weights.
        features: the number of maps.
        activation: the function applied to the result.
        slope: the factor of ``leaky_relu`` for negative values.

    Raises:
        InvalidInput: there are no maps, or the activation is unknown.
    """

    name: str
    features: int
    activation: Activation = "identity"
    slope: float = LEAKY_SLOPE
    kind: Literal["affine"] = field(default="affine", repr=False)

    def __post_init__(self) -> None:
        check_count(f"layer {self.name}: features", self.features)
        check_activation(f"layer {self.name}", self.activation)


@dataclass(frozen=True, repr=False)
class Concat(SameVoxel):
    """The maps of several values, one after the other."""

    arity: ClassVar[int | None] = None
    name: str
    kind: Literal["concat"] = field(default="concat", repr=False)

    def maps_from(self, *maps: int) -> int:
        """Return the maps of all inputs together."""
        return sum(maps)


@dataclass(frozen=True, repr=False)
class _Elementwise(SameVoxel):
    """The sum, product or maximum of two values with equal numbers of maps, and an activation."""

    arity: ClassVar[int | None] = 2
    name: str
    activation: Activation = "identity"
    slope: float = LEAKY_SLOPE

    def __post_init__(self) -> None:
        check_activation(f"layer {self.name}", self.activation)
        if self.activation == "prelu":
            raise InvalidInput(
                f"layer {self.name}: prelu needs weights, which a join has none of; give it as an "
                f"affine layer after the join"
            )

    def maps_from(self, *maps: int) -> int:
        """Return the maps of the output.

        Raises:
            InvalidInput: the inputs have different numbers of maps.
        """
        if maps[0] != maps[1]:
            raise InvalidInput(
                f"layer {self.name} joins {maps[0]} maps with {maps[1]}; give both the same number "
                f"of maps"
            )
        return maps[0]


@dataclass(frozen=True, repr=False)
class Add(_Elementwise):
    """The sum of two values with equal numbers of maps, and an activation."""

    kind: Literal["add"] = field(default="add", repr=False)


@dataclass(frozen=True, repr=False)
class Maximum(_Elementwise):
    """The larger of two values with equal numbers of maps, and an activation."""

    kind: Literal["maximum"] = field(default="maximum", repr=False)


@dataclass(frozen=True, repr=False)
class Multiply(_Elementwise):
    """The product of two values, and an activation.

    Attributes:
        name: the name, unique within the network.
        activation: the function applied to the result.
        slope: the factor of ``leaky_relu`` for negative values.
        is_gate: whether the second value has one map, which multiplies all maps of the first.
        spreads: whether the second value has one sample, which multiplies all samples of the first.
    """

    is_gate: bool = False
    spreads: bool = False
    kind: Literal["multiply"] = field(default="multiply", repr=False)

    def size_from(self, *sizes: Vec3) -> Vec3:
        """Return the output's samples per axis."""
        return sizes[0] if self.spreads else super().size_from(*sizes)

    def maps_from(self, *maps: int) -> int:
        """Return the maps of the output.

        Raises:
            InvalidInput: the inputs have different numbers of maps, or a gate has several.
        """
        if self.is_gate:
            check_maps(f"{self.name} (its gate)", 1, maps[1])
            return maps[0]
        return super().maps_from(*maps)
