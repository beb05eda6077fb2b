"""Changes of the values of a prepared scan, in its file, by the steps of MONAI's transforms.

Each step computes in float32, as MONAI does. A step that needs statistics reads the whole file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from znni.core.shapes import FLOAT_BYTES, Vec3
from znni.engine.statistics import Moments
from znni.network.case_rules import ScaleRange, Standardize, Stretch, ValueStep
from znni.network.weights import Float32

SLAB_VALUES = 2**22  # that are changed at a time, unless a plane has more; sums depend on it
CHANGED_BYTES = 28  # of a value while it is changed, or its mean and deviation are computed

# Changes values (f, z, y, x), and returns them.
Change: TypeAlias = Callable[[Float32], Float32]

# Returns all values (f, z, y, x), slab by slab.
Slabs: TypeAlias = Callable[[], Iterator[Float32]]


def change_values(path: Path, steps: Sequence[ValueStep]) -> None:
    """Change the values in a ``.npy`` file by steps, one after the other.

    An interrupted change leaves the file damaged.
    """
    if not steps:
        return
    with path.open("r+b") as file:
        planes = _Planes(file)
        slabs: Slabs = planes.slabs
        for step in steps:
            slabs = partial(_changed, _change(step, planes.maps, slabs), slabs)
        for start, values in zip(planes.starts(), slabs(), strict=True):
            planes.write(start, values)


def changed_bytes(size: Vec3, maps: int) -> int:
    """Return the bytes that ``change_values`` takes, or takes for fewer values."""
    plane = maps * size.y * size.x
    return CHANGED_BYTES * max(plane, min(SLAB_VALUES, size.z * plane))


def _changed(change: Change, slabs: Slabs) -> Iterator[Float32]:
    """Yield values slab by slab, changed."""
    return map(change, slabs())


class _Planes:
    """The planes of a ``.npy`` file of float32 values (f, z, y, x)."""

    def __init__(self, file: BinaryIO) -> None:
        np.lib.format.read_magic(file)
        self._shape, _, _ = np.lib.format.read_array_header_1_0(file)
        self._file, self._begin = file, file.tell()
        self.maps, self._depth, *plane = self._shape
        self._plane = prod(plane)
        self._slab = max(1, SLAB_VALUES // (self.maps * self._plane))

    def starts(self) -> range:
        """Return the first plane of each slab."""
        return range(0, self._depth, self._slab)

    def slabs(self) -> Iterator[Float32]:
        """Return the values (f, z, y, x) of each slab, which is read when it is wanted."""
        return map(self._read, self.starts())

    def _read(self, start: int) -> Float32:
        """Return the values (f, z, y, x) of a slab."""
        depth = min(self._slab, self._depth - start)
        values = np.empty((self.maps, depth, *self._shape[2:]), np.float32)
        for number, each in enumerate(values):
            self._seek(number, start)
            self._file.readinto(each.data)  # type: ignore[attr-defined]
        return values

    def write(self, start: int, values: Float32) -> None:
        """Write the values (f, z, y, x) of a slab."""
        for number, each in enumerate(values):
            self._seek(number, start)
            self._file.write(np.ascontiguousarray(each, np.float32).data)

    def _seek(self, number: int, start: int) -> None:
        self._file.seek(self._begin + FLOAT_BYTES * self._plane * (number * self._depth + start))


def _change(step: ValueStep, maps: int, slabs: Slabs) -> Change:
    """Return the change of a step, after it has read the statistics that it needs."""
    match step:
        case ScaleRange():
            return _scaled(step)
        case Stretch():
            return _stretched(step, slabs)
        case Standardize():
            return _standardized(step, maps, slabs)


def _scaled(step: ScaleRange) -> Change:
    (low, high), (new_low, new_high) = step.source, step.target

    def change(values: Float32) -> Float32:
        values -= np.float32(low)
        values /= np.float32(high - low)
        values *= np.float32(new_high - new_low)
        values += np.float32(new_low)
        return values.clip(new_low, new_high, out=values) if step.clip else values

    return change


def _stretched(step: Stretch, slabs: Slabs) -> Change:
    axes = (1, 2, 3) if step.each else None
    ends = [
        (each.min(axis=axes, keepdims=True), each.max(axis=axes, keepdims=True)) for each in slabs()
    ]
    low, high = np.min([end[0] for end in ends], axis=0), np.max([end[1] for end in ends], axis=0)
    new_low, new_high = map(np.float32, step.target)

    def change(values: Float32) -> Float32:
        wide = np.where(high > low, high - low, np.float32(1))
        stretched = (values - low) / wide * (new_high - new_low) + new_low
        return np.asarray(np.where(high > low, stretched, values * new_low), np.float32)

    return change


def _standardized(step: Standardize, maps: int, slabs: Slabs) -> Change:
    moments = [Moments() for _ in range(maps if step.each else 1)]
    for values in slabs():
        for moment, each in zip(moments, values if step.each else [values], strict=True):
            moment.add(each[each != 0] if step.nonzero else each.ravel())

    means = [np.float32(moment.mean) for moment in moments]
    deviations = [np.float32(moment.deviation) or np.float32(1) for moment in moments]
    mean, deviation = (np.reshape(each, (-1, 1, 1, 1)) for each in (means, deviations))

    def change(values: Float32) -> Float32:
        standard = (values - mean) / deviation
        return np.where(values != 0, standard, values) if step.nonzero else standard

    return change
