"""Rows of an image of 16 maps, as vectors across the maps, and back."""

from __future__ import annotations

from znni.primitives.cpu.common.simd import LANES, Emitter, Value


def ask_for(emit: Emitter, row: Value, length: int, written: bool) -> None:
    """Ask for a row of each map: the processor itself sees no pattern in them."""
    last = emit.minus(emit["maps"], 1)
    for lane in range(LANES):
        start = emit.at(row, emit.times(emit["map_stride"], emit.smaller(lane, last)))
        for x in (*range(0, length - 1, LANES), length - 1):
            emit.prefetch(emit.at(start, x), near=True, written=written)


def load_transposed(emit: Emitter, row: Value, stride: Value, length: int) -> list[Value]:
    """The voxels of a row as vectors across 16 maps, from the rows of the maps."""
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
    emit: Emitter, voxels: dict[int, Value], row: Value, stride: Value, span: tuple[Value, Value]
) -> None:
    """The span of a row, from vectors across maps, to rows of the maps."""
    nothing = emit.constant(0.0)
    for x in range(0, len(voxels), LANES):
        block = [voxels.get(i, nothing) for i in range(x, x + LANES)]
        for lane, values in enumerate(emit.transpose(block)):
            store_span(emit, values, emit.at(row, emit.times(stride, lane)), x, span)


def store_span(emit: Emitter, values: Value, row: Value, x: int, span: tuple[Value, Value]) -> None:
    """Of 16 voxels from x on, those from the span's first up to its last."""
    start, stop = (emit.minus(end, x) for end in span)
    emit.store_lanes(values, emit.at(row, x), start, stop)


def zero(emit: Emitter, target: Value, floats: Value) -> None:
    """Set a number of floats, a multiple of 16."""
    with emit.loop(floats, step=LANES) as i:
        emit.store(emit.constant(0.0), emit.at(target, i))
