"""Reading a volume plane by plane, in slabs that fit a given memory."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.chunks import CHUNK
from znni.core.shapes import Box, Vec3

# Returns the values (z, y, x) of one map in a box.
ReadMap: TypeAlias = Callable[[int, Box], NDArray[Any]]


def planes(
    read: ReadMap, features: int, size: Vec3, plane_bytes: int, room: int
) -> Generator[NDArray[np.generic], None, None]:
    """Yield the planes (y, x) of a volume, first those of the first map, each map by z.

    A slab of planes takes at most ``room`` bytes, but has at least one plane.
    """
    depth = max(1, min(size.z, room // plane_bytes))
    if depth > CHUNK:  # whole chunks, none of which is read twice
        depth -= depth % CHUNK
    for feature in range(features):
        for z in range(0, size.z, depth):
            stop = size._replace(z=min(z + depth, size.z))
            yield from read(feature, Box(Vec3(z, 0, 0), stop))
