"""Loops over tiles, planes and columns: the order in which a tile's axes are transformed.

The kernels of the axes are arguments, given by their addresses, so that two drivers serve tiles
of all extents. Along x and y the work goes plane by plane, so that a plane stays in the nearest
cache from one pass to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.tiled.number_formats import NUMBER
from znni.primitives.cpu.tiled.overlap_save import TABLE_COLUMNS
from znni.primitives.cpu.tiled.tile_transform import zero

FLOATS, INDICES, INDEX = Argument.FLOATS, Argument.INDICES, Argument.INDEX

# Of both drivers: the forward one leaves bias and floor alone. A share is so many tiles of one
# group of 16 maps.
DRIVER_ARGUMENTS = {
    "rows": INDEX,
    "columns_y": INDEX,
    "columns_z": INDEX,
    "image": FLOATS,
    "map_stride": INDEX,
    "z_stride": INDEX,
    "y_stride": INDEX,
    "maps": INDEX,
    "table": INDICES,
    "tiles": INDEX,
    "share": INDEX,
    "shares": INDEX,
    "counter": INDICES,
    "inner_z": INDEX,
    "inner_y": INDEX,
    "inner_x": INDEX,
    "tile_z": INDEX,
    "tile_y": INDEX,
    "half_x": INDEX,
    "whole_rows": INDEX,
    "own_columns": INDEX,
    "plane_stride": INDEX,
    "scratch": FLOATS,
    "spectra": FLOATS,
    "number": INDEX,
    "tile_stride": INDEX,
    "frequency_stride": INDEX,
    "bias": FLOATS,
    "floor": FLOATS,
}


@cache
def forward_driver() -> Kernel:
    """Transform tiles from an image to their spectra."""
    emit = Emitter("forward_tiles", **DRIVER_ARGUMENTS)
    driver = _Driver(emit)
    with driver.tiles() as ([corner, *_], spectrum):
        with emit.loop(emit["inner_z"]) as z:
            plane, image = driver.plane(z), emit.at(corner, emit.times(z, emit["z_stride"]))
            rows = [emit["inner_y"], emit["inner_x"], emit["tile_y"]]
            emit.call(emit["rows"], [image, *driver.image, *rows, plane, driver.staging])
            driver.transform_y(plane)
        with emit.loop(emit["tile_z"], emit["inner_z"]) as z:
            zero(emit, driver.plane(z), emit.times(emit["tile_y"], driver.row_stride))
        driver.transform_z(*spectrum, forward=True)
    return emit.compile()


@cache
def inverse_driver() -> Kernel:
    """Transform the spectra of tiles back, into an image."""
    emit = Emitter("inverse_tiles", **DRIVER_ARGUMENTS)
    driver = _Driver(emit)
    with driver.tiles() as ([corner, skip_z, *skip], spectrum):
        driver.transform_z(*spectrum, forward=False)
        with emit.loop(emit["inner_z"], skip_z) as z:
            plane, image = driver.plane(z), emit.at(corner, emit.times(z, emit["z_stride"]))
            driver.mirror(plane)
            driver.transform_y(plane)
            rows = [*skip, emit["inner_y"], emit["inner_x"], driver.bias, emit["floor"]]
            emit.call(emit["rows"], [plane, image, *driver.image, *rows, driver.staging])
    return emit.compile()


class _Driver:
    """What the two directions share.

    Attributes:
        row_stride: floats from one row of a plane to the next.
        staging: scratch for rows.
        image: of the share that is worked on, what rows take: two strides and its maps.
        bias: of its maps.
    """

    image: list[Value]
    bias: Value

    def __init__(self, emit: Emitter) -> None:
        self._emit = emit
        self._number = emit.index(NUMBER)
        self.row_stride = emit.times(emit["half_x"], self._number)
        planes = emit.times(emit["tile_z"], emit["plane_stride"])
        self.staging = emit.at(emit["scratch"], planes)

    @contextmanager
    def tiles(self) -> Iterator[tuple[list[Value], tuple[Value, Value]]]:
        """For every tile, its row of the table, and its spectrum with the frequencies' stride.

        In place of the row's first column stands the address of the tile's first voxel.
        """
        emit = self._emit
        groups = emit.quotient(emit.plus(emit["maps"], LANES - 1), LANES)
        with emit.claims(emit["counter"], emit["shares"]) as share:
            number = emit.quotient(share, groups)
            group = emit.minus(share, emit.times(number, groups))
            feature = emit.times(group, LANES)
            maps = emit.smaller(emit.minus(emit["maps"], feature), LANES)
            self.image = [emit["map_stride"], emit["y_stride"], maps]
            self.bias = emit.at(emit["bias"], feature)
            first_voxel = emit.at(emit["image"], emit.times(feature, emit["map_stride"]))
            first_spectrum = emit.at(emit["spectra"], emit.times(group, emit["number"]))
            with emit.part(number, emit["share"], emit["tiles"]) as tile:
                row = emit.times(tile, TABLE_COLUMNS)
                start, *skip = (
                    emit.index_at(emit["table"], emit.plus(row, i)) for i in range(TABLE_COLUMNS)
                )
                corner = emit.at(first_voxel, start)
                spectrum = emit.at(first_spectrum, emit.times(tile, emit["tile_stride"]))
                yield [corner, *skip], (spectrum, emit["frequency_stride"])

    def plane(self, z: Value) -> Value:
        """The scratch's plane at z."""
        return self._emit.at(self._emit["scratch"], self._emit.times(z, self._emit["plane_stride"]))

    def transform_y(self, plane: Value) -> None:
        """All columns of a plane, in place."""
        side = plane, self.row_stride
        self._emit.call(self._emit["columns_y"], [*side, *side, self._emit["half_x"], self._number])

    def transform_z(self, spectrum: Value, stride: Value, forward: bool) -> None:
        """All columns along z, from scratch to spectrum or back."""
        emit = self._emit
        step = emit.times(emit["tile_z"], stride)

        def transform(planes: Value, column: Value, count: Value) -> None:
            sides = [
                (planes, emit["plane_stride"]),
                (emit.at(spectrum, emit.times(column, step)), stride),
            ]
            (source, target) = sides if forward else reversed(sides)
            emit.call(emit["columns_z"], [*source, *target, count, step])

        whole = emit.times(emit["whole_rows"], emit["half_x"])
        transform(emit["scratch"], emit.index(0), whole)
        with emit.loop(emit["tile_y"], emit["whole_rows"]) as fy:
            own = emit.times(emit.minus(fy, emit["whole_rows"]), emit["own_columns"])
            row = emit.at(emit["scratch"], emit.times(fy, self.row_stride))
            planes = emit.at(row, self._number)
            transform(planes, emit.plus(whole, own), emit["own_columns"])

    def mirror(self, plane: Value) -> None:
        """Complete a plane's columns by the conjugates of others."""
        emit = self._emit
        apart = emit.times(emit.plus(emit["own_columns"], 1), self._number)
        with emit.loop(emit["tile_y"], emit["whole_rows"]) as fy:
            source, target = (
                emit.at(plane, emit.times(y, self.row_stride))
                for y in (emit.minus(emit["tile_y"], fy), fy)
            )
            # At fx = 0 and, where there is such a frequency, in the middle of x.
            with emit.loop(self.row_stride, step=apart) as at:
                real, imaginary = emit.at(source, at), emit.at(emit.at(source, at), LANES)
                emit.store(emit.load(real), emit.at(target, at))
                conjugate = emit.negate(emit.load(imaginary))
                emit.store(conjugate, emit.at(emit.at(target, at), LANES))
