"""The layers of networks: what each computes, and the geometry of its input and output.

Weights are kept apart (``znni.network.weights``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.core.text import counted

Activation: TypeAlias = Literal[
    "relu", "sigmoid", "tanh", "leaky_relu", "elu", "identity", "softmax"
]


@dataclass(frozen=True)
class Conv:
    """A valid 3D convolution (cross-correlation, as in PyTorch), a bias and an activation.

    Attributes:
        name: the name, unique within the network; it also names the weights.
        in_features: the number of input maps.
        out_features: the number of output maps.
        kernel: the extents in voxels.
        activation: the function applied to the sum. ``softmax`` runs over the maps of each voxel.

    Raises:
        InvalidInput: there are no maps, an extent is not positive, or the activation is unknown.
    """

    arity: ClassVar[int] = 1  # the number of values that it takes
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
    def stride(self) -> Vec3:
        """The samples of the input from one sample of the output to the next."""
        return Vec3(1, 1, 1)

    def needs(self, region: Box, stride: Vec3) -> Box:
        """Return the voxels of the input that a dense region of the output depends on.

        Args:
            region: the voxels at which the output is wanted.
            stride: the voxels between neighbouring samples of the input.
        """
        return Box(region.start, region.stop + (self.kernel - 1) * stride)

    def maps_from(self, maps: int) -> int:
        """Return the output maps for an input of that many maps.

        Raises:
            InvalidInput: the convolution takes another number of maps.
        """
        if maps != self.in_features:
            raise InvalidInput(
                f"layer {self.name} takes {counted(self.in_features, 'map')}, but the layer before "
                f"it gives {maps}"
            )
        return self.out_features

    def size_from(self, size: Vec3) -> Vec3:
        """Return the output's samples per axis for an input of that size."""
        return size - self.kernel + 1

    @property
    def weight_shape(self) -> tuple[int, int, int, int, int]:
        """The shape of the weights: (out, in, z, y, x)."""
        return (self.out_features, self.in_features, *self.kernel)

    @property
    def parameters(self) -> int:
        """The number of weights and biases."""
        return self.out_features * (self.in_features * self.kernel.volume + 1)


@dataclass(frozen=True)
class Pool:
    """Max-pooling whose stride is its window. The plan chooses pooled or dense (fragments).

    Attributes:
        name: the name, unique within the network.
        window: the extents in voxels.

    Raises:
        InvalidInput: an extent is not positive.
    """

    arity: ClassVar[int] = 1  # the number of values that it takes
    name: str
    window: Vec3

    def __post_init__(self) -> None:
        _check_extents(f"layer {self.name}: window", self.window)

    @property
    def stride(self) -> Vec3:
        """The samples of the input from one sample of the output to the next."""
        return self.window

    def needs(self, region: Box, stride: Vec3) -> Box:
        """Return the voxels of the input that a dense region of the output depends on.

        Args:
            region: the voxels at which the output is wanted.
            stride: the voxels between neighbouring samples of the input.
        """
        return Box(region.start, region.stop + (self.window - 1) * stride)

    def maps_from(self, maps: int) -> int:
        """Return the output maps for an input of that many maps."""
        return maps

    def size_from(self, size: Vec3) -> Vec3:
        """Return the output's samples per axis for an input of that size, pooled plainly."""
        return size // self.window


Layer: TypeAlias = Conv | Pool


@dataclass(frozen=True)
class PooledConv:
    """A convolution and the pooling after it as one operation: nothing between is stored."""

    conv: Conv
    pool: Pool

    @property
    def name(self) -> str:
        """The names of both layers."""
        return f"{self.conv.name}+{self.pool.name}"


# The operation of a primitive: one layer, or two in one.
Operation: TypeAlias = Conv | Pool | PooledConv


def _check_extents(what: str, extents: object) -> None:
    """Check that extents are three positive integers, even if the caller uses no type checker."""
    if not isinstance(extents, Vec3) or not all(map(_is_positive, extents)):
        raise InvalidInput(
            f"{what} is {extents!r}; give a Vec3 of three positive integers, as Vec3(3, 3, 3)"
        )


def _is_positive(number: object) -> bool:
    return isinstance(number, int) and number >= 1
