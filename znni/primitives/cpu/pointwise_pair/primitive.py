"""Two convolutions of one tap as one pass: the maps between them stay in a cache.

Some voxels are copied, as rows of maps. A register tile makes some of the maps between from them,
applies their activation, and a second one adds their products to the sums of the output. A sum
after both is where these sums begin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import workspace
from znni.machine.machine import Device
from znni.network.layers import ConvPair, Operation, SummedConvPair
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applying, convolution_of, convolved_twice
from znni.primitives.cpu.common.activation import (
    Finish,
    activate,
    activate_further,
    row_finish,
    sum_output,
    with_activation,
    with_added,
)
from znni.primitives.cpu.common.numba_kernel import flat_view, numba_kernel, output_view
from znni.primitives.cpu.common.rows import put_row
from znni.primitives.cpu.common.streaming import bytes_to_write, fetch_to_read, is_streamed
from znni.primitives.cpu.common.workers import share_count, workers
from znni.primitives.cpu.direct.register_tile import add_tile, registers, tile_width

# Bytes of a piece: its input, some of the maps between, and its sums. With the weights that they
# meet, they stay in a second-level cache.
PIECE_BYTES = 256 * 1024

# The most voxels of a piece, and the most maps between that are made at a time.
MOST_VOXELS = 1024
MOST_MAPS = 128

# The most maps whose products are added up at a time: a tile's voxels of them stay in the nearest
# cache, while all weights pass by.
DEPTH = 256

# Rows begin an odd number of cache lines apart, so that a voxel's maps are in different sets.
LINE = 16

# Share of a core's nominal operations per second.
EFFICIENCY = 0.7


class Blocking(NamedTuple):
    """Division of the work into pieces of voxels, and of the maps between into parts.

    Attributes:
        maps: the maps of a register tile.
        width: its voxels.
        taken: the maps of the input.
        between: the maps between, in whole tiles.
        given: the maps of the output, in whole tiles.
        part: the maps between that are made at a time.
        voxels: the voxels of a piece, in whole tiles.
        pitch: the floats from one row to the next.
    """

    maps: int
    width: int
    taken: int
    between: int
    given: int
    part: int
    voxels: int
    pitch: int

    @classmethod
    def of(cls, layer: ConvPair, out: Shape5) -> Blocking:
        """Return the blocking for an output."""
        maps = registers().maps
        width = tile_width(maps)
        between, given = (
            -(-conv.out_features // maps) * maps for conv in (layer.conv, layer.after)
        )
        part = min(between, MOST_MAPS)
        taken = layer.conv.in_features
        fit = PIECE_BYTES // (4 * (taken + part + given))
        voxels = max(width, min(MOST_VOXELS, fit, out.size.volume + width - 1) // width * width)
        pitch = (-(-voxels // LINE) | 1) * LINE
        return cls(maps, width, taken, between, given, part, voxels, pitch)

    @property
    def deepest(self) -> int:
        """The most maps whose products are added up at a time."""
        return min(DEPTH, max(self.taken, self.part))

    @property
    def nbytes(self) -> int:
        """Bytes of a thread's workspace."""
        return 4 * self.pitch * (self.taken + self.part + self.given)

    def pieces(self, out: Shape5) -> int:
        """Return the pieces of all items."""
        return out.n * -(-out.size.volume // self.voxels)


@dataclass(frozen=True)
class PointwisePair:
    """Two convolutions of one tap on the CPU, and the sum after them."""

    device: Device
    name: str = "pointwise_pair"
    accuracy: float = 1e-5
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for two convolutions of one tap."""
        return convolved_twice(convolution_of(layer), shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: input and output cross the memory bus once."""
        pair, out = self._applied_to(layer, shape)
        blocking, threads = Blocking.of(pair, out), self.device.threads
        weights = blocking.between * (blocking.taken + blocking.given)
        cost = Cost(
            flops=2.0 * out.n * out.size.volume * weights,
            bytes_moved=shape.nbytes + bytes_to_write(out.nbytes),
            memory=Memory.beside(
                shape.nbytes + out.nbytes,
                workspace=threads * blocking.nbytes,
                resident=4 * weights + 8 * blocking.deepest,
            ),
            efficiency=EFFICIENCY,
            handed=HandedOut(1, share_count(threads, blocking.pieces(out))),
        )
        between = out._replace(f=pair.conv.out_features)
        cost = with_added(cost, layer, out)
        cost = with_activation(cost, pair.conv.activation, between, threads)
        return with_activation(cost, pair.after.activation, out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Order the weights as the register tiles read them."""
        pair, out = self._applied_to(layer, shape)
        adds = isinstance(layer, SummedConvPair)
        blocking, pool = Blocking.of(pair, out), workers(self.device.threads)
        first = conv_weights(pair.conv, weights)
        second = conv_weights(pair.after, weights and weights.after)
        ordered = [
            _tile_weights(given.weight, outer, inner, blocking.maps)
            for given, outer, inner in (
                (first, blocking.between, blocking.taken),
                (second, blocking.given, blocking.between),
            )
        ]
        places = np.arange(blocking.deepest, dtype=np.int64) * blocking.pitch
        finishes = [
            _whole(row_finish(conv, conv.out_features, given), maps)
            for conv, given, maps in (
                (pair.conv, first, blocking.between),
                (pair.after, second, blocking.given),
            )
        ]
        kernel = _pair_kernel(blocking.maps, blocking.width)
        parts = list(pool.shares(blocking.pieces(out)))

        def run(x: Float32, *others: Float32) -> Float32:
            y = sum_output(out, others)
            source, target = flat_view(x), output_view(y)
            rows = workspace((pool.threads, blocking.nbytes // 4), np.float32)

            def task(worker: int, part: slice) -> None:
                kernel(
                    *source, *target, tuple(out), tuple(blocking), part.start, part.stop,
                    rows[worker], *ordered, places, *finishes, adds,
                    is_streamed(out.nbytes) and not adds,
                )  # fmt: skip

            pool.for_each(task, parts)
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


def _tile_weights(weight: Float32, outer: int, inner: int, maps: int) -> Float32:
    """Return weights by tile of output maps, input map, and map of the tile; zeros fill tiles."""
    whole = np.zeros((outer, inner), np.float32)
    whole[tuple(map(slice, weight.shape[:2]))] = weight[..., 0, 0, 0]
    return np.ascontiguousarray(whole.reshape(-1, maps, inner).swapaxes(1, 2)).ravel()


def _whole(finish: Finish, maps: int) -> Finish:
    """Return the last step of a layer for whole tiles of maps."""
    around = (0, maps - len(finish.bias))
    return Finish(np.pad(finish.bias, around), np.pad(finish.slope, around), finish.code)


@numba_kernel
def _load(memory, start, strides, extents, first, count, row):  # type: ignore[no-untyped-def]
    """Copy some voxels of a map, counted through its rows."""
    done = 0
    while done < count:
        y, x = divmod(first + done, extents[4])
        z, y = divmod(y, extents[3])
        some = min(extents[4] - x, count - done)
        at = start + z * strides[2] + y * strides[3] + x
        source, target = memory[at : at + some], row[done : done + some]
        for i in range(some):
            target[i] = source[i]
        done += some


@numba_kernel
def _fetch(memory, start, strides, extents, first, count, maps):  # type: ignore[no-untyped-def]
    """Prefetch some voxels of all maps. They may reach over the end of one row, or beyond all."""
    y, x = divmod(first, extents[4])
    z, y = divmod(y, extents[3])
    at = start + z * strides[2] + y * strides[3] + x
    below = count if x + count <= extents[4] else count + strides[3] - extents[4]
    for f in range(maps):
        for i in range(0, below + LINE - 1, LINE):
            fetch_to_read(memory, at + f * strides[1] + i)  # numba passes the context


@numba_kernel
def _store(row, memory, start, strides, extents, first, count, streamed):  # type: ignore[no-untyped-def]
    """Store some voxels of a map, counted through its rows."""
    done = 0
    while done < count:
        y, x = divmod(first + done, extents[4])
        z, y = divmod(y, extents[3])
        some = min(extents[4] - x, count - done)
        at = start + z * strides[2] + y * strides[3] + x
        put_row(row[done : done + some], some, memory, at, streamed)
        done += some


@cache
def _pair_kernel(maps: int, width: int) -> Callable[..., None]:
    """Return the compiled loop over pieces, counted through all items, for a size of tile."""

    @numba_kernel
    def multiply_twice(  # type: ignore[no-untyped-def]
        memory, start, strides, target, target_start, target_strides, out, blocking, first_piece,
        stop_piece, rows, weights, later_weights, places, finish, later_finish, adds, streamed,
    ):  # fmt: skip
        taken, between, given, part, voxels, pitch = blocking[2:]
        volume = out[2] * out[3] * out[4]
        pieces = -(-volume // voxels)
        middle = rows[taken * pitch :]
        sums = rows[(taken + part) * pitch :]
        for index in range(first_piece, stop_piece):
            n, piece = divmod(index, pieces)
            first = piece * voxels
            count = min(voxels, volume - first)
            image, corner_of_output = start + n * strides[0], target_start + n * target_strides[0]
            for f in range(taken):
                corner = image + f * strides[1]
                _load(memory, corner, strides, out, first, count, rows[f * pitch :])
            if adds:
                for f in range(out[1]):
                    corner = corner_of_output + f * target_strides[1]
                    _load(target, corner, target_strides, out, first, count, sums[f * pitch :])
            for done in range(0, between, part):
                some = min(part, between - done)
                for seen in range(0, taken, DEPTH):
                    deep = min(DEPTH, taken - seen)
                    for at in range(0, count, width):
                        for o in range(done, done + some, maps):
                            add_tile(
                                maps, width, middle, (o - done) * pitch + at, pitch, seen > 0,
                                rows, seen * pitch + at, places, deep, weights,
                                o * taken + seen * maps,
                            )  # fmt: skip
                for f in range(some):
                    row = middle[f * pitch : f * pitch + count]
                    activate(row, finish[0][done + f], finish[1][done + f], finish[2])
                for at in range(0, count, width):
                    if done == 0:
                        ahead = first + voxels + at
                        _fetch(memory, image, strides, out, ahead, width, taken)
                        if adds:
                            _fetch(
                                target, corner_of_output, target_strides, out, ahead, width, out[1]
                            )  # fmt: skip
                    for o in range(0, given, maps):
                        add_tile(
                            maps, width, sums, o * pitch + at, pitch, adds or done > 0, middle, at,
                            places, some, later_weights, o * between + done * maps,
                        )  # fmt: skip
            for f in range(out[1]):
                row = sums[f * pitch : f * pitch + count]
                activate(row, later_finish[0][f], later_finish[1][f], later_finish[2])
                corner = corner_of_output + f * target_strides[1]
                _store(row, target, corner, target_strides, out, first, count, streamed)

    return multiply_twice
