"""Two convolutions of one tap as one pass: the maps between them stay in a cache.

The kernel takes some voxels at a time. A sum after both convolutions is where their sums begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from znni.core.shapes import Shape5, round_up
from znni.machine.arena import workspace
from znni.machine.machine import Device
from znni.network.layers import ConvPair, Operation, SummedConvPair
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applying, convolution_of, convolved_twice
from znni.primitives.cpu.common.activation import (
    activate_further,
    addresses,
    sum_output,
    vector_finish,
    with_activation,
    with_added,
)
from znni.primitives.cpu.common.numba_kernel import longest_rows
from znni.primitives.cpu.common.phases import run_phases
from znni.primitives.cpu.common.simd import LANES
from znni.primitives.cpu.common.vector_activation import curve
from znni.primitives.cpu.common.workers import share_count, workers
from znni.primitives.cpu.pointwise_pair.kernel import MOST_MAPS, TILE_MAPS, WIDTH, pair_kernel

# Bytes of a piece's rows. With the weights that they meet, they stay in a second-level cache.
PIECE_BYTES = 256 * 1024

# The most voxels of a piece.
MOST_VOXELS = 10 * WIDTH

# Share of a core's nominal operations per second.
EFFICIENCY = 0.9


class Blocking(NamedTuple):
    """Division of the work into pieces of voxels, and of the maps between into parts.

    Attributes:
        taken: the maps of the input.
        between: the maps between, in whole tiles.
        given: the maps of the output, in whole tiles.
        part: the maps between that are made at a time.
        voxels: the voxels of a piece, in whole vectors.
        pitch: the floats from one row to the next: an odd number of cache lines, so that a voxel's
            maps are in different sets.
    """

    taken: int
    between: int
    given: int
    part: int
    voxels: int
    pitch: int

    @classmethod
    def of(cls, layer: ConvPair, out: Shape5, threads: int) -> Blocking:
        """Return the blocking for an output."""
        taken = layer.conv.in_features
        between, given = (
            round_up(conv.out_features, TILE_MAPS) for conv in (layer.conv, layer.after)
        )
        fit = max(1, min(MOST_VOXELS, PIECE_BYTES // (4 * (taken + given))) // WIDTH)
        each = round_up(-(-out.size.volume // threads), LANES)
        voxels = min(fit * WIDTH, each)
        pitch = (voxels // LANES | 1) * LANES
        return cls(taken, between, given, min(between, MOST_MAPS), voxels, pitch)

    @property
    def nbytes(self) -> int:
        """Bytes of a thread's workspace."""
        return 4 * (self.pitch * (self.taken + self.given) + WIDTH * self.part)

    def pieces(self, out: Shape5) -> int:
        """Return the pieces of an item."""
        return -(-out.size.volume // self.voxels)


@dataclass(frozen=True)
class PointwisePair:
    """Two convolutions of one tap on the CPU, and the sum after them."""

    device: Device
    name: str = "pointwise_pair"
    accuracy: float = 1e-5
    version = 2

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for two convolutions of one tap."""
        return convolved_twice(convolution_of(layer), shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: input and output cross the memory bus once."""
        pair, out = self._applied_to(layer, shape)
        threads = self.device.threads
        blocking = Blocking.of(pair, out, threads)
        weights = blocking.between * (blocking.taken + blocking.given)
        cost = Cost(
            flops=2.0 * out.n * out.size.volume * weights,
            bytes_moved=shape.nbytes + 2 * out.nbytes,
            memory=Memory.beside(
                shape.nbytes + out.nbytes,
                workspace=threads * blocking.nbytes,
                resident=4 * weights,
            ),
            efficiency=EFFICIENCY,
            handed=HandedOut(1),
        )
        between = out._replace(f=pair.conv.out_features)
        cost = with_added(cost, layer, out)
        cost = with_activation(cost, pair.conv.activation, between, threads)
        return with_activation(cost, pair.after.activation, out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Order the weights as the register tiles read them."""
        pair, out = self._applied_to(layer, shape)
        adds = isinstance(layer, SummedConvPair)
        pool = workers(self.device.threads)
        blocking = Blocking.of(pair, out, pool.threads)
        first = conv_weights(pair.conv, weights)
        second = conv_weights(pair.after, weights and weights.after)
        ordered = _tile_weights(first.weight, blocking.between, blocking.taken)
        later = _tile_weights(second.weight, blocking.given, blocking.between)
        finish, last = vector_finish(pair.conv, first), vector_finish(pair.after, second)
        kernel = pair_kernel(curve(pair.conv.activation), curve(pair.after.activation), adds)
        pieces = blocking.pieces(out)
        together = -(-out.n * pieces // share_count(pool.threads, out.n * pieces))
        scaling = np.ones(shape.n * shape.f, np.float32), np.zeros(shape.n * shape.f, np.float32)
        factors, shifts = scaling

        def run(x: Float32, *others: Float32) -> Float32:
            y = sum_output(out, others)
            source, target = longest_rows(x, y)
            rows = workspace((pool.threads, blocking.nbytes // 4), np.float32)
            phase = kernel.phase(
                -(-out.n * pieces // together), volume=out.size.volume, rows=target.shape[3],
                width=target.shape[4], pieces=pieces, all_pieces=out.n * pieces, maps=out.f,
                together=together, **blocking._asdict(),
                fetched=-(-blocking.taken * TILE_MAPS // blocking.between),
                weights=ordered.ctypes.data, later_weights=later.ctypes.data,
                factors=factors.ctypes.data, shifts=shifts.ctypes.data,
                **_places("source", source), **_places("target", target), **addresses(finish),
                **{f"later_{name}": place for name, place in addresses(last).items()},
            )  # fmt: skip
            run_phases([phase], [each.ctypes.data for each in rows], pool)
            activate_further(y, pair.after, pool)
            return y

        return run

    def _applied_to(self, layer: Operation, shape: Shape5) -> tuple[ConvPair, Shape5]:
        """Return the convolutions of a layer, and the output's shape."""
        pair, out = convolution_of(layer), self.out_shape(layer, shape)
        applied = (pair, out) if isinstance(pair, ConvPair) and out else None
        return applying(applied, self, layer, shape)


def primitives(device: Device) -> tuple[PointwisePair, ...]:
    """Return the one primitive."""
    return (PointwisePair(device),)


def _tile_weights(weight: Float32, outer: int, inner: int) -> Float32:
    """Return weights by tile of output maps, input map, and map of the tile; zeros fill tiles."""
    whole = np.zeros((outer, inner), np.float32)
    whole[tuple(map(slice, weight.shape[:2]))] = weight[..., 0, 0, 0]
    return np.ascontiguousarray(whole.reshape(-1, TILE_MAPS, inner).swapaxes(1, 2)).ravel()


def _places(name: str, array: Float32) -> dict[str, int]:
    """Return the arguments of the kernel that say where an array lies."""
    axes = ("item", "map", "plane", "row")
    strides = (stride // array.itemsize for stride in array.strides)
    return {name: array.ctypes.data} | {
        f"{name}_{axis}": stride for axis, stride in zip(axes, strides, strict=False)
    }
