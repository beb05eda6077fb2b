"""The boxes of a volume that are read, computed and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Any, Protocol, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.errors import InvalidInput, option
from znni.core.option_types import Border, Pad, check_names
from znni.core.shapes import ONE, ZERO, Axis, Box, Region, Vec3, by_columns, extent, resized
from znni.network.geometry import context, over, whole_input
from znni.network.network import Network
from znni.network.window import Window, missing_window


class Allocate(Protocol):
    """Gives the arrays that blocks are read into."""

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32, /) -> NDArray[Any]:
        """Return an array of a shape (f, z, y, x), whose values are not set."""


@dataclass(frozen=True)
class Job:
    """The wanted output, in coordinates of the input volume.

    Attributes:
        volume: extents of the input volume.
        origin: where the field of view of the first output voxel starts; negative if that is
            beyond the volume's edge.
        output: extents of the output.
        center: the input voxel that the first output voxel stands for: the middle of its field
            of view, or the lower of the two middles if its extent is even.
        pad: what the network sees beyond the volume's edges.
        whole: the extents of a tiled network's input, from voxel ``origin`` on. Beyond them it
            sees zeros, whatever ``pad`` is. None: the network slides.
        first: the first wanted voxel of a tiled network's whole output.
        alignment: the voxels at whose multiples blocks of the whole output begin.
    """

    volume: Vec3
    origin: Vec3
    output: Vec3
    center: Vec3
    pad: Pad
    whole: Vec3 | None = None
    first: Vec3 = ZERO
    alignment: Vec3 = ONE

    def seen(self, tile: Tile, reach: Box) -> Box:
        """Return the voxels of the volume, and around it, that the network sees for a tile.

        Args:
            tile: a patch of the job.
            reach: the voxels of the input for a patch whose first output voxel is 0.
        """
        return reach.shifted(tile.computed.start + self.first + self.origin)

    def tiles(
        self, patch: Vec3, part: Box | None = None, *, swept: Axis | None = None
    ) -> Iterator[Tile]:
        """Cover the output, or a part of it, with patches, as ``cover`` does."""
        return cover(self.output, patch, part, self.first, self.alignment, swept=swept)


def make_job(
    network: Network, volume: Vec3, border: Border, pad: Pad | None, roi: Region | None
) -> Job:
    """Make the job for a whole volume, or for a region of it.

    Args:
        network: its field of view decides how much border is lost.
        volume: extents of the input.
        border: ``valid`` gives the voxels whose whole field of view lies in the volume;
            ``same`` gives all, padding beyond the edges.
        pad: ``reflect`` (without repeating the edge voxel), ``edge``, or ``constant`` (the
            network sees zeros). None: zeros for windows, as in their frameworks, and otherwise
            ``reflect``.
        roi: voxels of the input volume for which output is wanted. The context around them is
            read from the volume, so the result is that part of the whole volume's output. A slice
            without an end goes as far as voxels have output.

    Raises:
        InvalidInput: nothing would be computed, or ``roi`` has voxels without output.
    """
    check_names(border=border, pad=pad or "reflect")
    if network.window_layer and not network.window:
        raise missing_window(network.window_layer, network.name)
    unpadded = ("reflect", "constant") if network.window else ("reflect",)
    if border == "valid" and pad not in (None, *unpadded):
        raise InvalidInput(
            f"pad is {pad!r}, and border='valid' sees nothing beyond the edges; give "
            f"{option('border', 'same')}, or leave it out"
        )
    if network.window:
        output = network.window.over(volume).output
        wanted = _wanted(roi, Box(ZERO, output), border, output)
        beyond = pad if border == "same" else None
        if network.scaling.crops and beyond not in (None, "constant"):
            raise InvalidInput(
                f"pad is {pad!r}, and the input is cropped: around the crop, windows see zeros; "
                f"leave out pad"
            )
        return Job(volume, wanted.start, wanted.size, wanted.start, beyond or "constant")
    pad = pad or "reflect"
    lost = context(network) if network.is_tiled else network.field_of_view - 1
    view, before = lost + 1, lost // 2
    if border == "valid":
        if not view.within(volume):
            raise InvalidInput(
                f"the volume is {volume} voxels, smaller than the field of view {view} of network "
                f"{network.name}; use a larger volume, or {option('border', 'same')} to pad it"
            )
        possible = Box(before, before + volume - view + 1)
    else:
        possible = Box(ZERO, volume)
    wanted = _wanted(roi, possible, border, volume)
    if not network.is_tiled:
        return Job(volume, wanted.start - before, wanted.size, wanted.start, pad)
    whole = whole_input(network, volume if border == "valid" else volume + lost)
    origin = possible.start - before
    first = wanted.start - possible.start
    return Job(volume, origin, wanted.size, wanted.start, pad, whole, first, network.alignment)


def region_of(roi: Region | None, size: Vec3) -> Box:
    """Return the voxels of a region of a volume, or all of them.

    Raises:
        InvalidInput: the region is empty, not within the volume, or no region.
    """
    return _wanted(roi, Box(ZERO, size), "same", size)


def _wanted(roi: Region | None, possible: Box, border: Border, volume: Vec3) -> Box:
    """Return the voxels that need output: a region's, or all that have any."""
    wanted = _region(roi, possible) if roi else possible
    if min(wanted.size) < 1:
        raise InvalidInput(f"roi {wanted} is empty; let each end lie beyond its start")
    if not wanted.within(possible):
        reached = possible == Box(ZERO, volume) or border == "same"
        hint = f" that have output; {option('border', 'same')} gives output up to the edges"
        raise InvalidInput(
            f"roi {wanted} is not within {possible}, the voxels of this {volume} volume"
            f"{hint * (not reached)}"
        )
    return wanted


def for_job(network: Network, job: Job) -> Network:
    """Return the network for a job's volume.

    A tiled network then knows the extents of its input, and its windows where they lie.
    """
    if network.window:
        placed = replace(network, window=windows_over(network, job.volume))
        return over(placed, network.window.size)
    return over(network, job.whole) if job.whole else network


def windows_over(network: Network, volume: Vec3) -> Window:
    """Return a network's windows over a volume, or over the part that its input is cropped to.

    Raises:
        InvalidInput: that part is not within the volume.
    """
    window, box = network.window, network.scaling.box
    if window is None:
        raise ValueError(f"network {network.name} has no windows")
    if box and not box.within(Box(ZERO, volume)):
        raise InvalidInput(
            f"the input is cropped to {box}, which is not within the volume of {volume}; leave "
            f"out box in the network file, and znni finds it"
        )
    return window.over(volume, box)


def seen_by(network: Network, job: Job) -> Box:
    """Return the voxels that a job's output depends on; some lie beyond the volume."""
    if network.scaling.crops:  # every voxel may move the windows
        return Box(ZERO, job.volume)
    if network.window:
        wanted = Box(job.center, job.center + job.output)
        window = network.window.over(job.volume)
        return window.around(window.blended(wanted))
    if job.whole:
        return Box(job.origin, job.origin + job.whole)
    return Box(job.origin, job.origin + job.output + network.field_of_view - 1)


def _region(roi: Region, possible: Box) -> Box:
    slices = roi.slices if isinstance(roi, Box) else roi
    if len(slices) != 3 or not all(map(_is_part, slices)):
        raise InvalidInput(f"roi is {roi!r}; give three slices, as numpy.s_[z0:z1, y0:y1, x0:x1]")
    starts = (
        s.start if s.start is not None else a for s, a in zip(slices, possible.start, strict=True)
    )
    stops = (
        s.stop if s.stop is not None else b for s, b in zip(slices, possible.stop, strict=True)
    )
    return Box(Vec3(*starts), Vec3(*stops))


def _is_part(part: object) -> bool:
    """Return whether it is a slice of every voxel, whose ends are integers or left out."""
    ends = (part.start, part.stop) if isinstance(part, slice) and part.step is None else ("",)
    return all(end is None or isinstance(end, SupportsIndex) for end in ends)


@dataclass(frozen=True)
class Tile:
    """One patch's place in a job, in output coordinates.

    Attributes:
        computed: the box that the patch computes. If the patch is larger than the output, this box
            reaches beyond the output.
        written: the part of that box which this tile writes, and no other.
    """

    computed: Box
    written: Box

    @property
    def written_in_patch(self) -> Box:
        """The box ``written`` relative to the patch."""
        start = self.written.start - self.computed.start
        return Box(start, start + self.written.size)


def cover(
    output: Vec3,
    patch: Vec3,
    part: Box | None = None,
    first: Vec3 = ZERO,
    alignment: Vec3 = ONE,
    *,
    swept: Axis | None = None,
) -> Iterator[Tile]:
    """Cover an output, or a part of it, with patches, x fastest.

    In a sweep, its axis is fastest. The last patch of a column then reaches beyond the output.

    The boxes that they write partition it. A patch that would end beyond the output is shifted back
    to end where the output does, or at the next aligned voxel. A patch of a part that begins where
    a patch of the whole begins computes the same box.

    Args:
        output: extents of the output.
        patch: extents of a patch, a multiple of the alignment.
        part: the part to cover; None: all.
        first: the first voxel of the output within the whole output of a tiled network.
        alignment: the voxels of the whole output at whose multiples patches begin.
        swept: the axis along which each patch goes on from the one before; None: none does.
    """
    start, stop = part or Box(ZERO, output)
    aligned = (first + start) // alignment * alignment  # in voxels of the whole output
    ends = ((first + output).ceil_div(alignment) * alignment - patch).maximum(ZERO)
    counts, order = (first + stop - aligned).ceil_div(patch), by_columns(swept)
    if swept:
        ends = resized(ends, swept, extent(first + stop, swept))
    for index in product(*(range(counts[axis]) for axis in order)):
        corner = aligned + Vec3(*(index[order.index(axis)] for axis in range(3))) * patch
        computed = corner.minimum(ends) - first
        begin = corner - first
        yield Tile(
            computed=Box(computed, computed + patch),
            written=Box(begin.maximum(start), (begin + patch).minimum(stop)),
        )


class Remaining:
    """The part of an output that is not written yet, as boxes that do not overlap.

    Patches cover one box after the other. When a patch is written, at most three boxes are left of
    the box that it was cut from: the rest of its row, of its layer of rows, and of the layers. So
    if a run goes on with patches of another size, they cover what is left and nothing else. If it
    goes on with the same size, the patches lie where they lie in a run that was never stopped.

    Args:
        job: the wanted output.
        history: boxes that were written (True), or lost since (False), in order.
        share: the boxes of the output that this process writes; None if it writes all.
        swept: the axis along which patches go on from each other. Then the boxes that are left are
            the rest of a column, of its row of columns, and of the rows.

    Attributes:
        job: the wanted output.
        total: number of voxels that this process writes, with those written already.
    """

    def __init__(
        self,
        job: Job,
        history: Iterable[tuple[Box, bool]] = (),
        share: list[Box] | None = None,
        *,
        swept: Axis | None = None,
    ) -> None:
        self.job = job
        self._order = by_columns(swept)
        self._boxes = [Box(ZERO, job.output)] if share is None else list(share)
        self.total = self.voxels
        for box, written in history:
            if written:
                self.take_off(box)
            else:
                self._boxes.insert(0, box)

    @property
    def voxels(self) -> int:
        """The number of voxels that are left."""
        return sum(box.size.volume for box in self._boxes)

    def tiles(self, patch: Vec3, *, swept: Axis | None = None) -> Iterator[Tile]:
        """Cover what is left with patches; the boxes that they write partition it.

        Args:
            patch: extents of a patch.
            swept: as for ``cover``.
        """
        self._order = by_columns(swept)
        for box in tuple(self._boxes):
            yield from self.job.tiles(patch, box, swept=swept)

    def columns(self, patch: Vec3, *, swept: Axis | None = None) -> Iterator[list[Tile]]:
        """Yield the tiles of each column, with the arguments of ``tiles``."""

        def column(tile: Tile) -> Vec3:
            return resized(tile.computed.start, swept, 0) if swept else tile.written.start

        for _, tiles in groupby(self.tiles(patch, swept=swept), column):
            yield list(tiles)

    def stop(self) -> None:
        """Do nothing: nobody waits for the next patch."""

    def take_off(self, box: Box) -> None:
        """Note that a box is written."""
        self._boxes = [
            part for left in self._boxes for part in left.without(box, order=self._order)
        ]


def allocate_new(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return a new array, as every ``Allocate`` does."""
    return np.empty(shape, dtype)
