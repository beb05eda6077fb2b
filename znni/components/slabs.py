"""Components of a volume, joined from the components of its slabs.

Slabs are labelled in any order, by several threads. Only their tables and their outer planes are
kept, until all are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.components.run_kernels import count_voxels, number_trees
from znni.components.runs import (
    ROW_BYTES,
    RUN_BYTES,
    Classes,
    Connectivity,
    Labelled,
    Labels,
    paint_slab,
    unite_planes,
)
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3

# Returns the labels (z, y, x) of a box, or a mask. Several threads call it.
ReadLabels: TypeAlias = Callable[[Box], Labels]

# The most components of all slabs together, unless the caller sets another number.
MOST_COMPONENTS = 2**22

# Bytes of a component of a slab: its class, its voxels and its number. Joining copies them.
COMPONENT_BYTES = 2 * (2 + 8 + 8)

# Bytes that the runs of a plane take for each voxel: as copied from a slab, and with 8 bytes for a
# component while two planes are joined.
PLANE_BYTES = RUN_BYTES
JOINED_BYTES = RUN_BYTES + 4


def slab_boxes(extents: Vec3, slab: int) -> list[Box]:
    """Return the slabs of a volume. The last one may have fewer planes."""
    starts = range(0, extents.z, slab)
    return [Box(Vec3(z, 0, 0), extents._replace(z=min(z + slab, extents.z))) for z in starts]


def slab_bytes(extents: Vec3, slab: int, itemsize: int) -> int:
    """Return the most bytes that labelling takes for slabs, without its tables of components.

    It takes as many if no two neighbouring voxels of a row have the same label.
    """
    plane = extents.y * extents.x
    labelling = plane * (2 * itemsize + RUN_BYTES) + extents.y * ROW_BYTES
    kept = 4 * plane * PLANE_BYTES  # the outer planes of slabs
    joining = 5 * plane * JOINED_BYTES  # two planes, as they are and together, and a slab's last
    return min(slab, extents.z) * labelling + kept + joining


class Tables(NamedTuple):
    """The components of one slab."""

    voxels: NDArray[np.int64]
    kind: NDArray[np.uint16]
    top: Labelled
    bottom: Labelled


class Joined(NamedTuple):
    """The components of a volume.

    Attributes:
        first: the first component of each slab, and the number of components of all slabs.
        number: the component of the volume to which each component of a slab belongs, from 0 on.
            Components are numbered in the order of their first voxels.
        voxels: the voxels of each component of the volume.
        kind: the class of each component.
    """

    first: NDArray[np.int64]
    number: NDArray[np.int64]
    voxels: NDArray[np.int64]
    kind: NDArray[np.uint16]


class Painting(NamedTuple):
    """The values that some components get, slab by slab."""

    slab: int
    classes: Classes
    connectivity: Connectivity
    first: NDArray[np.int64]
    chosen: NDArray[np.bool_]
    paint: NDArray[Any]

    def apply(self, box: Box, labels: Labels) -> None:
        """Give the voxels of a slab their values, in place of their labels.

        The labels are as they were when the components were found.
        """
        part = slab_part(self.first, box.start.z // self.slab)
        chosen = self.chosen[part]
        if chosen.any():
            paint = self.paint[part]
            paint_slab(labels, self.classes, self.connectivity, chosen, paint, labels)


def slab_part(first: NDArray[np.int64], index: int) -> slice:
    """Return the part of all slabs' components that belongs to one slab."""
    return slice(int(first[index]), int(first[index + 1]))


def tables_of(labelled: Labelled, planes: int, most: int) -> Tables:
    """Return the tables that are kept of a slab."""
    _check_count(labelled.total, most)
    runs, component, total = labelled
    voxels, kind = np.zeros(total, np.int64), np.empty(total, np.uint16)
    count_voxels(runs.begin, runs.end, runs.kind, component, voxels, kind)
    return Tables(voxels, kind, labelled.plane(0), labelled.plane(planes - 1))


def joined(slabs: Iterable[Tables], connectivity: Connectivity, most: int) -> Joined:
    """Return the components of a volume, joined from the tables of its slabs."""
    first, parent = [0], np.empty(0, np.int64)
    voxels, kind = [], []
    bottom: Labelled | None = None
    for tables in slabs:
        before, count = first[-1], len(tables.voxels)
        _check_count(before + count, most)
        first.append(before + count)
        voxels.append(tables.voxels)
        kind.append(tables.kind)
        parent = np.concatenate([parent, np.arange(before, before + count)])
        top, after = _numbered(tables.top, before), _numbered(tables.bottom, before)
        if bottom is not None:
            unite_planes(bottom, top, connectivity, parent)
        bottom = after
    found = np.zeros(1, np.int64)
    number_trees(parent, found)
    total = np.zeros(found[0], np.int64)
    np.add.at(total, parent, np.concatenate(voxels))
    kinds = np.empty(found[0], np.uint16)
    kinds[parent] = np.concatenate(kind)
    return Joined(np.array(first), parent, total, kinds)


def _numbered(plane: Labelled, before: int) -> Labelled:
    """Return a plane whose components are numbered after those of earlier slabs."""
    return plane._replace(component=plane.component + np.int64(before))


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise InvalidInput(
            f"the labels have more than {most:,} components in their slabs, as noise has; give "
            f"smoother labels, or most_components={2 * count} with the memory for it"
        )
