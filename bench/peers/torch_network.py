"""The base of PyTorch's ways to run a network: parameters, timing whole or in parts.

A patch of a large network takes PyTorch many minutes, most of which is repetition: a direct
convolution's time is proportional to the items and planes that it computes. So each layer may be
timed on some of them, at its true extents in y and x, and the time is scaled to all. That leaves
out what a whole run spends between the layers, in PyTorch's favour.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from bench.accuracy import CORNER, Corners, OnDevice, corners, patch_input
from bench.peers.torch_settings import PARTS, WHOLE
from bench.rounds import seconds_of
from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Conv, SlidingLayer
from znni.network.network import Network
from znni.network.weights import Float32, random_weights

# PyTorch copies a patch's arrays to layouts of its own, which takes so many times their bytes. With
# twice their bytes, processes have been killed.
MEMORY_FACTOR = 3

# Longer parts tell nothing more.
PARTS_SECONDS = 20.0

# Measurements of a part; the median counts.
PART_REPEATS = 3

UNDILATED = Vec3(1, 1, 1)

# Pooling is bound by memory: a value that is read takes about the time of so many operations.
FLOPS_PER_POOLED_VALUE = 32

# Values of a part's input or output, at most: many times what the caches hold.
MOST_VALUES = 2**26


@dataclass(frozen=True)
class Piece:
    """One layer, as it is run one or several times for a patch.

    Attributes:
        layer: what is computed.
        shape: of one run's input.
        planes: of one run's output, along z.
        stride: input planes from one output plane to the next.
        reach: input planes beyond those strides.
        flops: of one run, or as many as take that long.
        runs: for one patch.
        values: of one run's input or output, the larger.
        alive: values held in memory while it runs.
        run: the computation, of an input of any number of items and planes.
    """

    layer: SlidingLayer
    shape: Shape5
    planes: int
    stride: int
    reach: int
    flops: float
    runs: int
    values: int
    alive: int
    run: Callable[[Any], Any]

    def part(self, flops: float) -> tuple[int, int]:
        """Return how many items and output planes take about so many operations, one at least.

        There are fewer if their first touch would take longer than the operations.
        """
        share = min(flops / self.flops, MOST_VALUES / self.values)
        items = min(self.shape.n, int(share * self.shape.n))
        if items:
            return items, self.planes
        return 1, max(1, min(self.planes, int(share * self.shape.n * self.planes)))

    def seconds(self, flops: float, repeats: int, empty: Callable[..., Any]) -> float:
        """Time all runs for a patch, scaled from a part of one.

        Args:
            flops: of the part, about.
            repeats: counted runs, after one that warms up; the median counts.
            empty: makes an array of a given shape, as ``run`` expects it.
        """
        items, planes = self.part(flops)
        x = empty((items, self.shape.f, planes * self.stride + self.reach, *self.shape[3:]))
        x.fill_(0.5)
        taken = [seconds_of(partial(self.run, x)) for _ in range(1 + repeats)]
        scale = self.runs * self.shape.n / items * self.planes / planes
        return statistics.median(taken[1:]) * scale


def layer_flops(layer: SlidingLayer, shape: Shape5, out: Vec3) -> float:
    """Return the operations of a direct convolution to ``out`` voxels, or a pool's equivalent."""
    if isinstance(layer, Conv):
        taps = layer.in_features * layer.kernel.volume
        return 2.0 * shape.n * out.volume * layer.out_features * taps
    return float(FLOPS_PER_POOLED_VALUE * shape.elements)


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
        """Return what is computed for a patch."""

    @abstractmethod
    def dense(self, image: Any) -> Any:
        """Return the dense output, a tensor (1, f', Z, Y, X), of one (1, f, z, y, x)."""

    def __call__(self, x: Float32) -> Float32:
        """Return the dense output (f', Z, Y, X) of a patch (f, z, y, x)."""
        with torch.inference_mode():
            y = self.dense(self.tensor(x[np.newaxis]))
        return np.asarray(y[0].float().contiguous().cpu().numpy())

    def needed_bytes(self, patch: Vec3) -> int:
        """Return the least memory that a patch's arrays take."""
        return int(self.dtype.itemsize) * max(piece.alive for piece in self.pieces(patch))

    def estimate(self, patch: Vec3, flops: float, repeats: int) -> float:
        """Return the seconds of a patch, from parts of about so many operations."""
        with torch.inference_mode():
            return sum(piece.seconds(flops, repeats, self.empty) for piece in self.pieces(patch))

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
        """Return what can be measured with real data, the fullest first, and its likely seconds."""
        return [(WHOLE, estimate)]

    def seconds(self) -> float:
        """Time what ``prepare`` chose, scaled to a whole patch."""
        if self.measured == PARTS:
            return self.estimate(self._patch, self._flops, PART_REPEATS)
        return self.timed(patch_input(self.network, self._patch))

    def timed(self, x: Float32) -> float:
        """Time a patch with real data, from a tensor to a tensor."""
        image = self.tensor(x[np.newaxis])
        with torch.inference_mode():
            start = self.now()
            y = self.dense(image)
            seconds = self.now() - start
        self._last = corners(self.network, OnDevice(y[0]))
        return seconds

    def now(self) -> float:
        """Return the time in seconds, once the device has finished its work."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    def corners(self) -> Corners | None:
        """Return the last run's corners; if only parts ran, the first one by plain pooling."""
        return self._last if self.measured != PARTS else self.corner_by_pooling()

    def corner_by_pooling(self) -> Corners | None:
        """Compute the first corner, which all patches share, by itself in this arithmetic."""
        x = patch_input(self.network, self.network.total_pooling * (CORNER - 1) + 1)
        return Corners(self._patch, self.pooled(x).astype(np.float32), None)

    def pooled(self, x: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the output (f', z, y, x) of an image (f, z, y, x) by plain pooling."""
        with torch.inference_mode():
            y = self.tensor(x[np.newaxis])
            for layer in self.network.sliding_layers:
                if isinstance(layer, Conv):
                    y = self.convolve(layer, y)
                else:
                    y = functional.max_pool3d(y, tuple(layer.window))
        return np.asarray(y[0].double().cpu().numpy())

    def empty(self, shape: tuple[int, ...]) -> Any:
        """Return a tensor of the right type, layout and device."""
        return torch.empty(shape, dtype=self.dtype, memory_format=self.layout, device=self.device)

    def tensor(self, array: NDArray[np.floating]) -> Any:
        """Copy an array to a new tensor of the right type and layout.

        The tensor is new because ``contiguous`` leaves the strides of a single map as they are,
        and the convolution's output then has the other layout.
        """
        return self.empty(array.shape).copy_(torch.from_numpy(array))

    def convolve(self, layer: Conv, x: Any, dilation: Vec3 = UNDILATED) -> Any:
        """Compute a convolution with bias and activation."""
        y = functional.conv3d(x, *self.parameters[layer.name], dilation=tuple(dilation))
        return functional.relu_(y) if layer.activation == "relu" else y
