"""Connected components of a mask, or of labels, in a volume larger than memory.

``postprocessing`` removes components of a run's labels; it joins them in ``slabs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from znni.components.run_kernels import bound_components
from znni.components.runs import (
    TRUE,
    Classes,
    Connectivity,
    Labelled,
    label_slab,
)
from znni.components.slabs import (
    COMPONENT_BYTES,
    MOST_COMPONENTS,
    Joined,
    ReadLabels,
    Tables,
    joined,
    slab_boxes,
    slab_bytes,
    tables_of,
)
from znni.core.shapes import Box, Vec3

# Bytes of the box around a component of a slab, twice while slabs are joined.
BOX_BYTES = 2 * 2 * 3 * 8


@dataclass(frozen=True)
class Components:
    """The components of a volume, in the order of their first voxels.

    Attributes:
        extents: extents of the volume.
        slab: planes of a slab.
        classes: the class of each label.
        connectivity: which voxels are neighbours.
        tables: the voxels and the class of each component, and the components of slabs.
        start: the least z, y, x of each component (components, 3).
        stop: the z, y, x after the largest of each component (components, 3).
    """

    extents: Vec3
    slab: int
    classes: Classes
    connectivity: Connectivity
    tables: Joined
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.voxels)

    @property
    def voxels(self) -> NDArray[np.int64]:
        """The voxels of each component."""
        return self.tables.voxels

    @property
    def touches_border(self) -> NDArray[np.bool_]:
        """True for each component with a voxel at the border of the volume."""
        return np.asarray((self.start == 0).any(axis=1) | (self.stop == self.extents).any(axis=1))


def find_components(
    read: ReadLabels,
    extents: Vec3,
    slab: int,
    *,
    classes: Classes = TRUE,
    connectivity: Connectivity = 26,
    most_components: int = MOST_COMPONENTS,
) -> Components:
    """Find the connected components of a mask, or of each class of labels.

    It takes ``components_bytes``.

    Args:
        read: returns the labels of a slab, or a mask.
        extents: extents of the volume.
        slab: planes of a slab.
        classes: the class of each label. Voxels of class 0 have no component.
        connectivity: which voxels are neighbours.
        most_components: the most components of all slabs together.

    Raises:
        InvalidInput: there are more components, or the labels have more than 16 bits.
    """

    def labelled(box: Box) -> tuple[Tables, NDArray[np.int64]]:
        found = label_slab(read(box), classes, connectivity)
        tables = tables_of(found, box.size.z, most_components)
        return tables, _bounds(found, box.start.z)

    bounds = []

    def tables() -> Iterator[Tables]:
        for found, ends in map(labelled, slab_boxes(extents, slab)):
            bounds.append(ends)
            yield found

    volume = joined(tables(), connectivity, most_components)
    start, stop = np.full((len(volume.voxels), 3), extents), np.zeros((len(volume.voxels), 3), int)
    both = np.concatenate(bounds, axis=1)
    np.minimum.at(start, volume.number, both[0])
    np.maximum.at(stop, volume.number, both[1])
    return Components(extents, slab, classes, connectivity, volume, start, stop)


def components_bytes(
    extents: Vec3, slab: int, itemsize: int, *, most_components: int = MOST_COMPONENTS
) -> int:
    """Return the most bytes that ``find_components`` takes, with the arrays that it reads."""
    tables = most_components * (COMPONENT_BYTES + BOX_BYTES)
    return slab_bytes(extents, slab, itemsize) + tables


def _bounds(labelled: Labelled, z: int) -> NDArray[np.int64]:
    """Return the first voxels of the boxes around components, and their ends (2, components, 3)."""
    runs, component, total = labelled
    ends = np.empty((2, total, 3), np.int64)
    ends[0], ends[1] = np.iinfo(np.int64).max, 0
    bound_components(runs.first, runs.begin, runs.end, component, runs.height, ends[0], ends[1])
    ends[:, :, 0] += z
    return ends
