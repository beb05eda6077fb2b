"""The planes of a tile's transform, and the passes that drivers make over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from znni.core.shapes import Vec3
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.fft_tiled.number_formats import NUMBER
from znni.primitives.cpu.fft_tiled.tile_transform import (
    TILE_ARGUMENTS,
    half,
    own_columns,
    plane_stride,
    tile_arguments,
    whole_rows,
)

# Arguments of every driver with planes, beside the worker's ``scratch``.
PLANE_ARGUMENTS = TILE_ARGUMENTS | {"plane_stride": Argument.INDEX}


def plane_arguments(tile: Vec3) -> dict[str, int]:
    """Return the values of ``PLANE_ARGUMENTS`` for a tile."""
    return tile_arguments(tile) | {"plane_stride": plane_stride(tile)}


class ColumnRun(NamedTuple):
    """Columns that lie side by side, in the planes and in the spectrum.

    Attributes:
        place: address of the first column in the first plane.
        count: number of columns.
        column: number of the first column in the spectrum.
        block: number of the run's first block; each run has blocks of 16 columns of its own.
    """

    place: Value
    count: Value
    column: Value
    block: Value


def column_blocks(tile: Vec3) -> int:
    """Return the number of blocks of 16 columns in all runs."""
    whole, own = whole_rows(tile) * half(tile.x), own_columns(tile)
    return -(-whole // LANES) + (tile.y - whole_rows(tile)) * -(-own // LANES)


class Planes:
    """A tile's scratch, in the layout of ``tile_transform``.

    If lanes are positions along z, not maps, only the first few planes are used.

    The driver that emits it has the ``PLANE_ARGUMENTS`` and ``scratch``.

    Attributes:
        row_stride: floats from one row of a plane to the next.
        end: address of the scratch after the planes.
    """

    def __init__(self, emit: Emitter) -> None:
        self._emit = emit
        self._number = emit.index(NUMBER)
        self.row_stride = emit.times(emit["half_x"], self._number)
        self.end = self.at(emit["tile_z"])

    def at(self, z: Value) -> Value:
        """Return the address of the plane at z."""
        return self.along_z(self._emit["scratch"], z)

    def along_z(self, place: Value, planes: Value) -> Value:
        """Return the same place in a later plane, by the number of planes between."""
        return self._emit.at(place, self._emit.times(planes, self._emit["plane_stride"]))

    def row(self, plane: Value, y: Value) -> Value:
        """Return the address of a plane's row."""
        return self._emit.at(plane, self._emit.times(y, self.row_stride))

    def transform_y(self, plane: Value, columns: Value) -> None:
        """Transform all columns of a plane in place, by the kernel at an address."""
        side = plane, self.row_stride
        self._emit.call(columns, [*side, *side, self._emit["half_x"], self._number])

    def columns_along_z(self) -> Iterator[ColumnRun]:
        """Yield the runs of columns in a spectrum; the code emitted for one repeats as needed."""
        emit = self._emit
        whole, own = emit.times(emit["whole_rows"], emit["half_x"]), emit["own_columns"]
        yield ColumnRun(emit["scratch"], whole, emit.index(0), emit.index(0))
        with emit.loop(emit["tile_y"], emit["whole_rows"]) as fy:
            row = emit.minus(fy, emit["whole_rows"])
            place = emit.at(self.row(emit["scratch"], fy), self._number)
            before = emit.plus(self._blocks(whole), emit.times(row, self._blocks(own)))
            yield ColumnRun(place, own, emit.plus(whole, emit.times(row, own)), before)

    def _blocks(self, columns: Value) -> Value:
        return self._emit.quotient(self._emit.plus(columns, LANES - 1), LANES)

    def mirror(self, plane: Value) -> None:
        """Complete a plane's columns with the conjugates of others."""
        emit = self._emit
        apart = emit.times(emit.plus(emit["own_columns"], 1), self._number)
        with emit.loop(emit["tile_y"], emit["whole_rows"]) as fy:
            source, target = self.row(plane, emit.minus(emit["tile_y"], fy)), self.row(plane, fy)
            # Columns at fx = 0 and, if there is such a frequency, in the middle of x.
            with emit.loop(self.row_stride, step=apart) as at:
                real, imaginary = emit.at(source, at), emit.at(emit.at(source, at), LANES)
                emit.store(emit.load(real), emit.at(target, at))
                conjugate = emit.negate(emit.load(imaginary))
                emit.store(conjugate, emit.at(emit.at(target, at), LANES))
