"""The definition of correct for sliding networks: plain float64 NumPy, one line at a time.

The code is slow by design. Tests compare every primitive with these functions. They compare the
dense output of a sliding network with ``sliding_output``, which takes one window after another.
``tiled_reference`` of ``znni.primitives`` has the layers of tiled networks.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from znni.core.shapes import Vec3, offsets
from znni.network.layers import Conv, Layer, Pool
from znni.network.network import Network
from znni.network.node import INPUT
from znni.network.weights import ConvWeights, Weights
from znni.primitives.reference import Float64, activation


def convolution(x: NDArray[np.floating], layer: Conv, weights: ConvWeights) -> Float64:
    """Return the valid cross-correlation of (n, f, z, y, x), plus bias, after the activation."""
    windows = sliding_window_view(x.astype(np.float64), layer.kernel, axis=(2, 3, 4))
    z_step, y_step, x_step = layer.stride
    windows = windows[:, :, ::z_step, ::y_step, ::x_step]
    y = np.einsum("nfzyxabc,ofabc->nozyx", windows, weights.weight, optimize=True)
    slope = layer.slope if weights.slope is None else weights.slope
    return activation(y + weights.bias[None, :, None, None, None], layer.activation, slope)


def pooling(x: NDArray[np.floating], layer: Pool) -> Float64:
    """Return pooling with stride = window; voxels beyond the last whole window are dropped."""
    pz, py, px = layer.window
    windows = sliding_window_view(x.astype(np.float64), layer.window, axis=(2, 3, 4))
    windows = windows[:, :, ::pz, ::py, ::px]
    reduced = windows.max if layer.reduce == "max" else windows.mean
    return np.asarray(reduced(axis=(5, 6, 7)))


def pooling_fragments(x: NDArray[np.floating], layer: Pool) -> Float64:
    """Return all fragments of a pooling, parent-major: batch index = b * |p| + offset index."""
    shape = ((Vec3(*x.shape[2:]) + 1) // layer.window) * layer.window - 1
    size = Vec3.of(shape) - layer.window + 1
    parts = [
        pooling(x[:, :, o.z : o.z + size.z, o.y : o.y + size.y, o.x : o.x + size.x], layer)
        for o in offsets(layer.window)
    ]
    return np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])


def sliding_output(network: Network, weights: Weights, x: NDArray[np.floating]) -> Float64:
    """Return the network's output at every position of (f, z, y, x), one field of view each.

    The fields of view along x are a batch of images.
    """
    view = network.field_of_view
    size = Vec3(*x.shape[1:]) - view + 1
    y = np.empty((network.out_features, *size))
    for at in offsets(size._replace(x=1)):
        row = x[:, at.z : at.z + view.z, at.y : at.y + view.y]
        fields = np.moveaxis(sliding_window_view(row, view.x, axis=3), 3, 0)
        values: dict[str, NDArray[np.floating]] = {INPUT: fields}
        for node in network.nodes:
            (taken,) = node.inputs
            values[node.name] = _computed(node.layer, weights, values[taken])
        y[:, at.z, at.y] = values[network.output][:, :, 0, 0, 0].T
    return y


def _computed(layer: Layer, weights: Weights, x: NDArray[np.floating]) -> Float64:
    if isinstance(layer, Conv):
        return convolution(x, layer, weights[layer.name])
    if isinstance(layer, Pool):
        return pooling(x, layer)
    raise ValueError(f"layer {layer.name} is of a tiled network")
