"""Conversion between rows of 16 maps and vectors across the maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from znni.network.weights import Float32
from znni.primitives.cpu.common.simd import FLOAT_BYTES, LANES, Argument, Emitter, Value
from znni.primitives.cpu.common.vector_activation import Curve, finished

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


@dataclass(frozen=True)
class Finishing:
    """The last step of a layer for sums of 16 maps, and whether they add to what the image holds.

    Attributes:
        emit: emitter of the kernel.
        bias: address of the maps' biases.
        slope: address of the maps' slopes.
        floor: address of the floor.
        curve: curve of the activation.
        adds: True if the result is added to the voxels where it is stored. The activation follows.
    """

    emit: Emitter
    bias: Value
    slope: Value
    floor: Value
    curve: Curve
    adds: bool

    def across_maps(self) -> Callable[[Value], Value]:
        """Return a function that finishes a vector across maps, or only adds the bias if ``adds``.

        It loads what the function needs once, before it returns it.
        """
        emit, bias = self.emit, self.emit.load(self.bias)
        if self.adds:
            return lambda value: emit.add(value, bias)
        numbers = [bias, emit.load(self.slope), emit.load(self.floor)]
        return lambda value: finished(emit, value, numbers, self.curve)

    def along_x(self, values: Value, lane: int, held: Value) -> Value:
        """Return 16 voxels of one map, added to those that the image holds and finished."""
        emit = self.emit
        slope = emit.broadcast(emit.at(self.slope, lane))
        numbers = [held, slope, emit.load(self.floor)]
        return finished(emit, values, numbers, self.curve)


def store_transposed(
    emit: Emitter,
    voxels: dict[int, Value],
    row: Value,
    stride: Value,
    span: tuple[Value, Value],
    maps: Value = LANES,
    adding: Finishing | None = None,
) -> None:
    """Store vectors across maps as the span of a row in each map; maps beyond ``maps`` get none.

    Args:
        emit: emitter of the kernel.
        voxels: the vectors by their place in the row.
        row: address of the first map's row.
        stride: floats from one map to the next.
        span: the first voxel of the row that is stored, and the one after the last.
        maps: number of maps.
        adding: last step that adds the voxels to those in the row; None to replace those.
    """
    nothing = emit.constant(0.0)
    for x in range(0, len(voxels), LANES):
        block = [voxels.get(i, nothing) for i in range(x, x + LANES)]
        for lane, values in enumerate(emit.transpose(block)):
            with emit.when(emit.index(maps), ">", lane):
                target = emit.at(row, emit.times(stride, lane))
                if adding:
                    held = load_span(emit, target, x, span)
                    values = adding.along_x(values, lane, held)  # noqa: PLW2901
                store_span(emit, values, target, x, span)


def store_row(
    finishing: Finishing,
    voxels: dict[int, Value],
    row: Value,
    image: tuple[Value, Value],
    staging: Value,
    length: int,
    span: tuple[Value, Value],
) -> None:
    """Store vectors across 16 maps as the span of a row in each map.

    If there are fewer than 16 maps, the row passes through the staging.

    Args:
        finishing: last step of the layer; the vectors have passed its ``across_maps``.
        voxels: the vectors by their place in the row.
        row: address of the first map's row.
        image: floats from one map to the next, and the number of maps.
        staging: address of a row for each of 16 maps.
        length: floats of such a row.
        span: the first voxel of the row that is stored, and the one after the last.
    """
    emit, (map_stride, maps) = finishing.emit, image
    staged = maps, "<", emit.index(LANES)
    if finishing.adds:
        with emit.when(*staged), emit.loop(maps) as lane:
            source = emit.at(row, emit.times(lane, map_stride))
            target = emit.at(staging, emit.times(lane, length))
            _copy_span(emit, source, target, len(voxels), span)
    store_transposed(
        emit,
        voxels,
        emit.select(*staged, staging, row),
        emit.select(*staged, emit.index(length), map_stride),
        span,
        adding=finishing if finishing.adds else None,
    )
    with emit.when(*staged), emit.loop(maps) as lane:
        source = emit.at(staging, emit.times(lane, length))
        target = emit.at(row, emit.times(lane, map_stride))
        _copy_span(emit, source, target, len(voxels), span)


def _copy_span(
    emit: Emitter, source: Value, target: Value, voxels: int, span: tuple[Value, Value]
) -> None:
    """Copy those voxels of a row that lie in the span."""
    for x in range(0, voxels, LANES):
        store_span(emit, load_span(emit, source, x, span), target, x, span)


def load_span(emit: Emitter, row: Value, x: int, span: tuple[Value, Value]) -> Value:
    """Load those of 16 voxels from x on that lie in the span; the others are zero."""
    start, stop = (emit.minus(end, x) for end in span)
    return emit.load_lanes(emit.at(row, x), start, stop)


def store_span(emit: Emitter, values: Value, row: Value, x: int, span: tuple[Value, Value]) -> None:
    """Store those of 16 voxels from x on that lie in the span."""
    start, stop = (emit.minus(end, x) for end in span)
    emit.store_lanes(values, emit.at(row, x), start, stop)


def zero(emit: Emitter, target: Value, floats: Value) -> None:
    """Set a number of floats, a multiple of 16, to zero."""
    with emit.loop(floats, step=LANES) as i:
        emit.store(emit.constant(0.0), emit.at(target, i))
