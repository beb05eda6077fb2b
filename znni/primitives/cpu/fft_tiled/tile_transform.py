"""Three-dimensional Fourier transforms of tiles, 16 maps at a time.

There is one kernel per length, direction and axis. Drivers call the kernels of its three axes to
transform a tile (``tile_drivers``, ``fft_tiled_pooled.driver``). Between passes a number is two
vectors, the real and the imaginary parts of 16 maps. In the spectrum it has a format of its own:

- image rows: (y, x) of 16 maps, transposed in registers into vectors across the maps;
- plane: (y, fx, part, lane), with fx < x // 2 + 1;
- tile scratch: (z, y, fx, part, lane), planes ``plane_stride`` apart;
- spectrum: (column, fz, ...), frequencies ``frequency_stride`` apart. Here fz runs fastest, so that
  the numbers written by one pass along z lie close together.

A column is a pair (fy, fx). The spectrum of a real tile is Hermitian. Beyond the middle of x all
columns are conjugates of others. Beyond the middle of y those with fx = 0 and fx = x / 2 are.
Conjugates are left out. First come all columns of the ``whole_rows`` of fy. Then, for each further
row, come the ``own_columns`` between.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal, TypeVar

from znni.core.shapes import Vec3
from znni.primitives.common.codelets import Codelet
from znni.primitives.common.dft_codelets import complex_dft, inverse_real_dft, real_dft
from znni.primitives.cpu.common.image_rows import (
    Finishing,
    line_positions,
    load_transposed,
    prefetch_rows,
    store_row,
    zero,
)
from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.common.vector_activation import Curve
from znni.primitives.cpu.fft_tiled.number_formats import FLOAT32, NUMBER, NumberFormat

FLOATS, INDEX = Argument.FLOATS, Argument.INDEX

# Number of rows by which prefetches of an image run ahead of its loads.
ROWS_AHEAD = 2

# Arguments of kernels that know a tile.
TILE_ARGUMENTS = dict.fromkeys(("tile_z", "tile_y", "half_x", "whole_rows", "own_columns"), INDEX)

Each = TypeVar("Each")


def along_axes(name: str, values: Iterable[Each]) -> dict[str, Each]:
    """Return the argument of each axis by its name, such as ``taps_z``."""
    return {f"{name}_{axis}": value for axis, value in zip("zyx", values, strict=True)}


def tile_arguments(tile: Vec3) -> dict[str, int]:
    """Return the values of ``TILE_ARGUMENTS`` for a tile."""
    values = tile.z, tile.y, half(tile.x), whole_rows(tile), own_columns(tile)
    return dict(zip(TILE_ARGUMENTS, values, strict=True))


def half(length: int) -> int:
    """Return the number of frequencies along x; the others are conjugates."""
    return length // 2 + 1


def whole_rows(tile: Vec3) -> int:
    """Return the number of frequencies along y up to the middle."""
    return tile.y // 2 + 1


def own_columns(tile: Vec3) -> int:
    """Return the columns of a row beyond the middle that are no conjugates: from fx = 1 on."""
    return (tile.x - 1) // 2


def frequencies(tile: Vec3) -> int:
    """Return the frequencies of a tile's spectrum, without the conjugates."""
    whole = whole_rows(tile)
    return tile.z * (whole * half(tile.x) + (tile.y - whole) * own_columns(tile))


def plane_stride(tile: Vec3) -> int:
    """Return the floats from one plane of the scratch to the next.

    It is an odd multiple of 128 bytes, so that planes do not share a few cache sets.
    """
    return (tile.y * half(tile.x) | 1) * NUMBER


def scratch_floats(tile: Vec3) -> int:
    """Return the floats of scratch that the transform of a tile needs."""
    return tile.z * plane_stride(tile) + LANES * tile.x + LANES


def outputs_computed(wanted: int, length: int) -> int:
    """Return the outputs that an inverse transform computes for ``wanted`` ones.

    The number is rounded up to a multiple of 4, so that there are fewer kernels.
    """
    return min(length, -(-wanted // 4) * 4)


@cache
def transform_flops(tile: Vec3, inner: Vec3, inverse: bool) -> int:
    """Return the operations of one tile's transform, for 16 maps at once.

    Args:
        tile: extents of the tile.
        inner: extents of the voxels read (forward) or written (inverse).
        inverse: True for the inverse transform.
    """
    if inverse:
        z, y, x = (outputs_computed(*axis) for axis in zip(inner, tile, strict=True))
        row = inverse_row_codelet(tile.x, x)
        column_y, column_z = column_codelet(tile.y, 1, y), column_codelet(tile.z, 1, z)
    else:
        row = real_dft(tile.x)
        column_y, column_z = complex_dft(tile.y, -1), complex_dft(tile.z, -1)
    rows = inner.z * inner.y * row.flops
    columns_y = inner.z * half(tile.x) * column_y.flops
    columns_z = frequencies(tile) // tile.z * column_z.flops
    return LANES * (rows + columns_y + columns_z)


@cache
def inverse_row_codelet(length: int, outputs: int) -> Codelet:
    """Return the inverse transform along x that computes only the first outputs."""
    return inverse_real_dft(length).first(outputs)


@cache
def column_codelet(length: int, sign: Literal[-1, 1], outputs: int) -> Codelet:
    """Return the transform along y or z that computes only the first outputs."""
    return complex_dft(length, sign).first(2 * outputs)


@cached_kernel
def forward_rows(length: int) -> Kernel:
    """Return a kernel from rows of an image of 16 maps to a plane of their spectra along x.

    Zeros replace missing rows, voxels or maps (``inner`` less than the tile, fewer than 16 maps).
    Then each row is copied to ``staging`` first.
    """
    emit = Emitter(
        f"forward_rows_{length}",
        image=FLOATS,
        **dict.fromkeys(("map_stride", "y_stride", "maps", "inner_y", "inner_x", "tile_y"), INDEX),
        **dict.fromkeys(("plane", "staging"), FLOATS),
    )
    missing_x, missing_maps = emit.minus(emit["inner_x"], length), emit.minus(emit["maps"], LANES)
    staged = emit.smaller(missing_x, missing_maps), "<", emit.index(0)
    staging = emit["staging"]
    with emit.when(*staged):
        zero(emit, staging, emit.index(LANES * length))
    stride = emit.select(*staged, emit.index(length), emit["map_stride"])
    with emit.loop(emit["inner_y"]) as y:
        row = emit.at(emit["image"], emit.times(y, emit["y_stride"]))
        with emit.when(*staged), emit.loop(emit["maps"]) as lane:
            source = emit.at(row, emit.times(lane, emit["map_stride"]))
            target = emit.at(staging, emit.times(lane, length))
            with emit.loop(emit["inner_x"]) as x:
                emit.copy_float(emit.at(source, x), emit.at(target, x))
        ahead = emit.at(row, emit.times(emit["y_stride"], ROWS_AHEAD))
        image = emit["map_stride"], emit["maps"]
        prefetch_rows(emit, ahead, *image, line_positions(length), written=False)
        source = emit.select(*staged, staging, row)
        voxels = load_transposed(emit, source, stride, length)
        target = emit.at(emit["plane"], emit.times(y, half(length) * NUMBER))
        real_dft(length).evaluate(
            emit,
            read=lambda i: voxels[i],
            write=lambda i, value: emit.store(value, emit.at(target, i * LANES)),
        )
    row_floats = half(length) * NUMBER
    rest = emit.at(emit["plane"], emit.times(emit["inner_y"], row_floats))
    missing = emit.minus(emit["tile_y"], emit["inner_y"])
    zero(emit, rest, emit.times(missing, row_floats))
    return emit.compile()


@cached_kernel
def inverse_rows(length: int, outputs: int, curve: Curve, *, adds: bool = False) -> Kernel:
    """Return a kernel from a plane of spectra along x to image rows, with bias and activation.

    The kernel writes 16 maps. Its arguments ``bias``, ``slope`` and ``floor`` are 16 numbers each:
    see ``VectorFinish``. If there are fewer than 16 maps, rows pass through ``staging``.

    Args:
        length: length of the transform.
        outputs: number of voxels computed, from the row's first on.
        curve: curve of the activation.
        adds: True to add to the voxels of the rows, before the activation.
    """
    emit = Emitter(
        f"inverse_rows_{length}_{outputs}{curve}" + "_adding" * adds,
        **dict.fromkeys(("plane", "image"), FLOATS),
        **dict.fromkeys(("map_stride", "y_stride", "maps"), INDEX),
        **dict.fromkeys(("skip_y", "skip_x", "inner_y", "inner_x"), INDEX),
        **dict.fromkeys(("bias", "slope", "floor", "staging"), FLOATS),
    )
    finishing = Finishing(emit, emit["bias"], emit["slope"], emit["floor"], curve, adds)
    finish = finishing.across_maps()
    image, span = (emit["map_stride"], emit["maps"]), (emit["skip_x"], emit["inner_x"])
    with emit.loop(emit["inner_y"], emit["skip_y"]) as y:
        row = emit.at(emit["image"], emit.times(y, emit["y_stride"]))
        prefetch_rows(emit, row, *image, line_positions(outputs), written=True)
        source = emit.at(emit["plane"], emit.times(y, half(length) * NUMBER))
        voxels: dict[int, Value] = {}

        def write(x: int, value: Value, voxels: dict[int, Value] = voxels) -> None:
            voxels[x] = finish(value)

        inverse_row_codelet(length, outputs).evaluate(
            emit, read=lambda i: emit.load(emit.at(source, i * LANES)), write=write
        )
        store_row(finishing, voxels, row, image, emit["staging"], length, span)
    return emit.compile()


@cached_kernel
def columns(
    length: int,
    sign: Literal[-1, 1],
    outputs: int,
    streaming: bool,
    ahead: bool,
    numbers: NumberFormat = FLOAT32,
) -> Kernel:
    """Return a kernel of complex transforms along one axis, for many columns side by side.

    Args:
        length: length of the axis.
        sign: -1 forward, 1 inverse.
        outputs: number of outputs computed in each column, from its first on.
        streaming: True if the target is a spectrum, which is stored past the caches.
        ahead: True if the source is a spectrum; the next column is prefetched during this one.
        numbers: format of the spectrum.
    """
    direction = "forward" if sign < 0 else "inverse"
    kind = "_streaming" * streaming + "_ahead" * ahead + numbers.suffix
    emit = Emitter(
        f"{direction}_columns_{length}_{outputs}{kind}",
        source=FLOATS,
        source_stride=INDEX,
        target=FLOATS,
        target_stride=INDEX,
        count=INDEX,
        step=INDEX,
    )
    step = emit["step"]
    # Columns in the scratch or the plane lie next to each other.
    source_step = step if ahead else emit.index(NUMBER)
    target_step = step if streaming else emit.index(NUMBER)
    with emit.loop(emit["count"]) as i:
        source = emit.at(emit["source"], emit.times(i, source_step))
        target = emit.at(emit["target"], emit.times(i, target_step))
        sources = [emit.at(source, emit.times(emit["source_stride"], j)) for j in range(length)]
        targets = [emit.at(target, emit.times(emit["target_stride"], j)) for j in range(outputs)]
        read = (numbers if ahead else FLOAT32).reader(emit, sources, step if ahead else None)
        write = (numbers if streaming else FLOAT32).writer(emit, targets, streaming)
        column_codelet(length, sign, outputs).evaluate(emit, read, write)
    return emit.compile()
