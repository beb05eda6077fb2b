"""Rules on components, applied to the labels of a volume slab by slab.

Each pass over the volume finds the components for one group of rules. It first applies the groups
before to each slab, and so finds their components again. The last pass writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from znni.components.rules import KeepLargest, groups_of
from znni.components.runs import Labels, classes_of, label_slab
from znni.components.slabs import (
    COMPONENT_BYTES,
    MOST_COMPONENTS,
    Painting,
    ReadLabels,
    Tables,
    joined,
    slab_boxes,
    slab_bytes,
    tables_of,
)
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3

# Bytes that a group of rules keeps for each component of a slab: whether it is removed, and the
# label that replaces it.
REMOVAL_BYTES = 1 + 2


def postprocess(
    read: ReadLabels,
    write: Callable[[Box, Labels], None],
    extents: Vec3,
    rules: Sequence[KeepLargest],
    slab: int,
    *,
    most_components: int = MOST_COMPONENTS,
) -> None:
    """Apply rules to the labels of a volume, one after the other.

    The volume is read once for each group of rules, and once more to write. It takes
    ``postprocess_bytes``. ``write`` may write to the volume that ``read`` reads.

    Raises:
        InvalidInput: there are more components, or the type of the labels cannot hold a background,
            or has more than 16 bits.
    """
    highest = max((rule.background for rule in rules), default=0)
    removals: list[Painting] = []

    def labels_of(box: Box) -> Labels:
        given = read(box)
        if given.dtype.kind in "iu" and highest > np.iinfo(str(given.dtype)).max:
            raise InvalidInput(f"labels of type {given.dtype} cannot hold the background {highest}")
        native = given.dtype.newbyteorder("=")
        labels = given.astype(native, order="C", copy=bool(removals))
        for removal in removals:
            removal.apply(box, labels)
        return labels

    for group in groups_of(rules):
        slabs = _Slabs(labels_of, extents, slab, most_components)
        removal = _removal(slabs, group)
        if removal.chosen.any():
            removals.append(removal)
    for box in slab_boxes(extents, slab):
        write(box, labels_of(box))


class _Slabs(NamedTuple):
    """The labels of a volume as slabs, for one pass over them."""

    read: ReadLabels
    extents: Vec3
    slab: int
    most_components: int


def _removal(slabs: _Slabs, group: Sequence[KeepLargest]) -> Painting:
    """Return the components that a group of rules removes, and the labels that they get."""
    classes, connectivity = classes_of(rule.labels for rule in group), group[0].connectivity

    def tables(box: Box) -> Tables:
        found = label_slab(slabs.read(box), classes, connectivity)
        return tables_of(found, box.size.z, slabs.most_components)

    each = map(tables, slab_boxes(slabs.extents, slabs.slab))
    volume = joined(each, connectivity, slabs.most_components)
    removed = np.zeros(len(volume.voxels), bool)
    for kind in range(1, len(group) + 1):
        own = volume.kind == kind
        removed[own] = volume.voxels[own] < volume.voxels[own].max(initial=0)
    background = np.array([0, *(rule.background for rule in group)], np.uint16)[volume.kind]
    number = volume.number
    return Painting(
        slabs.slab, classes, connectivity, volume.first, removed[number], background[number]
    )


def postprocess_bytes(
    extents: Vec3,
    rules: Sequence[KeepLargest],
    slab: int,
    itemsize: int,
    *,
    most_components: int = MOST_COMPONENTS,
) -> int:
    """Return the most bytes that ``postprocess`` takes, with the arrays that ``read`` returns."""
    written = min(slab, extents.z) * extents.y * extents.x * itemsize
    each = COMPONENT_BYTES + REMOVAL_BYTES * len(groups_of(rules))
    return slab_bytes(extents, slab, itemsize) + written + most_components * each
