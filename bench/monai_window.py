"""MONAI's sliding-window inferer over the dilated network.

The inferer expects outputs of its window's extents and blends where windows overlap. A network
without padding gives less, so the output is padded to the window, the padding gets weight 0, and
windows overlap by the field of view less one: then nothing is blended, and the stitched result is
the dense one, followed by a border without values, which is cut off.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.accuracy import corners
from bench.noise import patch_input
from bench.torch_dilated import TorchDilated
from bench.torch_settings import PARTS
from znni.core.shapes import Vec3
from znni.network.network import Network
from znni.network.weights import Float32


class MonaiWindows(TorchDilated):
    """A volume of two windows, so that there is something to stitch; times are for one window."""

    def __init__(self, network: Network, dtype: str, layout: str, threads: int) -> None:
        super().__init__(network, dtype, layout, threads)
        self._border = network.field_of_view - 1

    def __call__(self, x: Float32) -> Float32:
        """The dense output (f', Z, Y, X) of a volume (f, z, y, x) of one window or more along x.

        The window takes all of z and y, and the patch that was prepared along x.
        """
        with torch.inference_mode():
            y = self._infer(self.tensor(x[np.newaxis]), self._padded)
        size = Vec3(*x.shape[1:]) - self._border
        return np.asarray(y[0, :, : size.z, : size.y, : size.x].float().contiguous().numpy())

    def seconds(self) -> float:
        """One window's: half of two, or the inferer's own work and the network's parts."""
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
        """The share of a window by which the next one overlaps; MONAI rounds the rest down."""
        return max(0.0, border / window - 1e-6)

    def _padded(self, window: Any) -> Any:
        """The network's output, followed by zeros up to the window's extents."""
        y = self.dense(window.contiguous(memory_format=self.layout))
        return functional.pad(y, (0, self._border.x, 0, self._border.y, 0, self._border.z))
