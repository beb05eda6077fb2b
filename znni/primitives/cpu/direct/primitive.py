"""Direct convolution: sums of shifted rows, blocked for registers and cache.

A band of output rows is computed at a time. The input rows under it are copied end to end, so that
a position's neighbours lie at fixed offsets. A register tile may run across row ends: it then
computes a few positions that are dropped. Nothing depends on the input's layout in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to, convolved
from znni.primitives.cpu.common.activation import (
    CODES,
    FUSED_BY_ROW,
    activate,
    softmax_over_maps,
    with_activation,
)
from znni.primitives.cpu.common.numba_kernel import flat_view, numba_kernel
from znni.primitives.cpu.common.streaming import (
    bytes_to_write,
    fetch_to_write,
    is_streamed,
    stream,
)
from znni.primitives.cpu.common.workers import share_count, workers
from znni.primitives.cpu.direct.register_tile import add_tile, registers, tile_width

# Bytes of a band's sums, which stay in the second-level cache. They are the sums of one register
# tile's maps, or of all maps if input maps must be copied in several groups.
SUMS_BYTES = 256 * 1024
# Bytes of copied input rows; as many maps as fit are copied at a time.
PACKED_BYTES = 256 * 1024
# Largest number of positions in a band, so that the copied rows of one map do not grow too large.
BAND_POSITIONS = 4096

# Share of a core's nominal operations per second.
EFFICIENCY = 0.7


class Blocking(NamedTuple):
    """Division of a layer into bands and register tiles.

    Attributes:
        maps: output maps in a register tile.
        width: positions in a register tile.
        groups: number of register tiles that hold all output maps.
        rows: output rows in a band.
        positions: positions in a band, including dropped ones, in whole tiles.
        features: input maps copied at a time.
        packed: floats of the copied rows, including those that the last tile reads beyond them.
        sums: floats of the sums kept at a time.
        finished: floats of a map's output rows on their way past the caches; 0 if the output is
            stored as usual.
    """

    maps: int
    width: int
    groups: int
    rows: int
    positions: int
    features: int
    packed: int
    sums: int
    finished: int

    @classmethod
    def of(cls, layer: Conv, shape: Shape5, out: Shape5) -> Blocking:
        """Return the blocking for a layer on an input of ``shape``."""
        one_go = cls._keeping(1, layer, shape, out)
        if one_go.features == shape.f:
            return one_go
        return cls._keeping(one_go.groups, layer, shape, out)

    @classmethod
    def _keeping(cls, kept: int, layer: Conv, shape: Shape5, out: Shape5) -> Blocking:
        """Return the blocking that keeps the sums of so many groups at a time."""
        groups = -(-layer.out_features // registers().maps)
        maps = -(-layer.out_features // groups)
        width = tile_width(maps)
        most = min(BAND_POSITIONS, SUMS_BYTES // (4 * kept * maps))
        bands = -(-out.y // max(1, most // shape.x))
        rows = -(-out.y // bands)
        needed = (rows - 1) * shape.x + out.x
        positions = -(-needed // width) * width
        map_size = layer.kernel.z * (rows + layer.kernel.y - 1) * shape.x
        features = min(shape.f, max(1, PACKED_BYTES // (4 * map_size)))
        return cls(
            maps, width, groups, rows, positions, features,
            packed=features * map_size + positions - needed,
            sums=kept * maps * positions,
            finished=rows * out.x if is_streamed(out.nbytes) else 0,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of a thread's workspace."""
        return 4 * (self.packed + self.sums + self.finished)


@dataclass(frozen=True)
class Direct:
    """Direct convolution on the CPU, with bias and activation fused."""

    device: Device
    name: str = "direct"
    accuracy: float = 1e-5
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for any convolution."""
        return convolved(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost; the workspace is one band for each thread."""
        layer, out = applied_to(Conv, self, layer, shape)
        blocking = Blocking.of(layer, shape, out)
        maps = blocking.maps * blocking.groups
        taps = layer.in_features * layer.kernel.volume
        bands = out.n * out.z * -(-out.y // blocking.rows)
        read_again = layer.kernel.z * (blocking.rows + layer.kernel.y - 1) / blocking.rows
        cost = Cost(
            flops=2.0 * bands * maps * blocking.positions * taps,
            bytes_moved=shape.nbytes * read_again + bytes_to_write(out.nbytes),
            memory=Memory.beside(
                shape.nbytes + out.nbytes,
                workspace=self.device.threads * blocking.nbytes,
                resident=4 * maps * taps + 8 * blocking.features * layer.kernel.volume,
            ),
            efficiency=EFFICIENCY,
            handed=HandedOut(1, share_count(self.device.threads, bands)),
        )
        return with_activation(cost, layer.activation, out, FUSED_BY_ROW, self.device.threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare the layer: order the weights as the register tile reads them."""
        layer, out = applied_to(Conv, self, layer, shape)
        given = conv_weights(layer, weights)
        blocking = Blocking.of(layer, shape, out)
        tile_weights = _tile_weights(given.weight, blocking)
        offsets = _tap_offsets(layer.kernel, shape, blocking)
        convolve_bands = _band_kernel(blocking.maps, blocking.width)
        code, pool = CODES[layer.activation], workers(self.device.threads)
        bands = -(-out.y // blocking.rows)
        parts = list(pool.shares(out.n * out.z * bands))

        def run(x: Float32) -> Float32:
            view = flat_view(x)
            y = new_output(out)
            packed = workspace((pool.threads, blocking.packed), np.float32)
            sums = workspace((pool.threads, blocking.sums), np.float32)
            finished = workspace((pool.threads, blocking.finished), np.float32)

            def task(worker: int, part: slice) -> None:
                convolve_bands(
                    *view, tuple(shape), tuple(layer.kernel), y.ravel(), tuple(out), part.start,
                    part.stop, blocking.rows, blocking.features, blocking.positions,
                    packed[worker], sums[worker], finished[worker], tile_weights, offsets,
                    given.bias, code,
                )  # fmt: skip

            pool.for_each(task, parts)
            if layer.activation == "softmax":
                softmax_over_maps(y, pool)
            return y

        return run


def primitives(device: Device) -> tuple[Direct, ...]:
    """Return the direct convolution."""
    return (Direct(device),)


def _tile_weights(weight: Float32, blocking: Blocking) -> Float32:
    """Return weights by group, input map, tap and map; zero for maps that fill the last group."""
    out_features = weight.shape[0]
    padded = np.zeros((blocking.groups, weight[0].size, blocking.maps), np.float32)
    for o in range(out_features):
        padded[o // blocking.maps, :, o % blocking.maps] = weight[o].ravel()
    return padded.ravel()


def _tap_offsets(kernel: Vec3, shape: Shape5, blocking: Blocking) -> NDArray[np.int64]:
    """Return the offset of each tap in the copied maps, from the position that it adds to."""
    rows = blocking.rows + kernel.y - 1
    size = (blocking.features, kernel.z, rows, shape.x)
    index = np.arange(np.prod(size), dtype=np.int64).reshape(size)
    return index[:, :, : kernel.y, : kernel.x].ravel()


@numba_kernel
def _pack(memory, start, strides, corner, extent, height, packed):  # type: ignore[no-untyped-def]
    """Copy maps and rows end to end: ``extent`` (f, z, y, x) from ``corner`` (f, z, y).

    Each map's plane takes ``height`` rows. The last rows may keep their old values.
    """
    features, planes, rows, width = extent
    for f in range(features):
        for z in range(planes):
            at = start + (corner[0] + f) * strides[1] + (corner[1] + z) * strides[2]
            to = (f * planes + z) * height * width
            for y in range(rows):
                source = memory[at + (corner[2] + y) * strides[3] :]
                target = packed[to + y * width :]
                for x in range(width):
                    target[x] = source[x]


@numba_kernel
def _finish(sums, pitch, rows, width, bias, code, finished, y, start):  # type: ignore[no-untyped-def]
    """Move the sums of kept positions into the output's rows, with bias and activation.

    If ``finished`` has any room, they are built there and streamed to the output.
    """
    size = rows * width
    streamed = finished.size > 0
    target = finished[:size] if streamed else y[start : start + size]
    for i in range(rows):
        row, total = target[i * width :], sums[i * pitch :]
        for x in range(width):
            row[x] = total[x]
    activate(target, bias, code)
    if streamed:
        stream(target, y, start, size)  # type: ignore[call-arg]  # numba passes the context


@cache
def _band_kernel(maps: int, width: int) -> Callable[..., None]:
    """Return the compiled loop over bands (n, z, y), for one size of register tile."""

    @numba_kernel
    def convolve_bands(  # type: ignore[no-untyped-def]
        memory, start, strides, shape, kernel, y, out, first_band, stop_band, rows, features,
        positions, packed, sums, finished, weights, offsets, bias, code,
    ):  # fmt: skip
        volume = kernel[0] * kernel[1] * kernel[2]
        height = rows + kernel[1] - 1
        bands = -(-out[3] // rows)
        for index in range(first_band, stop_band):
            plane, band = divmod(index, bands)
            n, top = divmod(plane, out[2])
            left = band * rows
            band_rows = min(rows, out[3] - left)
            used, size = (band_rows - 1) * shape[4] + out[4], band_rows * out[4]
            for first in range(0, shape[1], features):
                count = min(features, shape[1] - first)
                last = first + count == shape[1]
                corner = (first, top, left)
                extent = (count, kernel[0], band_rows + kernel[1] - 1, shape[4])
                _pack(memory, start + n * strides[0], strides, corner, extent, height, packed)
                for first_map in range(0, out[1], maps):
                    stop_map = min(first_map + maps, out[1]) if last else first_map
                    group_maps = range(first_map, stop_map)
                    for o in group_maps:
                        to = (((n * out[1] + o) * out[2] + top) * out[3] + left) * out[4]
                        fetch_to_write(y, to)  # type: ignore[call-arg]  # numba adds the context
                        fetch_to_write(y, to + size - 1)
                    first_sum = first_map * positions % sums.size
                    taps = (first_map * shape[1] + first * maps) * volume
                    for at in range(0, used, width):
                        add_tile(  # type: ignore[call-arg]  # numba passes the context
                            maps, width, sums, first_sum + at, positions, first > 0, packed, at,
                            offsets, count * volume, weights, taps,
                        )  # fmt: skip
                    for o in group_maps:
                        to = (((n * out[1] + o) * out[2] + top) * out[3] + left) * out[4]
                        total = sums[first_sum + (o - first_map) * positions :]
                        _finish(total, shape[4], band_rows, out[4], bias[o], code, finished, y, to)

    return convolve_bands
