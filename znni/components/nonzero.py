"""The mask of voxels that are not 0, with its holes filled, as nnU-Net makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.components.runs import FALSE
from znni.components.slabs import MOST_COMPONENTS, Painting
from znni.components.volume_components import components_bytes, find_components
from znni.core.shapes import ZERO, Box, Vec3

# Returns the values (f, z, y, x) of a box.
ReadValues: TypeAlias = Callable[[Box], NDArray[Any]]


@dataclass(frozen=True)
class NonzeroMask:
    """The voxels where a map is not 0, and the holes between them.

    A hole is a component of other voxels, joined by their faces, that does not touch the border of
    the volume.

    Attributes:
        box: the box around the voxels that are not 0. If there are none, the whole volume, as in
            nnU-Net.
        read: returns the values of a box.
        holes: the holes, which become true in the mask.
    """

    box: Box
    read: ReadValues
    holes: Painting

    def slab(self, box: Box) -> NDArray[np.bool_]:
        """Read a slab again, with as many planes as before, and return its mask (z, y, x)."""
        mask = _nonzero(self.read(box))
        self.holes.apply(box, mask)
        return mask


def nonzero_mask(
    read: ReadValues, extents: Vec3, slab: int, *, most_components: int = MOST_COMPONENTS
) -> NonzeroMask:
    """Return the mask of voxels that are not 0 in a volume, with its holes filled.

    Raises:
        InvalidInput: the voxels that are 0 have more components.
    """
    occupied: list[Box] = []

    def mask_of(box: Box) -> NDArray[np.bool_]:
        mask = _nonzero(read(box))
        found = occupied_box(mask)
        if found:
            occupied.append(found.shifted(box.start))
        return mask

    zeros = find_components(
        mask_of, extents, slab, classes=FALSE, connectivity=6, most_components=most_components
    )
    box = reduce(Box.hull, occupied) if occupied else Box(ZERO, extents)
    number = zeros.tables.number
    hole = ~zeros.touches_border[number]
    paint = np.ones(number.size, np.uint8)
    return NonzeroMask(box, read, Painting(slab, FALSE, 6, zeros.tables.first, hole, paint))


def nonzero_bytes(
    extents: Vec3, slab: int, maps: int, itemsize: int, *, most_components: int = MOST_COMPONENTS
) -> int:
    """Return the most bytes that ``nonzero_mask`` takes, with the arrays that ``read`` returns."""
    values = min(slab, extents.z) * extents.y * extents.x * maps * itemsize
    masks = components_bytes(extents, slab, 1, most_components=most_components)
    return values + masks


def occupied_box(mask: NDArray[np.bool_]) -> Box | None:
    """Return the box around the true voxels of a mask (z, y, x), or None if there are none."""
    if not mask.any():
        return None
    along = [np.flatnonzero(mask.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1))]
    start = Vec3(*(int(found[0]) for found in along))
    stop = Vec3(*(int(found[-1]) + 1 for found in along))
    return Box(start, stop)


def _nonzero(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where any map is not 0. To compare map after map takes less memory."""
    mask: NDArray[np.bool_] = values[0] != 0
    for one in values[1:]:
        mask |= one != 0
    return mask
