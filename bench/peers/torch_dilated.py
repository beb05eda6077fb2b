"""Dense output by dilation in PyTorch, and MONAI's sliding-window inferer over it.

Dilation is the usual way to make a network with pooling dense. Every layer keeps the full
resolution. Kernels and windows step by the product of the pooling before them, and pools have
stride 1.

MONAI's inferer expects outputs of its window's extents, and blends overlapping windows. A network
without padding gives less. So the output is padded to the window, the padding gets weight 0, and
windows overlap by the field of view less one. Then nothing is blended. The stitched result is the
dense one, followed by a border without values, which is cut off.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.accuracy import corners, patch_input
from bench.peers.torch_network import Piece, TorchNetwork, layer_flops
from bench.peers.torch_settings import PARTS
from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Conv, SlidingLayer
from znni.network.network import Network
from znni.network.weights import Float32


class TorchDilated(TorchNetwork):
    """A network as dilated layers, without padding."""

    def dense(self, image: Any) -> Any:
        """Run the network on a tensor (n, f, z, y, x)."""
        y, step = image, Vec3(1, 1, 1)
        for layer in self.network.sliding_layers:
            y = self._layer(layer, step, y)
            step = _next_step(layer, step)
        return y

    def pieces(self, patch: Vec3) -> list[Piece]:
        """Return every layer once."""
        made = []
        shape = Shape5.of(1, self.network.in_features, patch + self.network.field_of_view - 1)
        step = Vec3(1, 1, 1)
        for layer in self.network.sliding_layers:
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
        """Return nothing: plain pooling runs none of the dilated layers."""

    def _layer(self, layer: SlidingLayer, step: Vec3, y: Any) -> Any:
        if isinstance(layer, Conv):
            return self.convolve(layer, y, dilation=step)
        return functional.max_pool3d(y, tuple(layer.window), stride=1, dilation=tuple(step))


class MonaiWindows(TorchDilated):
    """A volume of two windows, so that there is something to stitch; times are for one window."""

    def __init__(self, network: Network, dtype: str, layout: str, threads: int) -> None:
        super().__init__(network, dtype, layout, threads)
        self._border = network.field_of_view - 1

    def __call__(self, x: Float32) -> Float32:
        """Return the dense output (f', Z, Y, X) of a volume (f, z, y, x).

        The volume has one window or more along x. A window takes all of z and y, and the patch
        that was prepared along x.
        """
        with torch.inference_mode():
            y = self._infer(self.tensor(x[np.newaxis]), self._padded)
        size = Vec3(*x.shape[1:]) - self._border
        return np.asarray(y[0, :, : size.z, : size.y, : size.x].float().contiguous().numpy())

    def seconds(self) -> float:
        """Time one window: half of two, or the inferer's own work and the network's parts."""
        volume = self._patch._replace(x=2 * self._patch.x)
        x = patch_input(self.network, volume)
        start = time.perf_counter()
        if self.measured == PARTS:
            window = (1, self.network.out_features, *(self._patch + self._border))
            output = torch.ones(window, dtype=self.dtype)
            with torch.inference_mode():
                self._infer(self.tensor(x[np.newaxis]), lambda _: output.clone())
            own = (time.perf_counter() - start) / 2
            return own + super().seconds()
        y = self(x)
        seconds = (time.perf_counter() - start) / 2
        self._last = corners(self.network, y)
        return seconds

    def _infer(self, volume: Any, predictor: Any) -> Any:
        from monai.inferers.utils import sliding_window_inference

        window = Vec3(*volume.shape[2:])._replace(x=self._patch.x + self._border.x)
        weight = torch.zeros(tuple(window))
        valid = window - self._border
        weight[: valid.z, : valid.y, : valid.x] = 1
        return sliding_window_inference(
            volume,
            tuple(window),
            sw_batch_size=1,
            predictor=predictor,
            overlap=[self._overlap(*pair) for pair in zip(window, self._border, strict=True)],
            roi_weight_map=weight,
        )

    @staticmethod
    def _overlap(window: int, border: int) -> float:
        """Return the share of a window that the next one overlaps; MONAI rounds the rest down."""
        return max(0.0, border / window - 1e-6)

    def _padded(self, window: Any) -> Any:
        """Return the network's output, followed by zeros up to the window's extents."""
        y = self.dense(window.contiguous(memory_format=self.layout))
        return functional.pad(y, (0, self._border.x, 0, self._border.y, 0, self._border.z))


def _extent(layer: SlidingLayer) -> Vec3:
    return layer.kernel if isinstance(layer, Conv) else layer.window


def _next_step(layer: SlidingLayer, step: Vec3) -> Vec3:
    return step if isinstance(layer, Conv) else step * layer.window
