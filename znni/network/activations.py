"""Activations: functions of one value, or of all maps of a voxel."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from znni.core.errors import InvalidInput

Activation: TypeAlias = Literal[
    "relu", "sigmoid", "tanh", "leaky_relu", "elu", "identity", "softmax", "gelu", "gelu_tanh",
    "prelu",
]  # fmt: skip

# The slope of leaky_relu for negative values if none is given, as in PyTorch.
LEAKY_SLOPE = 0.01


def check_activation(where: str, activation: object) -> None:
    """Check that an activation is known.

    Args:
        where: the beginning of the message.
        activation: the value to check.

    Raises:
        InvalidInput: it is not.
    """
    if activation not in get_args(Activation):
        raise InvalidInput(
            f"{where}: unknown activation {activation!r}; choose one of "
            f"{', '.join(get_args(Activation))}"
        )


def has_slopes(activation: Activation) -> bool:
    """Return whether an activation has a trained slope for each map."""
    return activation == "prelu"
