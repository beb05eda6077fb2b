"""Activations as plain float64 NumPy, one line of mathematics at a time.

``tiled_reference`` has the layers of tiled networks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from znni.network.layers import LEAKY_SLOPE, Activation

Float64 = NDArray[np.float64]


def activation(
    x: Float64, kind: Activation, slope: float | NDArray[np.floating] = LEAKY_SLOPE
) -> Float64:
    """Return the activation of values (n, f, z, y, x).

    Args:
        x: the values.
        slope: the factor of negative values for leaky_relu; for prelu, one for each map.
    """
    match kind:
        case "identity":
            return x
        case "relu":
            return np.maximum(x, 0)
        case "leaky_relu":
            return np.where(x > 0, x, slope * x)
        case "elu":
            return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
        case "prelu":
            return np.where(x > 0, x, np.reshape(slope, (-1, 1, 1, 1)) * x)
        case "gelu":
            from scipy.special import erf  # slow to import

            return np.asarray(x / 2 * (1 + erf(x / np.sqrt(2))))
        case "gelu_tanh":
            inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
            return np.asarray(x / 2 * (1 + np.tanh(inner)))
        case "sigmoid":
            with np.errstate(over="ignore"):  # exp is infinite then, the result 0
                return 1 / (1 + np.exp(-x))
        case "tanh":
            return np.tanh(x)
        case "softmax":
            powers = np.exp(x - x.max(axis=1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=1, keepdims=True))
