"""Dense output of a network by dilation in PyTorch: an oracle without code from znni.

Fragments rearrange the data; dilation spreads the layers instead. Max-pooling has stride 1 and so
keeps its input's resolution. All later kernels and windows step by the product of the poolings so
far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3
from znni.network.layers import Activation, Conv
from znni.network.network import Network
from znni.network.weights import Weights

if TYPE_CHECKING:
    import torch


def dense_dilated(
    network: Network, weights: Weights, x: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Return the network's output at every position of (f, z, y, x).

    ``reference.sliding_output`` returns the same.

    Args:
        network: a network of any kernels, windows and activations.
        weights: parameters of the network.
        x: scaled input in float32 or float64. Its type is the precision of the computation.

    Returns:
        Output (f', z', y', x') in the precision of ``x``.
    """
    import torch
    from torch.nn import functional

    value = torch.from_numpy(np.ascontiguousarray(x)).unsqueeze(0)
    step = Vec3(1, 1, 1)
    with torch.no_grad():
        for layer in network.layers:
            if isinstance(layer, Conv):
                weight = torch.from_numpy(weights[layer.name].weight).to(value.dtype)
                bias = torch.from_numpy(weights[layer.name].bias).to(value.dtype)
                value = functional.conv3d(value, weight, bias, dilation=tuple(step))
                value = _activate(value, layer.activation)
            else:
                value = functional.max_pool3d(
                    value, tuple(layer.window), stride=1, dilation=tuple(step)
                )
                step *= layer.window
    return np.asarray(value[0].numpy())


def _activate(x: torch.Tensor, kind: Activation) -> torch.Tensor:
    """Apply the activation with PyTorch's own functions; softmax runs over the maps."""
    from torch.nn import functional

    match kind:
        case "identity":
            return x
        case "softmax":
            return functional.softmax(x, dim=1)
        case "sigmoid" | "tanh" | "relu" | "leaky_relu" | "elu":
            return getattr(functional, kind)(x)
