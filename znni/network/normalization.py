"""Normalization by the values that a layer is given, of a whole window or of each voxel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from znni.core.errors import InvalidInput
from znni.network.activations import LEAKY_SLOPE, Activation, check_activation
from znni.network.layer_checks import check_count
from znni.network.pointwise import PerMap

EPS = 1e-5


@dataclass(frozen=True, repr=False)
class _Norm(PerMap):
    """A norm of groups of maps, and then a factor and a shift for each map.

    Attributes:
        name: the name, unique within the network; it also names the weights.
        features: the number of maps.
        groups: the number of groups, which have equal numbers of maps.
        eps: what is added to the variance, so that it is not zero.
        activation: the function applied to the result.
        slope: the factor of ``leaky_relu`` for negative values.

    Raises:
        InvalidInput: the maps make no equal groups, ``eps`` is negative, or the activation is
            unknown.
    """

    name: str
    features: int
    groups: int
    eps: float = EPS
    activation: Activation = "identity"
    slope: float = LEAKY_SLOPE

    def __post_init__(self) -> None:
        check_count(f"layer {self.name}: features", self.features)
        check_count(f"layer {self.name}: groups", self.groups)
        check_activation(f"layer {self.name}", self.activation)
        if self.features % self.groups:
            raise InvalidInput(
                f"layer {self.name} has {self.groups} groups for {self.features} maps; give a "
                f"number of groups that divides the maps"
            )
        if self.eps < 0:
            raise InvalidInput(f"layer {self.name}: eps is {self.eps:g}; give 0 or more")


@dataclass(frozen=True, repr=False)
class Normalize(_Norm):
    """A norm by the values of a whole window.

    It depends on all voxels at once. So it means something only for windows of a fixed size.

    By deviation, it is group norm: each group of maps gets mean 0 and variance 1. With as many
    groups as maps it is instance norm (Wu and He 2018, eq. 1 and 7).

    By response, it is global response normalization (Woo et al. 2023, eq. 1 to 3): each map is
    multiplied by its L2 norm, as a share of the mean of these norms in its group. The factor and
    the shift follow, and then the input is added. ``eps`` is added to the mean.
    """

    by: Literal["deviation", "response"] = "deviation"
    kind: Literal["normalize"] = field(default="normalize", repr=False)

    @property
    def is_instance_norm(self) -> bool:
        """True if each map is a group of its own, and gets mean 0 and variance 1."""
        return self.groups == self.features and self.by == "deviation"


@dataclass(frozen=True, repr=False)
class VoxelNorm(_Norm):
    """Layer norm over maps: each group of maps gets mean 0 and variance 1 at each voxel.

    ConvNeXt has it with one group (Liu et al. 2022).
    """

    kind: Literal["layer_norm"] = field(default="layer_norm", repr=False)
