"""The peer for whole networks: max-pooling fragments in PyTorch, at the settings that suit it.

Channels last, and depth first over the first pool's fragments, so that its working set stays
small: the fastest arrangement of PyTorch's own operators that we found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from znni.engine.recombine import place
from znni.network import Conv, Layer, Network, Pool
from znni.shapes import Vec3, offsets
from znni.weights import Float32, Weights


class TorchFragments:
    """A network with ReLU or no activations, run on one patch at a time.

    Args:
        network: what to compute.
        weights: its parameters.
        dtype: ``torch.float32`` or ``torch.bfloat16``.
        threads: PyTorch's threads.
    """

    def __init__(self, network: Network, weights: Weights, dtype: Any, threads: int) -> None:
        torch.set_num_threads(threads)
        pools = [layer for layer in network.layers if isinstance(layer, Pool)]
        first_pool = network.layers.index(pools[0]) if pools else len(network.layers)
        self.network = network
        self.head = network.layers[:first_pool]
        self.tail = network.layers[first_pool + 1 :]
        self.window = pools[0].window if pools else Vec3(1, 1, 1)
        self.dtype = dtype
        self.parameters = {
            conv.name: (
                self._tensor(weights[conv.name].weight),
                torch.from_numpy(weights[conv.name].bias).to(dtype),
            )
            for conv in network.convolutions
        }

    def __call__(self, x: Float32) -> Float32:
        """The dense output (f', Z, Y, X) of a patch (f, z, y, x)."""
        size = Vec3(*x.shape[1:]) - self.network.field_of_view + 1
        dense = np.empty((self.network.out_features, *size), np.float32)
        with torch.inference_mode():
            stored = self._layers(self.head, self._tensor(x[np.newaxis]))
            for offset in offsets(self.window):
                y = self._layers(self.tail, _fragment(stored, self.window, offset))
                at, stride = self._positions(offset)
                place(y.float().contiguous().numpy(), at, stride, dense)
        return dense

    def _tensor(self, array: Float32) -> Any:
        tensor = torch.from_numpy(array).to(self.dtype)
        return tensor.contiguous(memory_format=torch.channels_last_3d)

    def _layers(self, layers: tuple[Layer, ...], y: Any) -> Any:
        for layer in layers:
            if isinstance(layer, Conv):
                y = functional.conv3d(y, *self.parameters[layer.name])
                y = functional.relu_(y) if layer.activation == "relu" else y
            else:
                parts = [_fragment(y, layer.window, offset) for offset in offsets(layer.window)]
                y = torch.stack(parts, dim=1).flatten(0, 1)
                y = y.contiguous(memory_format=torch.channels_last_3d)
        return y

    def _positions(self, offset: Vec3) -> tuple[tuple[Vec3, ...], Vec3]:
        """First dense positions of the tail's output, and the stride of its voxels."""
        at: tuple[Vec3, ...] = (offset,)
        stride = self.window
        for layer in self.tail:
            if isinstance(layer, Pool):
                at = tuple(first + stride * o for first in at for o in offsets(layer.window))
                stride *= layer.window
        return at, stride


def _fragment(x: Any, window: Vec3, offset: Vec3) -> Any:
    size = Vec3(*x.shape[2:]) + 1 - window
    stop = offset + size
    crop = x[:, :, offset.z : stop.z, offset.y : stop.y, offset.x : stop.x]
    return functional.max_pool3d(crop, tuple(window))
