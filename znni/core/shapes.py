"""Sizes, boxes and the arithmetic of valid convolutions and max-pooling fragments.

All sizes are in voxels and ordered z, y, x. This module needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal, NamedTuple, SupportsIndex, TypeAlias, TypeVar, get_args

# Bytes of a float32.
FLOAT_BYTES = 4

# Searches add and multiply hundreds of thousands of extents. This makes a Vec3 sooner than a call.
_new = tuple.__new__


class Vec3(NamedTuple):
    """Three extents or coordinates, z first. Arithmetic with a Vec3 or an int is per axis."""

    z: int
    y: int
    x: int

    @classmethod
    def of(cls, value: int | tuple[int, int, int]) -> Vec3:
        """Return three equal extents from an int, or the three given."""
        return _new(cls, (value, value, value)) if isinstance(value, int) else cls(*value)

    # A Vec3 adds per axis, although + and * of its base, tuple, concatenate and repeat.
    def __add__(self, other: int | Vec3) -> Vec3:  # type: ignore[override]
        z, y, x = (other, other, other) if isinstance(other, int) else other
        return _new(Vec3, (self[0] + z, self[1] + y, self[2] + x))

    def __sub__(self, other: int | Vec3) -> Vec3:
        z, y, x = (other, other, other) if isinstance(other, int) else other
        return _new(Vec3, (self[0] - z, self[1] - y, self[2] - x))

    def __mul__(self, other: int | Vec3) -> Vec3:  # type: ignore[override]
        z, y, x = (other, other, other) if isinstance(other, int) else other
        return _new(Vec3, (self[0] * z, self[1] * y, self[2] * x))

    def __floordiv__(self, other: int | Vec3) -> Vec3:
        z, y, x = (other, other, other) if isinstance(other, int) else other
        return _new(Vec3, (self[0] // z, self[1] // y, self[2] // x))

    def __mod__(self, other: int | Vec3) -> Vec3:
        z, y, x = (other, other, other) if isinstance(other, int) else other
        return _new(Vec3, (self[0] % z, self[1] % y, self[2] % x))

    def ceil_div(self, other: int | Vec3) -> Vec3:
        """Divide per axis, rounded up."""
        z, y, x = (other, other, other) if isinstance(other, int) else other
        return _new(Vec3, (-(-self[0] // z), -(-self[1] // y), -(-self[2] // x)))

    def minimum(self, other: int | Vec3) -> Vec3:
        """Return the smaller of the two, per axis."""
        return Vec3(*map(min, self, _three(other)))

    def maximum(self, other: int | Vec3) -> Vec3:
        """Return the larger of the two, per axis."""
        return Vec3(*map(max, self, _three(other)))

    def within(self, other: Vec3) -> bool:
        """Return whether no axis exceeds the other's."""
        return self[0] <= other[0] and self[1] <= other[1] and self[2] <= other[2]

    @property
    def volume(self) -> int:
        """Product of the three extents."""
        return self[0] * self[1] * self[2]

    def __str__(self) -> str:
        return f"{self.z}x{self.y}x{self.x}"


ZERO, ONE = Vec3(0, 0, 0), Vec3(1, 1, 1)


def _three(value: int | Vec3) -> tuple[int, int, int]:
    return (value, value, value) if isinstance(value, int) else value


class Shape5(NamedTuple):
    """The shape ``(n, f, z, y, x)`` of an array: inputs times fragments, maps, voxels."""

    n: int
    f: int
    z: int
    y: int
    x: int

    @classmethod
    def of(cls, n: int, f: int, size: Vec3) -> Shape5:
        """Return the shape of a batch of ``n`` with ``f`` maps of ``size`` voxels."""
        return _new(cls, (n, f, *size))

    @property
    def size(self) -> Vec3:
        """Voxels per axis of one map."""
        return _new(Vec3, self[2:])

    @property
    def elements(self) -> int:
        """Number of values in the array."""
        n, f, z, y, x = self
        return n * f * z * y * x

    @property
    def nbytes(self) -> int:
        """Bytes of the array in float32."""
        n, f, z, y, x = self
        return FLOAT_BYTES * n * f * z * y * x

    def __str__(self) -> str:
        return f"{self.n}x{self.f}x{self.size}"


# An axis, by its name in ``Vec3`` and ``Shape5``.
Axis: TypeAlias = Literal["z", "y", "x"]
AXES: tuple[Axis, ...] = get_args(Axis)

Extents = TypeVar("Extents", Vec3, Shape5)


def extent(size: Vec3 | Shape5, axis: Axis) -> int:
    """Return the extent along an axis."""
    along: int = getattr(size, axis)
    return along


def resized(size: Extents, axis: Axis, along: int) -> Extents:
    """Return extents with another one along an axis."""
    return size._replace(**{axis: along})


def extended(size: Extents, axis: Axis, by: int) -> Extents:
    """Return extents that are larger along an axis."""
    return resized(size, axis, extent(size, axis) + by)


# The axes in the order in which boxes fill a larger one, the fastest last.
AxisOrder: TypeAlias = tuple[int, int, int]
BY_LAYERS: AxisOrder = (0, 1, 2)


def by_columns(axis: Axis | None) -> AxisOrder:
    """Return the order in which boxes fill columns along an axis; None: they fill layers."""
    fastest = AXES.index(axis or "x")
    first, second = (other for other in BY_LAYERS if other != fastest)
    return first, second, fastest


class Box(NamedTuple):
    """A half-open box of voxels, from ``start`` up to but not including ``stop``."""

    start: Vec3
    stop: Vec3

    @property
    def size(self) -> Vec3:
        """Voxels per axis."""
        return self.stop - self.start

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        """The box as three slices of an array."""
        (z, y, x), (z_stop, y_stop, x_stop) = self
        return slice(z, z_stop), slice(y, y_stop), slice(x, x_stop)

    def shifted(self, by: Vec3) -> Box:
        """Return the box moved by ``by``."""
        return Box(self.start + by, self.stop + by)

    def cut(self, stride: Vec3) -> Iterator[Box]:
        """Return the parts into which a grid of that stride, from the origin, cuts the box."""
        first, last = self.start // stride, (self.stop - 1) // stride
        for index in product(*(range(a, b + 1) for a, b in zip(first, last, strict=True))):
            start = Vec3(*index) * stride
            yield Box(start.maximum(self.start), (start + stride).minimum(self.stop))

    def hull(self, other: Box) -> Box:
        """Return the smallest box that holds both."""
        return Box(self.start.minimum(other.start), self.stop.maximum(other.stop))

    def intersection(self, other: Box) -> Box | None:
        """Return the part common to both boxes, or None if there is none."""
        common = Box(self.start.maximum(other.start), self.stop.minimum(other.stop))
        return common if min(common.size) > 0 else None

    def without(self, *others: Box, order: AxisOrder = BY_LAYERS) -> list[Box]:
        """Return the part outside other boxes, as boxes that do not overlap.

        Args:
            others: the other boxes.
            order: the axes in whose order the boxes fill this one, the fastest last.
        """
        left = [self]
        for other in others:
            left = [part for one in left for part in one._outside(other, order)]
        return left

    def _outside(self, other: Box, order: AxisOrder) -> Iterator[Box]:
        """Yield the part outside another box, as boxes that do not overlap.

        If the other box is at the start of this one, there are three parts. By layers, they are the
        rest of its row, the rest of its layer of rows, and the other layers.
        """
        if self.within(other):
            return
        common = self.intersection(other)
        if common is None:
            yield self
            return
        after = []
        start, stop = self
        for axis in order:
            name = "zyx"[axis]
            low, high = common.start[axis], common.stop[axis]
            if start[axis] < low:
                yield Box(start, stop._replace(**{name: low}))
            if high < stop[axis]:
                after.append(Box(start._replace(**{name: high}), stop))
            start, stop = start._replace(**{name: low}), stop._replace(**{name: high})
        yield from reversed(after)

    def within(self, other: Box) -> bool:
        """Return whether the other box contains this one."""
        return other.start.within(self.start) and self.stop.within(other.stop)

    def __str__(self) -> str:
        return ",".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True))


def is_extent(value: object) -> bool:
    """Return whether a value is a number of voxels: an integer of any kind, at least 1."""
    return isinstance(value, SupportsIndex) and value.__index__() >= 1


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is no less than a number."""
    return -(-number // multiple) * multiple


def valid_convolution(size: Vec3, kernel: Vec3) -> Vec3 | None:
    """Return the output size of a valid convolution, or None if the kernel exceeds the input."""
    return size - kernel + 1 if kernel.within(size) else None


def max_pooling(size: Vec3, window: Vec3) -> Vec3 | None:
    """Return the output size of max-pooling with stride = window, or None if no window fits.

    Voxels beyond the last whole window are dropped.
    """
    return size // window if window.within(size) else None


def fragments(size: Vec3, window: Vec3) -> Vec3 | None:
    """Return the size of each max-pooling fragment, or None if the fragments differ in size.

    All ``window.volume`` offsets give fragments of one size only if ``size + 1`` is a multiple
    of the window (ZNNi, section V).
    """
    return max_pooling(size, window) if (size + 1) % window == ZERO else None


def offsets(window: Vec3) -> Iterator[Vec3]:
    """Return the offsets of a pooling window's fragments, in the order of their batch index."""
    return (Vec3(z, y, x) for z, y, x in product(*map(range, window)))


# A part of a volume, as callers choose it. An end that is left out is that of the whole.
Region: TypeAlias = Box | tuple[slice, slice, slice]
