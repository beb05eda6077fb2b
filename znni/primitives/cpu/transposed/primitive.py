"""Transposed convolution on the CPU: the sums of all phases of a band, then interleaved rows.

If the kernel is the stride, each phase has one tap, and the sums are one matrix product. If a layer
has groups of maps, each is computed by itself.
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
from znni.network.layers import ConvTranspose, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to
from znni.primitives.cpu.common.activation import (
    activate,
    activate_further,
    row_finish,
    with_activation,
)
from znni.primitives.cpu.common.numba_kernel import flat_view, numba_kernel, output_view
from znni.primitives.cpu.common.rows import fetch_rows, put_row
from znni.primitives.cpu.common.streaming import bytes_to_write, is_streamed
from znni.primitives.cpu.common.workers import share_count, workers
from znni.primitives.cpu.direct.packing import pack_map
from znni.primitives.cpu.direct.register_tile import add_tile, registers, tile_width
from znni.primitives.cpu.transposed.phases import phase_taps, tap_offsets, tile_weights

# Bytes of a band's sums and of its copied input rows, which stay in the second-level cache.
SUMS_BYTES = 256 * 1024
PACKED_BYTES = 256 * 1024

# Share of a core's nominal operations per second.
EFFICIENCY = 0.5


class Blocking(NamedTuple):
    """Division of a layer into bands and register tiles.

    A position stands for one sample of the output of each phase.

    Attributes:
        maps: output maps in a register tile.
        width: positions in a register tile.
        tiles: number of register tiles that hold all output maps of a group.
        features: input maps of a group.
        rows: rows of positions in a band.
        positions: positions in a band, including dropped ones, in whole tiles.
        planes: planes of the input under a band.
        height: rows of the input in each of them.
        packed: floats of the copied rows, including those that the last tile reads beyond them.
        sums: floats of the sums kept at a time: those of one tile, for all phases along x.
        row: floats of a row of output.
    """

    maps: int
    width: int
    tiles: int
    features: int
    rows: int
    positions: int
    planes: int
    height: int
    packed: int
    sums: int
    row: int

    @classmethod
    def of(cls, layer: ConvTranspose, shape: Shape5, out: Shape5) -> Blocking:
        """Return the blocking for a layer on an input of ``shape``."""
        group, features = out.f // layer.groups, shape.f // layer.groups
        tiles = -(-group // registers().maps)
        maps = -(-group // tiles)
        width = tile_width(maps)
        z, y, x = out.size // layer.stride
        planes, more = shape.z - z + 1, shape.y - y
        row_bytes = 4 * features * planes * shape.x
        most = min(
            PACKED_BYTES // row_bytes - more, SUMS_BYTES // (4 * layer.stride.x * maps * shape.x)
        )
        bands = -(-y // max(1, most))
        rows = -(-y // bands)
        needed = (rows - 1) * shape.x + x
        positions = -(-needed // width) * width
        return cls(
            maps, width, tiles, features, rows, positions, planes, rows + more,
            packed=features * planes * (rows + more) * shape.x + positions - needed,
            sums=layer.stride.x * maps * positions,
            row=out.x,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of a thread's workspace."""
        return 4 * (self.packed + self.sums + self.row)


@dataclass(frozen=True)
class Transposed:
    """Transposed convolution on the CPU, with bias and activation fused."""

    device: Device
    name: str = "transposed"
    accuracy: float = 1e-5
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for a transposed convolution in whole strides."""
        if not isinstance(layer, ConvTranspose) or layer.in_features != shape.f:
            return None
        size = layer.local_size(shape.size)
        if layer != layer.local or min(size) < 1:
            return None
        return Shape5.of(shape.n, layer.out_features, size)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost; the workspace is one band for each thread."""
        layer, out = applied_to(ConvTranspose, self, layer, shape)
        blocking = Blocking.of(layer, shape, out)
        maps = blocking.maps * blocking.tiles
        bands = _bands(layer, out, blocking)
        taps = blocking.features * layer.kernel.volume
        read_again = blocking.planes * blocking.height / blocking.rows
        cost = Cost(
            flops=2.0 * bands * maps * blocking.positions * taps,
            bytes_moved=shape.nbytes * read_again + bytes_to_write(out.nbytes),
            memory=Memory.beside(
                shape.nbytes + out.nbytes,
                workspace=self.device.threads * blocking.nbytes,
                resident=4 * maps * taps * layer.groups + 8 * taps,
            ),
            efficiency=EFFICIENCY,
            handed=HandedOut(1, share_count(self.device.threads, bands)),
        )
        return with_activation(cost, layer.activation, out, self.device.threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare the layer: order the weights by phase, as the register tile reads them."""
        layer, out = applied_to(ConvTranspose, self, layer, shape)
        given = conv_weights(layer, weights)
        blocking = Blocking.of(layer, shape, out)
        phases = phase_taps(layer)
        ordered = np.concatenate(
            [
                tile_weights(weight, phases, blocking.tiles, blocking.maps)
                for weight in np.split(given.weight, layer.groups)
            ]
        )
        rows = blocking.planes, blocking.height, shape.x
        offsets = tap_offsets(phases, blocking.features, *rows)
        counts = np.array([len(phase) for phase in phases])
        firsts = np.cumsum(counts) - counts
        one_phase = np.zeros(1, np.int64)  # of the input, whose rows are copied as they are
        convolve_bands = _band_kernel(blocking.maps, blocking.width)
        finish, pool = row_finish(layer, out.f, given), workers(self.device.threads)
        parts = list(pool.shares(_bands(layer, out, blocking)))

        def run(x: Float32) -> Float32:
            y = new_output(out)
            source, target, streamed = flat_view(x), output_view(y), is_streamed(out.nbytes)
            packed = workspace((pool.threads, blocking.packed), np.float32)
            sums = workspace((pool.threads, blocking.sums), np.float32)
            row = workspace((pool.threads, blocking.row), np.float32)

            def task(worker: int, part: slice) -> None:
                convolve_bands(
                    *source, tuple(shape), *target, tuple(out), tuple(layer.stride), layer.groups,
                    part.start, part.stop, blocking.rows, blocking.planes, blocking.height,
                    blocking.positions, packed[worker], sums[worker], row[worker], ordered,
                    offsets, counts, firsts, (one_phase, one_phase), finish, streamed,
                )  # fmt: skip

            pool.for_each(task, parts)
            activate_further(y, layer, pool)
            return y

        return run


def primitives(device: Device) -> tuple[Transposed, ...]:
    """Return the transposed convolution."""
    return (Transposed(device),)


def _bands(layer: ConvTranspose, out: Shape5, blocking: Blocking) -> int:
    bands = -(-out.y // (layer.stride.y * blocking.rows))
    return out.n * layer.groups * (out.z // layer.stride.z) * bands


@numba_kernel
def _interleave(sums, apart, phases, width, row):  # type: ignore[no-untyped-def]
    """Set a row of output from the sums of its phases, which lie ``apart``."""
    if phases == 2:
        first, second = sums[:width], sums[apart : apart + width]
        for x in range(width):
            row[2 * x] = first[x]
            row[2 * x + 1] = second[x]
    else:
        for phase in range(phases):
            part = sums[phase * apart :]
            for x in range(width):
                row[phases * x + phase] = part[x]


@cache
def _band_kernel(maps: int, width: int) -> Callable[..., None]:
    """Return the compiled loop over bands (n, group, z, y), for one size of register tile."""

    @numba_kernel
    def convolve_bands(  # type: ignore[no-untyped-def]
        memory, start, strides, shape, target, target_start, target_strides, out, step, groups,
        first_band, stop_band, rows, planes, height, positions, packed, sums, row, weights,
        offsets, counts, firsts, phases, finish, streamed,
    ):  # fmt: skip
        features, pitch, apart = shape[1] // groups, shape[4], maps * positions
        out_maps = out[1] // groups
        map_floats = planes * height * pitch
        tiles = -(-out_maps // maps)
        all_taps = firsts[-1] + counts[-1]
        bands = -(-out[3] // (step[1] * rows))
        for index in range(first_band, stop_band):
            plane, band = divmod(index, bands)
            plane, front = divmod(plane, out[2] // step[0])
            n, group = divmod(plane, groups)
            top = band * rows
            band_rows = min(rows, out[3] // step[1] - top)
            used = (band_rows - 1) * pitch + out[4] // step[2]
            for f in range(features):
                pack_map(
                    memory, start + n * strides[0], strides, shape,
                    (group * features + f, front, top), (1, 1, 1, 1), planes, phases,
                    band_rows + height - rows, height, pitch, packed[f * map_floats :],
                )  # fmt: skip
            for tile in range(tiles):
                for upper in range(step[0] * step[1]):
                    for x_phase in range(step[2]):
                        phase = upper * step[2] + x_phase
                        taps = features * counts[phase]
                        of_phase = offsets[features * firsts[phase] :]
                        weight = (
                            ((group * tiles + tile) * all_taps + firsts[phase]) * features * maps
                        )
                        for at in range(0, used, width):
                            add_tile(  # numba passes the context
                                maps, width, sums, x_phase * apart + at, positions, False, packed,
                                at, of_phase, taps, weights, weight,
                            )  # fmt: skip
                    z_phase, y_phase = divmod(upper, step[1])
                    corner = target_start + n * target_strides[0]
                    corner += (front * step[0] + z_phase) * target_strides[2]
                    corner += (top * step[1] + y_phase) * target_strides[3]
                    for o in range(tile * maps, min((tile + 1) * maps, out_maps)):
                        f = group * out_maps + o
                        to = corner + f * target_strides[1]
                        apart_rows = step[1] * target_strides[3]
                        fetch_rows(band_rows, out[4], target, to, apart_rows)
                        for y in range(band_rows):
                            total = sums[(o - tile * maps) * positions + y * pitch :]
                            _interleave(total, apart, step[2], out[4] // step[2], row)
                            activate(row, finish[0][f], finish[1][f], finish[2])
                            put_row(row, out[4], target, to + y * apart_rows, streamed)

    return convolve_bands
