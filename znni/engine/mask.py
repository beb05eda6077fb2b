"""Masks: which blocks and voxels of an output are needed.

``inference/request.py`` opens the mask of a run. ``block_reader.py`` skips the blocks outside
of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, UnusableValues
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.text import counted
from znni.core.volume import Volume
from znni.engine.tiles import Job

# Bytes of a mask that are read at a time. They are part of the memory declared for a process.
MASK_BYTES = 2**20


def check_mask(mask: Volume, volume: Volume) -> None:
    """Refuse a mask that does not lie over the volume voxel by voxel.

    Raises:
        InvalidInput: it has other extents, or several maps.
    """
    if mask.size != volume.size or mask.features != 1:
        raise InvalidInput(
            f"the mask has {counted(mask.features, 'map')} of {mask.size} voxels and the volume is "
            f"{volume.size}; give a mask of one map and the volume's extents"
        )


def outside_mask(mask: Volume, job: Job, box: Box) -> bool:
    """Return whether a mask needs no voxel of a box of the output.

    Raises:
        UnusableValues: the mask holds NaN in the part that was read.
    """
    pieces = mask_pieces(box.shifted(job.center), mask.itemsize)
    return not any(_values(mask, piece).any() for piece in pieces)


def wanted_voxels(mask: Volume, box: Box) -> NDArray[np.bool_]:
    """Return which voxels (z, y, x) of a box need output by a mask.

    Raises:
        UnusableValues: the mask holds NaN in the box.
    """
    wanted = np.empty(box.size, bool)
    for piece in mask_pieces(box, mask.itemsize):
        values = _values(mask, piece)
        wanted[piece.shifted(ZERO - box.start).slices] = values[0] != 0
    return wanted


def mask_pieces(box: Box, itemsize: int) -> Iterator[Box]:
    """Cut a box into pieces of ``MASK_BYTES`` or less, but of a whole row or more.

    Args:
        box: what to cut.
        itemsize: bytes of a voxel.
    """
    size, most = box.size, MASK_BYTES // itemsize
    height = max(1, min(size.y, most // size.x))
    depth = max(1, most // (height * size.x))
    return box.cut(Vec3(depth, height, box.stop.x))


def _values(mask: Volume, piece: Box) -> NDArray[Any]:
    """Return the values of a piece of a mask, none of which may be NaN."""
    values = mask.read(piece)
    if values.dtype.kind == "f" and np.isnan(values.min()):
        first = np.argwhere(np.isnan(values[0]))[0]
        z, y, x = voxel = piece.start + Vec3(*map(int, first))
        raise UnusableValues(
            f"the mask holds nan at voxel z={z}, y={y}, x={x}; give 0 where no output is needed, "
            f"and another number where it is",
            voxel,
        )
    return values
