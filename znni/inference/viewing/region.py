"""Choice of the voxels that a page shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

import numpy as np

from znni.core.errors import InvalidInput, option
from znni.core.shapes import ONE, ZERO, Box, Region, Vec3
from znni.core.volume import Grid, Volume
from znni.volumes.stored import StoredVolume

EXTENT = 192  # voxels along each axis that a page holds
LONGEST = 4  # times as many along one axis, if the others are short
WHOLE = 2**28  # most voxels of a volume that are read for a page unasked


def offset_of(output: Volume, volume: Volume) -> tuple[Vec3, bool]:
    """Return the input voxel of the output's first voxel, and whether origins told it.

    An output of znni notes the voxel. Others are placed by their origin in space.

    Raises:
        InvalidInput: the output does not say, lies outside the input, or was computed from an input
            of other extents.
    """
    extents = _stored(output, "source_extents")
    if extents is not None and extents != volume.size:
        raise InvalidInput(
            f"the input is {volume.size} voxels, and the output was computed from one of "
            f"{extents}; give that"
        )
    offset = _stored(output, "voxel_offset")
    if offset is None and volume.size == output.size:
        return ZERO, False
    by_origin = offset is None
    offset = offset or _by_origin(output.grid, volume.grid)
    if offset is None:
        raise InvalidInput(
            f"the output is {output.size} voxels, the input {volume.size}, and there is no "
            f"attribute 'voxel_offset' or origin to tell where it lies; give an output of znni "
            f"infer, or one of the input's extents"
        )
    if not Box(offset, offset + output.size).within(Box(ZERO, volume.size)):
        raise InvalidInput(
            f"the output is {output.size} voxels from {offset} on, and the input is {volume.size}; "
            f"give the input that it was computed from"
        )
    return offset, by_origin


def _by_origin(output: Grid, volume: Grid) -> Vec3 | None:
    """Return the voxel at which another volume begins, by origins in space; None if unknown.

    An origin of 0 may also be one that nobody has set, so it tells nothing.
    """
    alike = (
        np.allclose(output.scale, volume.scale, rtol=1e-3, atol=0) and output.units == volume.units
    )
    if not alike or not any(output.translation):
        return None
    places = zip(output.translation, volume.translation, volume.scale, strict=True)
    steps = [(at - start) / step for at, start, step in places]
    z, y, x = map(round, steps)
    return Vec3(z, y, x) if np.allclose(steps, (z, y, x), atol=0.1) else None


def names_input(output: Volume) -> bool:
    """Return whether an output records its input's extents; outputs of other programs do not."""
    return _stored(output, "source_extents") is not None


def _stored(output: Volume, name: str) -> Vec3 | None:
    """Return an attribute of three integers; None if there is none."""
    stored = output.attribute(name) if isinstance(output, StoredVolume) else None
    if stored is None:
        return None
    try:
        z, y, x = map(int, stored)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"the output's attribute {name!r} is {stored!r}; give an output of znni infer"
        ) from None
    return Vec3(z, y, x)


def quick_steps(
    box: Box, least: int, factors: Iterable[Vec3], cost: Callable[[Box, Vec3], int]
) -> Vec3 | None:
    """Return the smallest steps along each axis at which a page shows a box that is read quickly.

    Args:
        box: the voxels to show.
        least: smallest step allowed.
        factors: extents of the voxels of coarser resolutions, in voxels of the finest one.
        cost: returns the number of voxels that are read for a box at a step.

    Returns:
        The steps; None if too many voxels are read at all of them.
    """
    fit = least_steps(box.size).maximum(least)
    for factor in sorted({ONE, *factors}, key=lambda one: (one.volume, one)):
        if cost(box, steps := fit.maximum(factor)) <= WHOLE:
            return steps
    return None


def least_steps(size: Vec3) -> Vec3:
    """Return the smallest steps at which a page holds a box: for thin ones smaller than for cubes.

    The longest axes get larger steps first.
    """
    extents = range(LONGEST * EXTENT, EXTENT, -1)
    steps = (size.ceil_div(extent) for extent in extents)
    return next((step for step in steps if _holds(size.ceil_div(step))), size.ceil_div(EXTENT))


def _holds(size: Vec3) -> bool:
    return max(size) <= LONGEST * EXTENT and size.volume <= EXTENT**3


def shown_box(
    possible: Box,
    region: Region | None,
    stride: int | None,
    quick: Callable[[Box, int], Vec3 | None],
) -> tuple[Box, Vec3]:
    """Return the box of voxels to show, and the step between them along each axis.

    Args:
        possible: the voxels that have output.
        region: the voxels that the user wants. By default all of them if they can be read quickly,
            otherwise as many from their middle as a page holds.
        stride: the step that the user wants along all axes; None for the smallest that fits.
        quick: returns the steps at which a box is read quickly, or None; takes the smallest one.

    Raises:
        InvalidInput: the region has no output, or does not fit a page at this stride.
    """
    if stride is not None and stride < 1:
        raise InvalidInput(f"stride is {stride}; give 1 or more")
    if region is None and (steps := quick(possible, stride or 1)):
        region, wanted = (slice(None),) * 3, steps
    else:
        wanted = ONE
    if region is not None:
        slices = region.slices if isinstance(region, Box) else region
        ends = list(zip(slices, possible.start, possible.stop, strict=True))
        start = Vec3(*(a if part.start is None else part.start for part, a, _ in ends))
        box = Box(start, Vec3(*(b if part.stop is None else part.stop for part, _, b in ends)))
    else:
        extent = possible.size.minimum(EXTENT * (stride or 1))
        start = possible.start + (possible.size - extent) // 2
        box = Box(start, start + extent)
    if min(box.size) < 1 or not box.within(possible):
        raise InvalidInput(f"region {box} is not within {possible}, the voxels that have output")
    least = least_steps(box.size)
    if stride is not None and not _holds(box.size.ceil_div(stride)):
        enough = next(step for step in count(stride) if _holds(box.size.ceil_div(step)))
        raise InvalidInput(
            f"region {box} has more voxels at stride {stride} than a page holds; give "
            f"{option('stride', enough)} or a smaller region"
        )
    return box, least.maximum(wanted) if stride is None else Vec3.of(stride)
