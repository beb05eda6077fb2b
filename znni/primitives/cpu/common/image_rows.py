"""Conversion between rows of 16 maps and vectors across the maps."""

from __future__ import annotations

from collections.abc import Sequence

from znni.network.weights import Float32
from znni.primitives.cpu.common.simd import FLOAT_BYTES, LANES, Argument, Emitter, Value

STRIDES = ("image_stride", "map_stride", "z_stride", "y_stride")


def image_parameters(name: str) -> dict[str, Argument]:
    """Return a kernel's arguments for an image: its address under the name, and its strides."""
    strides = {f"{name}_{stride}": Argument.INDEX for stride in STRIDES}
    return {name: Argument.FLOATS, **strides}


def image_arguments(name: str, array: Float32) -> dict[str, int]:
    """Return the values of these arguments for an array (n, f, z, y, x) with contiguous rows."""
    strides = (stride // FLOAT_BYTES for stride in array.strides[:4])
    names = (f"{name}_{stride}" for stride in STRIDES)
    return {name: array.ctypes.data, **dict(zip(names, strides, strict=True))}


def prefetch_rows(
    emit: Emitter,
    row: Value,
    map_stride: Value,
    maps: Value,
    places: Sequence[Value],
    written: bool,
) -> None:
    """Prefetch these places of a row in each map; the processor detects no pattern in them."""
    last = emit.minus(maps, 1)
    for lane in range(LANES):
        start = emit.at(row, emit.times(map_stride, emit.smaller(lane, last)))
        for x in places:
            emit.prefetch(emit.at(start, x), near=True, written=written)


def line_positions(length: int) -> list[int]:
    """Return places that touch all cache lines of a row."""
    return [*range(0, length - 1, LANES), length - 1]


def load_transposed(emit: Emitter, row: Value, stride: Value, length: int) -> list[Value]:
    """Return the voxels of a row as vectors across 16 maps, loaded from the rows of the maps."""
    voxels: list[Value] = []
    lanes = [emit.at(row, emit.times(stride, i)) for i in range(LANES)]
    for x in range(0, length, 4):
        # The last four may overlap those before them.
        start = min(x, length - 4)
        addresses = [emit.at(lane, start) for lane in lanes]
        rows = [emit.gather_quads(addresses[i::4]) for i in range(4)]
        # Quarter q of row i holds map i + 4q: the transpose puts the maps in order.
        voxels += emit.transpose_within_quads(rows)[x - start :]
    return voxels


def store_transposed(
    emit: Emitter,
    voxels: dict[int, Value],
    row: Value,
    stride: Value,
    span: tuple[Value, Value],
    maps: Value = LANES,
) -> None:
    """Store vectors across maps as the span of a row in each map; maps beyond ``maps`` get none."""
    nothing = emit.constant(0.0)
    for x in range(0, len(voxels), LANES):
        block = [voxels.get(i, nothing) for i in range(x, x + LANES)]
        for lane, values in enumerate(emit.transpose(block)):
            with emit.when(emit.index(maps), ">", lane):
                store_span(emit, values, emit.at(row, emit.times(stride, lane)), x, span)


def store_span(emit: Emitter, values: Value, row: Value, x: int, span: tuple[Value, Value]) -> None:
    """Store those of 16 voxels from x on that lie in the span."""
    start, stop = (emit.minus(end, x) for end in span)
    emit.store_lanes(values, emit.at(row, x), start, stop)


def zero(emit: Emitter, target: Value, floats: Value) -> None:
    """Set a number of floats, a multiple of 16, to zero."""
    with emit.loop(floats, step=LANES) as i:
        emit.store(emit.constant(0.0), emit.at(target, i))
