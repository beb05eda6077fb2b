"""Dense output by dilation in PyTorch: the usual way to densify a network with pooling.

Every layer keeps the full resolution; kernels and windows step by the product of the pooling
before them, and pools have stride 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.nn import functional

from bench.torch_network import TorchNetwork
from bench.torch_parts import Piece, layer_flops
from znni.core.shapes import Shape5, Vec3
from znni.network.network import Conv, Layer


class TorchDilated(TorchNetwork):
    """A network as dilated layers, valid."""

    def dense(self, image: Any) -> Any:
        """The network on a tensor (n, f, z, y, x)."""
        y, step = image, Vec3(1, 1, 1)
        for layer in self.network.layers:
            y = self._layer(layer, step, y)
            step = _next_step(layer, step)
        return y

    def pieces(self, patch: Vec3) -> list[Piece]:
        """Every layer once."""
        made = []
        shape = Shape5.of(1, self.network.in_features, patch + self.network.field_of_view - 1)
        step = Vec3(1, 1, 1)
        for layer in self.network.layers:
            features = layer.out_features if isinstance(layer, Conv) else shape.f
            reach = (_extent(layer) - 1) * step
            size = shape.size - reach
            out = Shape5.of(1, features, size)
            made.append(
                Piece(
                    layer=layer,
                    shape=shape,
                    planes=size.z,
                    stride=1,
                    reach=reach.z,
                    flops=layer_flops(layer, shape, size),
                    runs=1,
                    values=max(shape.elements, out.elements),
                    alive=shape.elements + out.elements,
                    run=partial(self._layer, layer, step),
                )
            )
            shape, step = out, _next_step(layer, step)
        return made

    def corner_by_pooling(self) -> None:
        """Plain pooling runs none of the dilated layers, and would tell nothing of them."""

    def _layer(self, layer: Layer, step: Vec3, y: Any) -> Any:
        if isinstance(layer, Conv):
            return self.convolve(layer, y, dilation=step)
        return functional.max_pool3d(y, tuple(layer.window), stride=1, dilation=tuple(step))


def _extent(layer: Layer) -> Vec3:
    return layer.kernel if isinstance(layer, Conv) else layer.window


def _next_step(layer: Layer, step: Vec3) -> Vec3:
    return step if isinstance(layer, Conv) else step * layer.window
