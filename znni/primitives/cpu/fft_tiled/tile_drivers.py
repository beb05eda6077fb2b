"""Loops over tiles, planes and columns: the order in which a tile's axes are transformed.

The kernels for the axes are arguments, given by their addresses. So the two drivers serve tiles of
all extents. Along x and y the work goes plane by plane, so that a plane stays in the nearest cache
from one pass to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from znni.primitives.cpu.common.image_rows import image_parameters, zero
from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.phases import PhaseEmitter, PhaseKernel
from znni.primitives.cpu.common.simd import LANES, Argument, Value
from znni.primitives.cpu.fft_tiled.overlap_save import TABLE_COLUMNS
from znni.primitives.cpu.fft_tiled.planes import PLANE_ARGUMENTS, Planes
from znni.primitives.cpu.fft_tiled.tile_transform import along_axes

FLOATS, INDICES, INDEX = Argument.FLOATS, Argument.INDICES, Argument.INDEX

# Arguments of a pass from or to an image, whose shares are some tiles of one group of 16 maps. A
# pass from an image ignores bias, slope and floor. ``number`` is the floats of a group.
SHARE_ARGUMENTS = {
    **image_parameters("array"),
    "table": INDICES,
    **dict.fromkeys(("maps", "tiles", "tiles_per_share", "number", "tile_stride"), INDEX),
    **along_axes("inner", [INDEX] * 3),
    **dict.fromkeys(("spectra", "bias", "slope", "floor"), FLOATS),
}

# Arguments of both drivers.
DRIVER_ARGUMENTS = {
    **dict.fromkeys(("rows", "columns_y", "columns_z", "frequency_stride"), INDEX),
    **SHARE_ARGUMENTS,
    **PLANE_ARGUMENTS,
}


@cached_kernel
def forward_driver() -> PhaseKernel:
    """Return a phase that transforms tiles from an image to their spectra."""
    emit = PhaseEmitter("forward_tiles", **DRIVER_ARGUMENTS)
    share, planes = Share(emit, emit["spectra"]), Planes(emit)
    with share.tiles() as ([corner, *_], spectrum):
        with emit.loop(emit["inner_z"]) as z:
            plane, image = planes.at(z), emit.at(corner, emit.times(z, emit["array_z_stride"]))
            rows = [emit["inner_y"], emit["inner_x"], emit["tile_y"]]
            emit.call(emit["rows"], [image, *share.image, *rows, plane, planes.end])
            planes.transform_y(plane, emit["columns_y"])
        with emit.loop(emit["tile_z"], emit["inner_z"]) as z:
            zero(emit, planes.at(z), emit.times(emit["tile_y"], planes.row_stride))
        column_stride = emit.times(emit["tile_z"], emit["frequency_stride"])
        for run in planes.columns_along_z():
            target = emit.at(spectrum, emit.times(run.column, column_stride))
            parts = [run.place, emit["plane_stride"], target, emit["frequency_stride"]]
            emit.call(emit["columns_z"], [*parts, run.count, column_stride])
    return emit.compile_phase()


@cached_kernel
def inverse_driver() -> PhaseKernel:
    """Return a phase that transforms the spectra of tiles back into an image."""
    emit = PhaseEmitter("inverse_tiles", **DRIVER_ARGUMENTS)
    share, planes = Share(emit, emit["spectra"]), Planes(emit)
    with share.tiles() as ([corner, skip_z, *skip], spectrum):
        column_stride = emit.times(emit["tile_z"], emit["frequency_stride"])
        for run in planes.columns_along_z():
            source = emit.at(spectrum, emit.times(run.column, column_stride))
            parts = [source, emit["frequency_stride"], run.place, emit["plane_stride"]]
            emit.call(emit["columns_z"], [*parts, run.count, column_stride])
        with emit.loop(emit["inner_z"], skip_z) as z:
            plane, image = planes.at(z), emit.at(corner, emit.times(z, emit["array_z_stride"]))
            planes.mirror(plane)
            planes.transform_y(plane, emit["columns_y"])
            rows = [*skip, emit["inner_y"], emit["inner_x"], *share.finish, emit["floor"]]
            emit.call(emit["rows"], [plane, image, *share.image, *rows, planes.end])
    return emit.compile_phase()


class Share:
    """The common part of the two directions: one share, some tiles of 16 maps.

    Attributes:
        image: arguments for rows of the maps: two strides, and the number of maps.
        finish: addresses of the maps' biases and slopes.

    Args:
        emit: emitter of a pass with ``SHARE_ARGUMENTS``.
        spectra: address of all tiles' spectra, or values at points.
    """

    def __init__(self, emit: PhaseEmitter, spectra: Value) -> None:
        self._emit = emit
        self._spectra = spectra
        groups = emit.quotient(emit.plus(emit["maps"], LANES - 1), LANES)
        self._part = emit.quotient(emit["share"], groups)
        self._group = emit.minus(emit["share"], emit.times(self._part, groups))
        self._feature = emit.times(self._group, LANES)
        maps = emit.smaller(emit.minus(emit["maps"], self._feature), LANES)
        self.image = [emit["array_map_stride"], emit["array_y_stride"], maps]
        self.finish = [emit.at(emit[name], self._feature) for name in ("bias", "slope")]

    @contextmanager
    def tiles(self) -> Iterator[tuple[list[Value], Value]]:
        """Repeat the code emitted inside for each tile, with its row of the table and its spectrum.

        The row's first column is replaced by the address of the tile's first voxel.
        """
        emit = self._emit
        first_voxel = emit.at(emit["array"], emit.times(self._feature, emit["array_map_stride"]))
        first_spectrum = emit.at(self._spectra, emit.times(self._group, emit["number"]))
        with emit.part(self._part, emit["tiles_per_share"], emit["tiles"]) as tile:
            row = emit.times(tile, TABLE_COLUMNS)
            start, *skip = (
                emit.index_at(emit["table"], emit.plus(row, i)) for i in range(TABLE_COLUMNS)
            )
            spectrum = emit.at(first_spectrum, emit.times(tile, emit["tile_stride"]))
            yield [emit.at(first_voxel, start), *skip], spectrum
