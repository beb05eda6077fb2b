"""What PyTorch does for one patch, as pieces that can be timed by themselves.

A patch of a large network takes PyTorch many minutes, of which all but the shapes is repetition:
a direct convolution's time is proportional to the items and planes that it computes. So each
layer is timed on some of them, at its true extents in y and x, and the time scaled to all. That
leaves out what a whole run spends between the layers, in PyTorch's favour.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from znni.network import Conv, Layer
from znni.shapes import Shape5, Vec3

# Pooling is bound by memory: per value read it takes about the time of so many operations.
FLOPS_PER_POOLED_VALUE = 32

# Values of a part's input, at most.
MOST_VALUES = 2**28


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
    alive: int
    run: Callable[[Any], Any]

    def part(self, flops: float) -> tuple[int, int]:
        """Items and output planes that take about so many operations, at least one of each.

        Fewer where their inputs would be too large to copy a few times: pooling does.
        """
        share = min(flops / self.flops, MOST_VALUES / self.shape.elements)
        items = min(self.shape.n, int(share * self.shape.n))
        if items:
            return items, self.planes
        return 1, max(1, min(self.planes, int(share * self.shape.n * self.planes)))

    def seconds(self, flops: float, dtype: Any) -> float:
        """Time all runs for a patch, scaled from a part of one that has been run once before."""
        import torch

        items, planes = self.part(flops)
        size = (items, self.shape.f, planes * self.stride + self.reach, *self.shape[3:])
        x = torch.empty(size, dtype=dtype, memory_format=torch.channels_last_3d).normal_()
        self.run(x)
        start = time.perf_counter()
        self.run(x)
        taken = time.perf_counter() - start
        return taken * self.runs * self.shape.n / items * self.planes / planes


def layer_flops(layer: Layer, shape: Shape5, out: Vec3) -> float:
    """Operations of a direct convolution to ``out`` voxels, or a pool's equivalent."""
    if isinstance(layer, Conv):
        taps = layer.in_features * layer.kernel.volume
        return 2.0 * shape.n * out.volume * layer.out_features * taps
    return float(FLOPS_PER_POOLED_VALUE * shape.elements)


def seconds_in_parts(pieces: Iterable[Piece], flops: float, dtype: Any) -> float:
    """Time a patch by parts of its pieces, of about so many operations each."""
    import torch

    with torch.inference_mode():
        return sum(piece.seconds(flops, dtype) for piece in pieces)
