"""Spectra of a layer's kernels at the frequencies of a tile, as small matrix products.

A kernel has few taps along an axis. So each axis is the product of a (taps x frequencies) matrix
with the result of the previous axes. That is far less work than the transform of a tile of zeros
with a kernel in one corner. The spectra are conjugated, because the layer is a cross-correlation.
They are divided by the tile's voxels, because the tiles' inverse transform does not divide.
"""

from __future__ import annotations

import numpy as np

from znni.core.shapes import Vec3
from znni.machine.arrays import empty_aligned
from znni.network.weights import Float32
from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.phases import PhaseEmitter, PhaseKernel, run_phases
from znni.primitives.cpu.common.simd import (
    FLOAT_BYTES,
    LANES,
    Argument,
    Emitter,
    Value,
    whole_vectors,
)
from znni.primitives.cpu.common.workers import Workers
from znni.primitives.cpu.fft_tiled.number_formats import FLOAT32, NUMBER, NumberFormat
from znni.primitives.cpu.fft_tiled.tile_transform import (
    TILE_ARGUMENTS,
    along_axes,
    frequencies,
    half,
    tile_arguments,
)

FLOATS, INDEX = Argument.FLOATS, Argument.INDEX


def spectrum_shape(
    tile: Vec3, out_features: int, in_features: int, numbers: NumberFormat
) -> tuple[int, int, int, int]:
    """Return the shape of the kernels' spectra: (frequency, output group, input map, float).

    An output group is 16 output maps.
    """
    groups = whole_vectors(out_features) // LANES
    return frequencies(tile), groups, in_features, numbers.floats


def scratch_floats(kernel: Vec3) -> int:
    """Return the floats of one worker's scratch."""
    taps = kernel.volume * LANES
    return taps + (kernel.z * kernel.y + kernel.z) * NUMBER


def transform_flops(tile: Vec3, kernel: Vec3) -> int:
    """Return the operations for the kernels between one input map and 16 output maps."""
    along_x = 4 * kernel.volume
    along_y = 8 * kernel.z * kernel.y * tile.y
    along_z = 8 * kernel.z * frequencies(tile)
    return LANES * (half(tile.x) * (along_x + along_y) + along_z)


def transform_kernels(
    weight: Float32, tile: Vec3, spectra: Float32, numbers: NumberFormat, workers: Workers
) -> None:
    """Transform all kernels of a layer.

    Args:
        weight: weights (out, in, z, y, x), C-contiguous.
        tile: extents of a tile.
        spectra: array of ``spectrum_shape``, overwritten. Each number is contiguous and begins on a
            cache line, as stores past the caches require. The other axes may have any strides.
        numbers: format of the spectra.
        workers: threads that do the work.
    """
    out_features, in_features = weight.shape[:2]
    kernel = Vec3(*weight.shape[2:])
    groups = spectra.shape[1]
    scratch = empty_aligned((workers.threads, scratch_floats(kernel)), np.float32)
    tables = [
        _roots(taps, length, count)
        for taps, length, count in zip(kernel, tile, (tile.z, tile.y, half(tile.x)), strict=True)
    ]
    tables[2] /= tile.volume
    frequency_stride, group_stride, map_stride, _ = (
        stride // FLOAT_BYTES for stride in spectra.strides
    )
    phase = _transform(numbers).phase(
        in_features * groups,
        weight=weight.ctypes.data,
        in_features=in_features,
        out_features=out_features,
        groups=groups,
        **along_axes("taps", kernel),
        **tile_arguments(tile),
        **along_axes("roots", [table.ctypes.data for table in tables]),
        spectra=spectra.ctypes.data,
        frequency_stride=frequency_stride,
        group_stride=group_stride,
        map_stride=map_stride,
    )
    run_phases([phase], [part.ctypes.data for part in scratch], workers)


def _roots(taps: int, length: int, count: int) -> Float32:
    """Return exp(+2 pi i t f / length) as (frequency f, tap t, part)."""
    angles = 2 * np.pi / length * (np.outer(np.arange(count), np.arange(taps)) % length)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


@cached_kernel
def _transform(numbers: NumberFormat) -> PhaseKernel:
    """Return a phase that transforms the kernels from one input map to 16 output maps per share."""
    emit = PhaseEmitter(
        f"transform_kernels{numbers.suffix}",
        **dict.fromkeys(("weight", "spectra"), FLOATS),
        **dict.fromkeys(("in_features", "out_features", "groups"), INDEX),
        **dict.fromkeys(("frequency_stride", "group_stride", "map_stride"), INDEX),
        **along_axes("taps", [INDEX] * 3),
        **along_axes("roots", [FLOATS] * 3),
        **TILE_ARGUMENTS,
    )
    taps_z, taps_y, taps_x = emit["taps_z"], emit["taps_y"], emit["taps_x"]
    tile_z, tile_y = emit["tile_z"], emit["tile_y"]
    rows = emit.times(taps_z, taps_y)
    volume = emit.times(rows, taps_x)
    taps = emit["scratch"]
    along_x = emit.at(taps, emit.times(volume, LANES))
    along_y = emit.at(along_x, emit.times(rows, NUMBER))

    in_map = emit.quotient(emit["share"], emit["groups"])
    group = emit.minus(emit["share"], emit.times(in_map, emit["groups"]))
    first_map = emit.times(group, LANES)
    kernels = emit.plus(emit.times(first_map, emit["in_features"]), in_map)
    weight = emit.at(emit["weight"], emit.times(kernels, volume))
    spectra = emit.at(emit["spectra"], emit.times(group, emit["group_stride"]))
    spectra = emit.at(spectra, emit.times(in_map, emit["map_stride"]))

    maps = emit.smaller(emit.minus(emit["out_features"], first_map), LANES)
    last, apart_by = emit.minus(maps, 1), emit.times(emit["in_features"], volume)
    offsets = [emit.times(emit.smaller(i, last), apart_by) for i in range(LANES)]
    with emit.loop(volume) as tap:
        source = emit.at(weight, tap)
        values = emit.gather([emit.at(source, offset) for offset in offsets])
        emit.store(emit.first(values, maps), emit.at(taps, emit.times(tap, LANES)))

    with emit.loop(emit["half_x"]) as fx:
        roots = _row(emit, emit["roots_x"], fx, taps_x)
        with emit.loop(rows) as row:
            source = emit.at(taps, emit.times(emit.times(row, taps_x), LANES))
            total = _real_product(emit, source, roots, taps_x)
            _put(emit, total, emit.at(along_x, emit.times(row, NUMBER)), FLOAT32)
        # The first column holds conjugates, and so does the last if the tile is even: see
        # tile_transform.
        apart = emit.plus(emit["own_columns"], 1)
        place = emit.minus(fx, emit.times(emit.quotient(fx, apart), apart))
        rows_here = emit.select(place, "==", emit.index(0), emit["whole_rows"], tile_y)
        with emit.loop(rows_here) as fy:
            roots = _row(emit, emit["roots_y"], fy, taps_y)
            with emit.loop(taps_z) as z:
                source = emit.at(along_x, emit.times(emit.times(z, taps_y), NUMBER))
                total = _product(emit, source, roots, taps_y)
                _put(emit, total, emit.at(along_y, emit.times(z, NUMBER)), FLOAT32)
            column = _column(emit, fy, fx)
            first = emit.times(column, tile_z)
            with emit.loop(tile_z) as fz:
                roots = _row(emit, emit["roots_z"], fz, taps_z)
                total = _product(emit, along_y, roots, taps_z)
                offset = emit.times(emit.plus(first, fz), emit["frequency_stride"])
                _put(emit, total, emit.at(spectra, offset), numbers, streaming=True)
    return emit.compile_phase()


def _column(emit: Emitter, fy: Value, fx: Value) -> Value:
    """Return the number of a column in the spectrum."""
    beyond = emit.minus(fy, emit["whole_rows"])
    own = emit.plus(emit.times(beyond, emit["own_columns"]), emit.minus(fx, 1))
    after_whole = emit.plus(emit.times(emit["whole_rows"], emit["half_x"]), own)
    whole = emit.plus(emit.times(fy, emit["half_x"]), fx)
    return emit.select(beyond, "<", emit.index(0), whole, after_whole)


def _row(emit: Emitter, roots: Value, frequency: Value, taps: Value) -> Value:
    return emit.at(roots, emit.times(emit.times(frequency, taps), 2))


def _real_product(emit: Emitter, source: Value, roots: Value, taps: Value) -> tuple[Value, Value]:
    """Return the sum over taps of real vector times root."""
    real, imaginary = (emit.variable(emit.constant(0.0)) for _ in range(2))
    with emit.loop(taps) as tap:
        value = emit.load(emit.at(source, emit.times(tap, LANES)))
        cosine, sine = _root(emit, roots, tap)
        real.set(emit.multiply_add(value, cosine, real.get()))
        imaginary.set(emit.multiply_add(value, sine, imaginary.get()))
    return real.get(), imaginary.get()


def _product(emit: Emitter, source: Value, roots: Value, taps: Value) -> tuple[Value, Value]:
    """Return the sum over taps of complex vector times root."""
    real, imaginary = (emit.variable(emit.constant(0.0)) for _ in range(2))
    with emit.loop(taps) as tap:
        address = emit.at(source, emit.times(tap, NUMBER))
        re, im = emit.load(address), emit.load(emit.at(address, LANES))
        cosine, sine = _root(emit, roots, tap)
        real.set(emit.multiply_add(re, cosine, real.get()))
        real.set(emit.multiply_add(emit.negate(im), sine, real.get()))
        imaginary.set(emit.multiply_add(re, sine, imaginary.get()))
        imaginary.set(emit.multiply_add(im, cosine, imaginary.get()))
    return real.get(), imaginary.get()


def _root(emit: Emitter, roots: Value, tap: Value) -> tuple[Value, Value]:
    address = emit.at(roots, emit.times(tap, 2))
    return emit.broadcast(address), emit.broadcast(emit.at(address, 1))


def _put(
    emit: Emitter,
    number: tuple[Value, Value],
    target: Value,
    numbers: NumberFormat,
    streaming: bool = False,
) -> None:
    write = numbers.writer(emit, [target], streaming)
    for part, value in enumerate(number):
        write(part, value)
