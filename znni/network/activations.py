"""Activations: functions of one value, or of all maps of a voxel.

A new one begins here: ``docs/developers/add-an-activation.md`` lists the files with its formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Literal, NamedTuple, TypeAlias, get_args

from znni.core.errors import InvalidInput

Activation: TypeAlias = Literal[
    "relu", "sigmoid", "tanh", "leaky_relu", "elu", "identity", "softmax", "gelu", "gelu_tanh",
    "prelu",
]  # fmt: skip

# The slope of leaky_relu for negative values if none is given, as in PyTorch.
LEAKY_SLOPE = 0.01


class Traits(NamedTuple):
    """Properties of an activation that other modules ask for.

    Attributes:
        kind: "lines": a line for values above 0, and another one below. A positive factor passes
            such an activation. "curve": another function of one value. "maps": a function of all
            maps of a voxel.
        least: the least value that it gives.
        most: the largest value that it gives.
        has_slope: whether the line below 0 has a slope of its own.
        increases: whether a larger number never gives a smaller value, if its slope is not
            negative.
    """

    kind: Literal["lines", "curve", "maps"]
    least: float = -inf
    most: float = inf
    has_slope: bool = False
    increases: bool = True

    @property
    def is_share(self) -> bool:
        """True if all values are from 0 to 1."""
        return self.least >= 0 and self.most <= 1

    @property
    def is_bounded(self) -> bool:
        """True if no value is larger than 1 in size."""
        return self.least >= -1 and self.most <= 1


TRAITS: Mapping[Activation, Traits] = {
    "relu": Traits("lines", least=0),
    "sigmoid": Traits("curve", 0, 1),
    "tanh": Traits("curve", -1, 1),
    "leaky_relu": Traits("lines", has_slope=True),
    "elu": Traits("curve", least=-1),
    "identity": Traits("lines"),
    "softmax": Traits("maps", 0, 1, increases=False),
    "gelu": Traits("curve", increases=False),
    "gelu_tanh": Traits("curve", increases=False),
    "prelu": Traits("lines", has_slope=True),
}


def check_activation(where: str, activation: object) -> None:
    """Check that an activation is known."""
    if activation not in get_args(Activation):
        raise InvalidInput(
            f"{where}: unknown activation {activation!r}; choose one of "
            f"{', '.join(get_args(Activation))}"
        )


def has_slopes(activation: Activation) -> bool:
    """Return whether an activation has a trained slope for each map."""
    return activation == "prelu"


def increases(activation: Activation, slope: float) -> bool:
    """Return whether a larger number never gives a smaller value.

    Args:
        slope: its slope for negative values, if it has one: the least one of all maps.
    """
    traits = TRAITS[activation]
    return traits.increases and (slope >= 0 or not traits.has_slope)
