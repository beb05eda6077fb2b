"""The loop over the tiles of a pooled convolution, each computed from image to output.

No intermediate result of a tile leaves the worker's caches. The tile's spectra come first. For each
16 output maps, the product with the kernels' spectra, the inverse transform and pooling follow.
"""

from __future__ import annotations

from znni.primitives.cpu.common.image_rows import image_parameters, prefetch_rows
from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.phases import PhaseEmitter, PhaseKernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.fft_tiled.number_formats import NUMBER
from znni.primitives.cpu.fft_tiled.overlap_save import TABLE_COLUMNS
from znni.primitives.cpu.fft_tiled.planes import PLANE_ARGUMENTS, ColumnRun, Planes
from znni.primitives.cpu.fft_tiled.tile_transform import along_axes

FLOATS, INDICES, INDEX = Argument.FLOATS, Argument.INDICES, Argument.INDEX

ARGUMENTS = {
    **dict.fromkeys(("forward_rows", "forward_columns_y", "forward_columns_z"), INDEX),
    **dict.fromkeys(("product_columns", "inverse_columns_y", "largest_row", "pooled_row"), INDEX),
    # Input and output: their tiles' places, and the voxels that a tile reads and writes there.
    **image_parameters("source"),
    "in_features": INDEX,
    "source_table": INDICES,
    **along_axes("read", [INDEX] * 3),
    **image_parameters("target"),
    "out_features": INDEX,
    "target_table": INDICES,
    **along_axes("written", [INDEX] * 3),
    **dict.fromkeys(("window_z", "window_y"), INDEX),
    **PLANE_ARGUMENTS,
    "kernels": FLOATS,
    "group_stride": INDEX,  # floats from the kernels of 16 output maps to the next
    # The worker's scratch has a tile's planes, then its spectra, and then a row that is minus
    # infinity at first.
    **dict.fromkeys(("values_at", "largest_at"), INDEX),
    **dict.fromkeys(("bias", "slope", "floor"), FLOATS),
}


@cached_kernel
def pooled_driver() -> PhaseKernel:
    """Return a phase whose shares are the tiles."""
    emit = PhaseEmitter("pooled_tiles", **ARGUMENTS)
    planes = Planes(emit)
    row = emit.times(emit["share"], TABLE_COLUMNS)
    _forward(emit, planes, emit.at(emit["source"], emit.index_at(emit["source_table"], row)))
    target, *skip = (
        emit.index_at(emit["target_table"], emit.plus(row, i)) for i in range(TABLE_COLUMNS)
    )
    with emit.loop(emit["out_features"], step=LANES) as feature:
        group = emit.quotient(feature, LANES)
        _products(emit, planes, emit.at(emit["kernels"], emit.times(group, emit["group_stride"])))
        image = emit.at(emit["target"], target)
        image = emit.at(image, emit.times(feature, emit["target_map_stride"]))
        _pooled(emit, planes, image, feature, skip)
    return emit.compile_phase()


def _forward(emit: Emitter, planes: Planes, corner: Value) -> None:
    """Store the spectra of a tile's input maps in ``values``; planes here have z as their lanes."""
    with emit.loop(emit["in_features"]) as c:
        image = emit.at(corner, emit.times(c, emit["source_map_stride"]))
        with emit.loop(emit["tile_z"], step=LANES) as z:
            plane = planes.at(emit.quotient(z, LANES))
            source = emit.at(image, emit.times(z, emit["source_z_stride"]))
            # Zeros replace planes beyond those that are read, as they replace missing maps.
            count = emit.smaller(emit.minus(emit["read_z"], z), LANES)
            strides = [emit["source_z_stride"], emit["source_y_stride"], count]
            rows = [emit["read_y"], emit["read_x"], emit["tile_y"]]
            emit.call(emit["forward_rows"], [source, *strides, *rows, plane, planes.end])
            planes.transform_y(plane, emit["forward_columns_y"])
        map_floats = emit.times(emit["tile_z"], 2 * LANES)
        for run in planes.columns_along_z():
            values = emit.at(_values(emit, run), emit.times(c, map_floats))
            with emit.loop(run.count, step=LANES) as column:
                block = emit.times(
                    emit.times(column, 2), emit.times(emit["tile_z"], emit["in_features"])
                )
                place = emit.at(run.place, emit.times(column, NUMBER))
                parts = [place, emit["plane_stride"], emit.at(values, block)]
                emit.call(emit["forward_columns_z"], [*parts, planes.end])


def _products(emit: Emitter, planes: Planes, kernels: Value) -> None:
    """Multiply by the kernels of 16 output maps, transform along z, and store in the planes."""
    column_floats = emit.times(emit.times(emit["tile_z"], emit["in_features"]), NUMBER)
    for run in planes.columns_along_z():
        factors = [_values(emit, run), emit.at(kernels, emit.times(run.column, column_floats))]
        side = run.place, emit["plane_stride"]
        emit.call(emit["product_columns"], [*factors, *side, run.count])


def _values(emit: Emitter, run: ColumnRun) -> Value:
    """Return the address of the spectra of a run's first block."""
    block_floats = emit.times(emit.times(emit["tile_z"], emit["in_features"]), 2 * LANES)
    values = emit.at(emit["scratch"], emit["values_at"])
    return emit.at(values, emit.times(run.block, block_floats))


def _pooled(emit: Emitter, planes: Planes, image: Value, feature: Value, skip: list[Value]) -> None:
    """Transform planes along y and x, pool them, and write 16 maps of the output."""
    maps = emit.minus(emit["out_features"], feature)
    largest = emit.at(emit["scratch"], emit["largest_at"])
    skip_z, skip_y, skip_x = skip
    with emit.loop(emit["written_z"], skip_z) as z:
        first = planes.at(emit.times(z, emit["window_z"]))
        with emit.loop(emit["window_z"]) as i:
            plane = planes.along_z(first, i)
            planes.mirror(plane)
            planes.transform_y(plane, emit["inverse_columns_y"])
        with emit.loop(emit["written_y"], skip_y) as y:
            row = emit.at(image, emit.times(z, emit["target_z_stride"]))
            row = emit.at(row, emit.times(y, emit["target_y_stride"]))
            ends = [emit.index(0), emit.minus(emit["written_x"], 1)]
            prefetch_rows(emit, row, emit["target_map_stride"], maps, ends, written=True)
            top = emit.times(y, emit["window_y"])
            with emit.loop(emit["window_z"]) as i, emit.loop(emit["window_y"]) as j:
                source = planes.row(planes.along_z(first, i), emit.plus(top, j))
                emit.call(emit["largest_row"], [source, largest])
            span = [skip_x, emit["written_x"]]
            last = [*(emit.at(emit[name], feature) for name in ("bias", "slope")), emit["floor"]]
            strides = [emit["target_map_stride"], maps]
            emit.call(emit["pooled_row"], [largest, row, *strides, *span, *last])
