"""What PyTorch's ways to run a network have in common: parameters, timing whole or in parts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from bench.accuracy import CORNER, Corners, corners
from bench.noise import patch_input
from bench.on_device import OnDevice
from bench.torch_parts import Piece, seconds_in_parts
from bench.torch_settings import PARTS, WHOLE
from znni.core.shapes import Vec3
from znni.network.network import Conv, Network
from znni.network.weights import Float32, random_weights

# What PyTorch takes of memory for a patch's arrays, which it copies to layouts of its own: with
# twice their bytes, processes have been killed.
MEMORY_FACTOR = 3

# Parts that take longer than this tell nothing more.
PARTS_SECONDS = 20.0

# Measurements of a part, of which the median counts.
PART_REPEATS = 3

UNDILATED = Vec3(1, 1, 1)


class TorchNetwork(ABC):
    """A network with ReLU or no activations and random weights, one patch at a time.

    Args:
        network: what to compute.
        dtype: of all arithmetic, by PyTorch's name.
        layout: of all arrays in memory, by PyTorch's name.
        threads: PyTorch's.
        device: where it computes, by PyTorch's name.
    """

    def __init__(
        self, network: Network, dtype: str, layout: str, threads: int, device: str = "cpu"
    ) -> None:
        torch.set_num_threads(threads)
        self.network = network
        self.device = device
        self.dtype = getattr(torch, dtype)
        self.layout = getattr(torch, layout)
        weights = random_weights(network, 0)
        self.parameters = {
            conv.name: (
                self.tensor(weights[conv.name].weight),
                torch.from_numpy(weights[conv.name].bias).to(self.device, self.dtype),
            )
            for conv in network.convolutions
        }
        self.measured = WHOLE
        self._patch = network.total_pooling
        self._flops = 0.0
        self._last: Corners | None = None

    @abstractmethod
    def pieces(self, patch: Vec3) -> list[Piece]:
        """What is computed for a patch."""

    @abstractmethod
    def dense(self, image: Any) -> Any:
        """The dense output, a tensor (1, f', Z, Y, X), of one (1, f, z, y, x)."""

    def __call__(self, x: Float32) -> Float32:
        """The dense output (f', Z, Y, X) of a patch (f, z, y, x)."""
        with torch.inference_mode():
            y = self.dense(self.tensor(x[np.newaxis]))
        return np.asarray(y[0].float().contiguous().cpu().numpy())

    def needed_bytes(self, patch: Vec3) -> int:
        """The least memory that a patch's arrays take."""
        return int(self.dtype.itemsize) * max(piece.alive for piece in self.pieces(patch))

    def estimate(self, patch: Vec3, flops: float, repeats: int) -> float:
        """Seconds of a patch, from parts of about so many operations."""
        return seconds_in_parts(self.pieces(patch), flops, repeats, self.empty)

    def prepare(self, patch: Vec3, estimate: float, limit: float, room: int) -> str:
        """Choose what ``seconds`` measures, and say what that is.

        Args:
            patch: output voxels per axis.
            estimate: of a whole patch's seconds.
            limit: seconds that one measurement may take.
            room: bytes that it may take.
        """
        self._patch = patch
        self.measured = PARTS
        if MEMORY_FACTOR * self.needed_bytes(patch) <= room:
            for what, seconds in self.ways(patch, estimate):
                if seconds <= limit:
                    self.measured = what
                    break
        pieces = self.pieces(patch)
        operations = sum(piece.flops * piece.runs for piece in pieces)
        seconds = min(limit, PARTS_SECONDS) / len(pieces) / (1 + PART_REPEATS)
        self._flops = operations / estimate * seconds
        return self.measured

    def ways(self, patch: Vec3, estimate: float) -> list[tuple[str, float]]:  # noqa: ARG002
        """What can be measured with real data, the fullest first, and its likely seconds."""
        return [(WHOLE, estimate)]

    def seconds(self) -> float:
        """Time what ``prepare`` chose; always scaled to a whole patch."""
        if self.measured == PARTS:
            return self.estimate(self._patch, self._flops, PART_REPEATS)
        return self.timed(patch_input(self.network, self._patch))

    def timed(self, x: Float32) -> float:
        """Seconds of a patch with real data, from a tensor to a tensor."""
        image = self.tensor(x[np.newaxis])
        with torch.inference_mode():
            start = self.now()
            y = self.dense(image)
            seconds = self.now() - start
        self._last = corners(self.network, OnDevice(y[0]))
        return seconds

    def now(self) -> float:
        """The time in seconds, once all that was asked for is done."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    def corners(self) -> Corners | None:
        """The last run's corners; where only parts ran, the first one by plain pooling."""
        return self._last if self.measured != PARTS else self.corner_by_pooling()

    def corner_by_pooling(self) -> Corners | None:
        """The first corner that all patches share, computed by itself in this arithmetic."""
        x = patch_input(self.network, self.network.total_pooling * (CORNER - 1) + 1)
        return Corners(self._patch, self.pooled(x).astype(np.float32), None)

    def pooled(self, x: NDArray[np.floating]) -> NDArray[np.floating]:
        """The output (f', z, y, x) of an image (f, z, y, x) by plain pooling."""
        with torch.inference_mode():
            y = self.tensor(x[np.newaxis])
            for layer in self.network.layers:
                if isinstance(layer, Conv):
                    y = self.convolve(layer, y)
                else:
                    y = functional.max_pool3d(y, tuple(layer.window))
        return np.asarray(y[0].double().cpu().numpy())

    def empty(self, shape: tuple[int, ...]) -> Any:
        """A tensor of the right type, layout and device."""
        return torch.empty(shape, dtype=self.dtype, memory_format=self.layout, device=self.device)

    def tensor(self, array: NDArray[np.floating]) -> Any:
        """An array as a tensor of the right type and layout.

        By a new tensor, because ``contiguous`` leaves the strides of a single map as they are,
        and the convolution's output then has the other layout.
        """
        return self.empty(array.shape).copy_(torch.from_numpy(array))

    def convolve(self, layer: Conv, x: Any, dilation: Vec3 = UNDILATED) -> Any:
        """A convolution with bias and activation."""
        y = functional.conv3d(x, *self.parameters[layer.name], dilation=tuple(dilation))
        return functional.relu_(y) if layer.activation == "relu" else y
