"""Direct convolution: sums of shifted rows, blocked for registers and cache.

A band of output rows is computed at a time. The input rows under it are copied end to end, so that
a position's neighbours lie at fixed offsets, with any stride and dilation (``packing``). A register
tile may run across row ends: it then computes a few positions that are dropped. Nothing depends on
the input's layout in memory. If a layer has groups of maps, each is computed by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import BoundedByItself, Run, applied_to, convolved_with_gaps
from znni.primitives.cpu.common.activation import (
    activate,
    activate_further,
    row_finish,
    with_activation,
)
from znni.primitives.cpu.common.numba_kernel import flat_view, numba_kernel, output_view
from znni.primitives.cpu.common.rows import fetch_rows, put_rows
from znni.primitives.cpu.common.streaming import bytes_to_write, is_streamed
from znni.primitives.cpu.common.workers import share_count, workers
from znni.primitives.cpu.direct.packing import Packing, pack_map
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
        tiles: number of register tiles that hold all output maps of a group.
        rows: output rows in a band.
        packing: layout of the copied rows.
        positions: positions in a band, including dropped ones, in whole tiles.
        features: input maps copied at a time.
        packed: floats of the copied rows, including those that the last tile reads beyond them.
        sums: floats of the sums kept at a time.
    """

    maps: int
    width: int
    tiles: int
    rows: int
    packing: Packing
    positions: int
    features: int
    packed: int
    sums: int

    @classmethod
    def of(cls, layer: Conv, shape: Shape5, out: Shape5) -> Blocking:
        """Return the blocking for a layer on an input of ``shape``."""
        one_go = cls._keeping(1, layer, shape, out)
        if one_go.features == shape.f // layer.groups:
            return one_go
        return cls._keeping(one_go.tiles, layer, shape, out)

    @classmethod
    def _keeping(cls, kept: int, layer: Conv, shape: Shape5, out: Shape5) -> Blocking:
        """Return the blocking that keeps the sums of so many tiles at a time."""
        group = out.f // layer.groups
        tiles = -(-group // registers().maps)
        maps = -(-group // tiles)
        width = tile_width(maps)
        most = min(BAND_POSITIONS, SUMS_BYTES // (4 * kept * maps))
        bands = -(-out.y // max(1, most // Packing.of(layer, 1, out.x).pitch))
        rows = -(-out.y // bands)
        packing = Packing.of(layer, rows, out.x)
        needed = (rows - 1) * packing.pitch + out.x
        positions = -(-needed // width) * width
        features = min(shape.f // layer.groups, max(1, PACKED_BYTES // (4 * packing.floats)))
        return cls(
            maps, width, tiles, rows, packing, positions, features,
            packed=features * packing.floats + positions - needed,
            sums=kept * maps * positions,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of a thread's workspace."""
        return 4 * (self.packed + self.sums)


@dataclass(frozen=True)
class Direct(BoundedByItself):
    """Direct convolution on the CPU, with bias and activation fused."""

    device: Device
    name: str = "direct"
    accuracy: float = 1e-5
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for any convolution whose zeros are stored around its input."""
        return convolved_with_gaps(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost; the workspace is one band for each thread."""
        layer, out = applied_to(Conv, self, layer, shape)
        blocking = Blocking.of(layer, shape, out)
        maps = blocking.maps * blocking.tiles * layer.groups
        taps = layer.in_features // layer.groups * layer.kernel.volume
        bands = out.n * out.z * -(-out.y // blocking.rows)
        packing, over = blocking.packing, layer.stride.z * layer.stride.y * blocking.rows
        read_again = packing.planes * len(packing.y.phases) * packing.height / over
        cost = Cost(
            flops=2.0 * bands * maps * blocking.positions * taps,
            bytes_moved=shape.nbytes * read_again + bytes_to_write(out.nbytes),
            memory=Memory.beside(
                shape.nbytes + out.nbytes,
                workspace=self.device.threads * blocking.nbytes,
                resident=4 * maps * taps + 8 * blocking.features * layer.kernel.volume,
            ),
            efficiency=EFFICIENCY,
            handed=HandedOut(1, share_count(self.device.threads, layer.groups * bands)),
        )
        return with_activation(cost, layer.activation, out, self.device.threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare the layer: order the weights as the register tile reads them."""
        layer, out = applied_to(Conv, self, layer, shape)
        given = conv_weights(layer, weights)
        blocking = Blocking.of(layer, shape, out)
        tile_weights = _tile_weights(given.weight, layer.groups, blocking)
        packing = blocking.packing
        offsets = packing.tap_offsets(blocking.features, layer.kernel)
        phases = np.array(packing.y.phases), np.array(packing.x.phases)
        steps = *layer.stride, layer.dilation.z
        convolve_bands = _band_kernel(blocking.maps, blocking.width)
        finish, pool = row_finish(layer, out.f, given), workers(self.device.threads)
        bands = -(-out.y // blocking.rows)
        parts = list(pool.shares(out.n * layer.groups * out.z * bands))

        def run(x: Float32) -> Float32:
            view = flat_view(x)
            y = new_output(out)
            target = output_view(y)
            packed = workspace((pool.threads, blocking.packed), np.float32)
            sums = workspace((pool.threads, blocking.sums), np.float32)

            def task(worker: int, part: slice) -> None:
                convolve_bands(
                    *view, tuple(shape), tuple(layer.kernel), steps, phases, *target, tuple(out),
                    layer.groups, part.start, part.stop, blocking.rows, packing.height,
                    packing.pitch, blocking.features, blocking.positions, packed[worker],
                    sums[worker], is_streamed(out.nbytes), tile_weights, offsets, finish,
                )  # fmt: skip

            pool.for_each(task, parts)
            activate_further(y, layer, pool)
            return y

        return run


def primitives(device: Device) -> tuple[Direct, ...]:
    """Return the direct convolution."""
    return (Direct(device),)


def _tile_weights(weight: Float32, groups: int, blocking: Blocking) -> Float32:
    """Return weights by group, tile, input map, tap and map; zero for maps that fill a tile."""
    by_group = weight.reshape(groups, len(weight) // groups, -1)
    padded = np.zeros((groups, blocking.tiles, by_group.shape[2], blocking.maps), np.float32)
    for o in range(by_group.shape[1]):
        padded[:, o // blocking.maps, :, o % blocking.maps] = by_group[:, o]
    return padded.ravel()


@numba_kernel
def _finish(sums, pitch, rows, width, bias, slope, code):  # type: ignore[no-untyped-def]
    """Move the sums of kept positions together in place, and apply bias and activation."""
    for i in range(1, rows):
        row, total = sums[i * width :], sums[i * pitch :]
        for x in range(width):
            row[x] = total[x]
    activate(sums[: rows * width], bias, slope, code)


@cache
def _band_kernel(maps: int, width: int) -> Callable[..., None]:
    """Return the compiled loop over bands (n, group, z, y), for one size of register tile."""

    @numba_kernel
    def convolve_bands(  # type: ignore[no-untyped-def]
        memory, start, strides, shape, kernel, steps, phases, target, target_start, target_strides,
        out, groups, first_band, stop_band, rows, height, pitch, features, positions, packed, sums,
        streamed, weights, offsets, finish,
    ):  # fmt: skip
        volume = kernel[0] * kernel[1] * kernel[2]
        map_floats = kernel[0] * len(phases[0]) * len(phases[1]) * height * pitch
        in_maps, out_maps = shape[1] // groups, out[1] // groups
        tiles = -(-out_maps // maps)
        bands = -(-out[3] // rows)
        for index in range(first_band, stop_band):
            plane, band = divmod(index, bands)
            plane, top = divmod(plane, out[2])
            n, group = divmod(plane, groups)
            left = band * rows
            band_rows = min(rows, out[3] - left)
            used = (band_rows - 1) * pitch + out[4]
            corner_of_output = target_start + n * target_strides[0] + top * target_strides[2]
            corner_of_output += left * target_strides[3]
            for first in range(0, in_maps, features):
                count = min(features, in_maps - first)
                last = first + count == in_maps
                for f in range(count):
                    corner = (group * in_maps + first + f, top, left)
                    pack_map(
                        memory, start + n * strides[0], strides, shape, corner, steps, kernel[0],
                        phases, band_rows + height - rows, height, pitch, packed[f * map_floats :],
                    )  # fmt: skip
                for first_map in range(0, out_maps, maps):
                    stop_map = min(first_map + maps, out_maps) if last else first_map
                    tile_maps = range(first_map, stop_map)
                    for o in tile_maps:
                        to = corner_of_output + (group * out_maps + o) * target_strides[1]
                        fetch_rows(band_rows, out[4], target, to, target_strides[3])
                    first_sum = first_map * positions % sums.size
                    tile = group * tiles + first_map // maps
                    taps = (tile * in_maps + first) * maps * volume
                    for at in range(0, used, width):
                        add_tile(  # numba passes the context
                            maps, width, sums, first_sum + at, positions, first > 0, packed, at,
                            offsets, count * volume, weights, taps,
                        )  # fmt: skip
                    for o in tile_maps:
                        total = sums[first_sum + (o - first_map) * positions :]
                        f = group * out_maps + o
                        to = corner_of_output + f * target_strides[1]
                        bias, slope = finish[0][f], finish[1][f]
                        _finish(total, pitch, band_rows, out[4], bias, slope, finish[2])
                        put_rows(total, band_rows, out[4], target, to, target_strides[3], streamed)

    return convolve_bands
