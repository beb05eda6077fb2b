"""Reading what the network sees: values are scaled, checked, and repeated beyond the edges."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import UnusableValues
from znni.core.option_types import Pad
from znni.core.shapes import FLOAT_BYTES, ZERO, Box, Vec3
from znni.core.volume import Volume
from znni.engine.precision_warning import warn_of_large_integers
from znni.engine.scaling import StoredScaling, fixed_of_maps, scale, stay_finite
from znni.engine.stages.read import COPIES_READ
from znni.engine.tiles import Allocate, Job, allocate_new
from znni.machine.io_threads import at_once, finish, io_threads, mapped
from znni.network.input_scaling import InputScaling
from znni.network.weights import Float32

# Values of a piece, if memory allows: 8 MiB of float32. With many small pieces, threads mostly wait
# for the interpreter's lock.
PIECE_VALUES = 2**21

# Values for which another thread is worth its waking, and its waiting for the interpreter's lock.
THREAD_VALUES = 2**18

# Shares of the pieces for each thread, if there are several.
SHARES = 2

# Bytes that pieces may take in any case. They are part of the memory declared for a process.
LEAST_BYTES = 2**20

# The most copies of a piece, as it is stored, that a thread holds. Decoding takes some of them.
COPIES = 4

# The number of axes of blocks whose stretches are cached.
MOST_AXES = 4096

# Returns the values (f, z, y, x) of a box, as they are stored.
ReadBox: TypeAlias = Callable[[Box], NDArray[Any]]

# The part of an axis that is set, and the part of a piece from which it is set.
Placed: TypeAlias = tuple[slice, slice]


def read_input(
    volume: Volume,
    job: Job,
    box: Box,
    scaling: InputScaling,
    allocate: Allocate = allocate_new,
) -> Float32:
    """Read what the network sees in a box: float32 (f, z, y, x), scaled, padded at the edges.

    Each thread reads piece after piece, scales and checks it, and places it. If the volume has no
    pieces, the whole box is read first. The same holds if a single piece takes more memory than is
    declared.

    Args:
        volume: the input.
        job: which output is wanted.
        box: the voxels of the volume, and around it, that are read for a tile.
        scaling: how values are scaled.
        allocate: gives the array for the result.

    Raises:
        UnusableValues: a value is NaN, or infinite as float32, and would spread to its neighbours.
    """
    values: Float32 = _read(volume, job, box, scaling, allocate)
    for known in _known_boxes(job, scaling):
        _blank_outside(values, box, known)
    return values


def read_stored(
    volume: Volume, job: Job, box: Box, scaling: InputScaling, allocate: Allocate = allocate_new
) -> tuple[NDArray[Any], StoredScaling]:
    """Read the stored values (f, z, y, x) that the network sees in a box, padded at the edges.

    It takes the same arguments as ``read_input``. Values are not checked: ``scaled_on_gpu`` says
    which need no check.

    Returns:
        The values, and how they become what the network sees.
    """
    values = _read(volume, job, box, None, allocate)
    known: Box | None = box
    for other in _known_boxes(job, scaling):
        known = known and known.intersection(other)
    inside = known.shifted(ZERO - box.start) if known else Box(ZERO, ZERO)
    return values, StoredScaling(scaling, fixed_of_maps(scaling, len(values)), inside)


def _known_boxes(job: Job, scaling: InputScaling) -> list[Box]:
    """Return boxes of the volume. Outside of each box, the network sees zeros."""
    boxes = []
    if scaling.box:
        boxes.append(scaling.box)
    elif job.pad == "constant":
        boxes.append(Box(ZERO, job.volume))
    if job.whole:
        boxes.append(Box(job.origin, job.origin + job.whole))
    return boxes


def _read(
    volume: Volume, job: Job, box: Box, scaling: InputScaling | None, allocate: Allocate
) -> NDArray[Any]:
    """Read a box as an array (f, z, y, x), padded by values of the volume.

    Args:
        volume: the input.
        job: which output is wanted.
        box: the voxels of the volume, and around it.
        scaling: how values are scaled; None: they stay as they are stored.
        allocate: gives the array.

    Raises:
        UnusableValues: a value is scaled, and is NaN or infinite as float32.
    """
    axes = [
        _stretches(start, stop, extent, job.pad)
        for start, stop, extent in zip(box.start, box.stop, job.volume, strict=True)
    ]
    lowest, highest = zip(*map(_ends, axes), strict=True)
    start, stop = Vec3(*lowest), Vec3(*highest)
    real_voxels, maps = Box(start, stop), volume.features
    voxels = real_voxels.size.volume
    scaled = FLOAT_BYTES if scaling else 0
    threads = max(1, min(io_threads(), voxels * maps // THREAD_VALUES))
    tasks = SHARES * threads if threads > 1 else 1

    def piece_bytes(extents: Vec3, copies: int) -> int:
        """Return the bytes that a piece takes for each map, as it is stored and as it is scaled."""
        return extents.minimum(real_voxels.size).volume * (copies * volume.itemsize + scaled)

    read: ReadBox = volume.read
    piece_extents, copies = volume.pieces, COPIES
    # The bytes that may be taken for each map.
    allowed = max(COPIES_READ * volume.itemsize * voxels, LEAST_BYTES)
    if piece_extents is None or piece_bytes(piece_extents, copies) > allowed:
        read, piece_extents, copies = _read_before(volume, real_voxels), None, 1
        allowed -= voxels * volume.itemsize
    for_each = allowed // (threads * (copies * volume.itemsize + scaled))
    together = min(PIECE_VALUES // maps, voxels // tasks, for_each)
    if piece_extents is None:
        size = real_voxels.size
        rows = stop.y if size.y * size.x <= together else 1
        piece_extents = Vec3(1, rows, stop.x)
    dtype = np.dtype(np.float32) if scaling else volume.dtype.newbyteorder("=")
    values = allocate((maps, *box.size), dtype)
    filling = _Filling(values, axes, scaling)

    def fill(pieces: list[Box]) -> None:
        for piece in pieces:
            stored = read(piece)
            warn_of_large_integers(volume, stored)
            filling.take(piece, stored)

    joined = _joined(piece_extents, real_voxels.size, together)
    pieces = list(real_voxels.cut(joined))
    share = -(-len(pieces) // tasks)
    if share == len(pieces):  # waking a thread takes longer than a small block
        fill(pieces)
    else:
        starts = range(0, len(pieces), share)
        shares = (pieces[first : first + share] for first in starts)
        finish(mapped(fill, shares, at_once(allowed, piece_bytes(joined, copies))))
    return values


def _read_before(volume: Volume, box: Box) -> ReadBox:
    """Read a box, and return a function that returns parts of it."""
    values = volume.read(box)
    return lambda piece: values[:, *piece.shifted(ZERO - box.start).slices]


def _joined(piece: Vec3, size: Vec3, most: int) -> Vec3:
    """Return how many neighbouring pieces, x first, have no more voxels than given, as extents.

    Args:
        piece: extents of a piece.
        size: extents of all that is read.
        most: voxels; one piece may have more.
    """
    joined = list(piece)
    for axis in (2, 1, 0):
        each = prod(map(min, joined, size))
        joined[axis] *= max(1, min(most // each, -(-size[axis] // joined[axis])))
    return Vec3(*joined)


class _Stretch(NamedTuple):
    """Positions along an axis that see voxels in a row, forward or backward, or all one voxel.

    Attributes:
        first: the first position.
        length: the number of positions.
        voxel: the voxel that the first position sees.
        step: the way from one position's voxel to the next one's: 1, -1 or 0.
    """

    first: int
    length: int
    voxel: int
    step: int

    @property
    def lowest(self) -> int:
        """The first voxel, along the axis, that is seen."""
        return min(self.voxel, self.voxel + (self.length - 1) * self.step)

    @property
    def extent(self) -> int:
        """The number of voxels that are seen."""
        return (self.length - 1) * abs(self.step) + 1

    def placed(self, start: int, stop: int) -> Placed | None:
        """Return which positions see voxels of a piece, and which; None if none does.

        Args:
            start: the first voxel of the piece.
            stop: the voxel after its last.
        """
        low, high = max(self.lowest, start), min(self.lowest + self.extent, stop)
        if low >= high:
            return None
        if self.step == 0:
            return slice(self.first, self.first + self.length), slice(low - start, high - start)
        before, after = low - start, high - start
        if self.step > 0:
            nearest, part = low, slice(before, after)
        else:
            nearest, part = high - 1, slice(after - 1, before - 1 if before else None, -1)
        first = self.first + abs(nearest - self.voxel)
        return slice(first, first + high - low), part


@lru_cache(maxsize=MOST_AXES)
def _stretches(start: int, stop: int, extent: int, pad: Pad) -> tuple[_Stretch, ...]:
    """Return the voxels that the positions of an axis see as stretches, in order.

    Args:
        start: the first position.
        stop: the position after the last.
        extent: the extent of the volume.
        pad: what is seen beyond its edges.
    """
    source = _source(start, stop, extent, pad)
    stretches, first = list[_Stretch](), 0
    steps = [*map(int, np.diff(source)), 0]
    while first < len(source):
        step, last = steps[first], first
        while last < len(source) - 1 and steps[last] == step:
            last += 1
        stretches.append(_Stretch(first, last - first + 1, int(source[first]), step))
        first = last + 1
    return tuple(stretches)


@lru_cache(maxsize=MOST_AXES)
def _ends(stretches: tuple[_Stretch, ...]) -> tuple[int, int]:
    """Return the first voxel that positions of an axis see, and the voxel after the last."""
    return min(each.lowest for each in stretches), max(
        each.lowest + each.extent for each in stretches
    )


def _source(start: int, stop: int, extent: int, pad: Pad) -> NDArray[np.int64]:
    """Return the index of the voxel seen at each position of an axis, in the volume or beyond."""
    position = np.arange(start, stop)
    if pad != "reflect" or extent == 1:
        return position.clip(0, extent - 1)
    period = 2 * (extent - 1)
    return (extent - 1) - np.abs((extent - 1) - position % period)


class _Filling:
    """Sets the input (f, z, y, x) of a network piece by piece. Several threads may do so.

    Args:
        values: the input, which is not set yet.
        axes: the voxels that the positions of each axis see.
        scaling: how values are scaled; None: they are not.
    """

    def __init__(
        self, values: NDArray[Any], axes: list[tuple[_Stretch, ...]], scaling: InputScaling | None
    ) -> None:
        self._values = values
        self._scaling = scaling
        self._fixed = fixed_of_maps(scaling, len(values)) if scaling else ()
        self._axes = axes

    def take(self, piece: Box, stored: NDArray[Any]) -> None:
        """Set all positions that see voxels of a piece.

        Args:
            piece: voxels of the volume.
            stored: their values (f, z, y, x), in any order of the axes in memory.

        Raises:
            UnusableValues: a value is NaN, or infinite as float32.
        """
        by_axis = map(_placed, self._axes, piece.start, piece.stop)
        places = [tuple(zip(*each, strict=True)) for each in product(*by_axis)]
        if (scaling := self._scaling) is None:
            for positions, part in places:
                self._values[:, *positions] = stored[:, *part]
            return
        # One pass is as fast where rows do not follow each other. With more, a copy pays off.
        one_pass = not scaling.normalize and (scaling.scale, scaling.offset) == (1, 0)
        ignored = (stored == 0).all(axis=0) if scaling.within == "nonzero" else None
        checks = not stay_finite(scaling, self._fixed, stored.dtype)
        for values, found, fixed in zip(self._values, stored, self._fixed, strict=True):
            scaled = values[places[0][0]]
            fits = len(places) == 1 and scaled.shape == found.shape
            if not fits or not (one_pass or scaled.flags.c_contiguous):
                scaled = np.empty(found.shape, np.float32)
            if not scale(found, scaled, scaling, fixed, checks=checks):
                raise _not_finite(scaled, found, piece.start)
            if ignored is not None:
                scaled[ignored] = 0
            for positions, part in places:
                values[positions] = scaled[part]  # NumPy copies nothing if both are the same


@lru_cache(maxsize=MOST_AXES)
def _placed(stretches: tuple[_Stretch, ...], start: int, stop: int) -> tuple[Placed, ...]:
    """Return all positions of an axis that see voxels of a piece, and which."""
    return tuple(part for each in stretches if (part := each.placed(start, stop)))


def _not_finite(scaled: Float32, raw: NDArray[Any], start: Vec3) -> UnusableValues:
    """Return the error that names the first value (z, y, x) of a piece that is not finite.

    Args:
        scaled: the values of the piece, scaled.
        raw: its values, as stored.
        start: its first voxel in the volume.
    """
    with np.errstate(over="ignore"):
        stored = np.isfinite(raw.astype(np.float32))  # what is clipped is finite afterwards
    first = np.unravel_index((np.isfinite(scaled) if stored.all() else stored).argmin(), raw.shape)
    z, y, x = voxel = start + Vec3(*map(int, first))
    said = f"the volume holds {raw[first]} at voxel z={z}, y={y}, x={x}"
    if stored.all():
        problem = f"{said}, which is infinite when scaled; change input: in the network file"
    else:
        problem = (
            f"{said}; replace what is NaN, or infinite as float32, before running a network over it"
        )
    return UnusableValues(problem, voxel)


def _blank_outside(values: Float32, box: Box, known: Box) -> None:
    """Set the values (f, z, y, x) of a box to zero where it lies outside another."""
    inside = [
        slice(max(low - start, 0), max(min(stop, high) - start, 0))
        for start, stop, low, high in zip(*box, *known, strict=True)
    ]
    for axis, kept in enumerate(inside, start=1):
        before = (slice(None),) * axis
        values[*before, : kept.start] = 0
        values[*before, kept.stop :] = 0
