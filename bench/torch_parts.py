"""What PyTorch does for one patch, as pieces that can be timed by themselves.

A patch of a large network takes PyTorch many minutes, of which all but the shapes is repetition:
a direct convolution's time is proportional to the items and planes that it computes. So each
layer is timed on some of them, at its true extents in y and x, and the time scaled to all. That
leaves out what a whole run spends between the layers, in PyTorch's favour.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from znni.core.shapes import Shape5, Vec3
from znni.network.network import Conv, Layer

# Pooling is bound by memory: per value read it takes about the time of so many operations.
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
        flops: of one run, or what takes as long.
        runs: for one patch.
        values: of one run's input or output, the larger.
        alive: values held in memory while it runs.
        run: the computation, of an input of any number of items and planes.
    """

    layer: Layer
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
        """Items and output planes that take about so many operations, at least one of each.

        Fewer where their first touch would take longer than the operations.
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
            repeats: of which the median counts, after one that does not.
            empty: makes an array of a given shape, as ``run`` expects it.
        """
        items, planes = self.part(flops)
        x = empty((items, self.shape.f, planes * self.stride + self.reach, *self.shape[3:]))
        x.fill_(0.5)
        taken = [_seconds(self.run, x) for _ in range(1 + repeats)]
        scale = self.runs * self.shape.n / items * self.planes / planes
        return statistics.median(taken[1:]) * scale


def layer_flops(layer: Layer, shape: Shape5, out: Vec3) -> float:
    """Operations of a direct convolution to ``out`` voxels, or a pool's equivalent."""
    if isinstance(layer, Conv):
        taps = layer.in_features * layer.kernel.volume
        return 2.0 * shape.n * out.volume * layer.out_features * taps
    return float(FLOPS_PER_POOLED_VALUE * shape.elements)


def seconds_in_parts(
    pieces: Iterable[Piece], flops: float, repeats: int, empty: Callable[..., Any]
) -> float:
    """Time a patch by parts of its pieces: the sum of ``Piece.seconds``."""
    import torch

    with torch.inference_mode():
        return sum(piece.seconds(flops, repeats, empty) for piece in pieces)


def _seconds(function: Callable[[Any], Any], x: Any) -> float:
    start = time.perf_counter()
    function(x)
    return time.perf_counter() - start
