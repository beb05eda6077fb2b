"""A network's dense output by dilation, in PyTorch: an oracle that shares no code with znni's.

Where fragments rearrange the data, dilation spreads the layers: max-pooling keeps its input's
resolution (stride 1), and all later kernels and windows step by the pooling so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3
from znni.network.network import Activation, Conv, Network
from znni.network.weights import Weights

if TYPE_CHECKING:
    import torch


def dense_dilated(
    network: Network, weights: Weights, x: NDArray[np.floating]
) -> NDArray[np.floating]:
    """The network at every position of (f, z, y, x), as ``reference.dense`` defines it.

    Args:
        network: any kernels, windows and activations.
        weights: of the network.
        x: scaled input; float32 or float64, which is also the precision of the computation.

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
    """The activation by PyTorch's own functions; softmax over the maps."""
    from torch.nn import functional

    match kind:
        case "identity":
            return x
        case "softmax":
            return functional.softmax(x, dim=1)
        case "sigmoid" | "tanh" | "relu" | "leaky_relu" | "elu":
            return getattr(functional, kind)(x)
