"""Connected components of one slab, as runs of neighbouring voxels along x.

A run takes 14 bytes, however long it is. So components of a few compact bodies take much less
memory than the voxels, and joining them takes less time than reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from znni.components.run_kernels import (
    count_changes,
    find_runs,
    join_runs,
    number_trees,
    paint_runs,
    unite_components,
)
from znni.core.errors import InvalidInput

# Voxels that are neighbours: by a face (6), also by an edge (18), also by a corner (26).
Connectivity: TypeAlias = Literal[6, 18, 26]

Labels: TypeAlias = NDArray[np.integer | np.bool_]
Classes: TypeAlias = NDArray[np.uint16]

# Bytes that a slab of alternating labels takes for each voxel: a run has two ends, a class and a
# component.
RUN_BYTES = 4 + 4 + 2 + 4
ROW_BYTES = 8  # the number of the first run

LABELS = 2**16  # values that a label may have


class Runs(NamedTuple):
    """The runs of a slab.

    Attributes:
        first: the first run of each row, and the number of runs (rows + 1,).
        begin: the first x of each run.
        end: the x after each run.
        kind: the class of each run, from 1 on.
        height: the rows of a plane.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.int32]
    end: NDArray[np.int32]
    kind: NDArray[np.uint16]
    height: int


class Labelled(NamedTuple):
    """The components of a slab.

    Attributes:
        component: the component of each run, from 0 on. Components are numbered by their first
            voxels.
        total: the number of components.
    """

    runs: Runs
    component: NDArray[np.signedinteger]
    total: int

    def plane(self, index: int) -> Labelled:
        """Return a copy of one plane, whose components keep their numbers."""
        first, begin, end, kind, height = self.runs
        rows = first[index * height : (index + 1) * height + 1]
        part = slice(rows[0], rows[-1])
        runs = Runs(rows - rows[0], begin[part].copy(), end[part].copy(), kind[part].copy(), height)
        return Labelled(runs, self.component[part].copy(), self.total)


def classes_of(sets: Iterable[Sequence[int]]) -> Classes:
    """Return the class of every label: 1 in the first set, 2 in the second, 0 in no set."""
    classes = np.zeros(LABELS, np.uint16)
    for number, labels in enumerate(sets, 1):
        classes[list(labels)] = number
    return classes


# Classes of masks: true voxels have components, or false ones.
TRUE, FALSE = classes_of([(1,)]), classes_of([(0,)])


def label_slab(labels: Labels, classes: Classes, connectivity: Connectivity) -> Labelled:
    """Return the components of each class in a slab.

    Voxels of class 0 have no component.

    Raises:
        InvalidInput: the labels have a type of more than 16 bits.
    """
    runs = _runs(labels, classes)
    return Labelled(runs, *_joined(runs, connectivity))


def paint_slab(
    labels: Labels,
    classes: Classes,
    connectivity: Connectivity,
    chosen: NDArray[np.bool_],
    paint: NDArray[Any],
    values: NDArray[Any],
) -> None:
    """Give the voxels of some components of a slab a value.

    ``values`` may be the same array as ``labels``.
    """
    runs, component, total = label_slab(labels, classes, connectivity)
    if total != len(chosen):
        raise InvalidInput(
            f"a slab had {len(chosen)} components and now has {total}; give a volume that nobody "
            f"else changes, and the same slabs"
        )
    rows = values.reshape(-1, values.shape[-1])
    paint_runs(runs.first, runs.begin, runs.end, component, chosen, paint, rows)


def unite_planes(
    above: Labelled, below: Labelled, connectivity: Connectivity, tree: NDArray[np.int64]
) -> None:
    """Unite the components that touch in two neighbouring planes, of two slabs.

    ``tree`` receives the united trees.
    """
    one, other = above.runs, below.runs
    both = Runs(
        np.concatenate([one.first, other.first[1:] + one.first[-1]]),
        np.concatenate([one.begin, other.begin]),
        np.concatenate([one.end, other.end]),
        np.concatenate([one.kind, other.kind]),
        one.height,
    )
    component = np.concatenate([above.component, below.component])
    unite_components(_trees(both, connectivity), component, tree)


def _flat(labels: Labels) -> NDArray[np.unsignedinteger]:
    """Return labels as rows of unsigned numbers (rows, x)."""
    if labels.dtype.kind not in "biu" or labels.dtype.itemsize > 2:
        raise InvalidInput(
            f"labels have the type {labels.dtype}; give integers of at most 16 bits, such as uint16"
        )
    native = np.ascontiguousarray(labels, labels.dtype.newbyteorder("="))
    return native.reshape(-1, labels.shape[-1]).view(f"u{labels.dtype.itemsize}")


def _runs(labels: Labels, classes: Classes) -> Runs:
    rows = _flat(labels)
    if labels.dtype.kind == "i":  # a negative label has no class
        classes = classes.copy()
        classes[2 ** (8 * labels.dtype.itemsize - 1) :] = 0
    found = np.zeros(1, np.int64)
    count_changes(rows, found)
    most = min(int(found[0]) + len(rows), rows.size) + 1  # the first x is noted before its run
    first = np.empty(len(rows) + 1, np.int64)
    begin, end = np.empty(most, np.int32), np.empty(most, np.int32)
    kind = np.empty(most, np.uint16)
    flags = np.zeros(-(-rows.shape[1] // 8) * 8, np.uint8)
    find_runs(rows, classes, flags, flags.view(np.uint64), first, begin, end, kind)
    count = first[-1]
    return Runs(first, begin[:count], end[:count], kind[:count], labels.shape[1])


def _trees(runs: Runs, connectivity: Connectivity) -> NDArray[np.signedinteger]:
    """Return an earlier run of the same component for each run, or the run itself."""
    parent = np.empty(runs.begin.size, index_type(runs.begin.size))
    steps = get_args(Connectivity).index(connectivity) + 1
    join_runs(*runs, steps, parent)
    return parent


def _joined(runs: Runs, connectivity: Connectivity) -> tuple[NDArray[np.signedinteger], int]:
    """Return the component of each run, and the number of components."""
    parent = _trees(runs, connectivity)
    found = np.zeros(1, np.int64)
    number_trees(parent, found)
    return parent, int(found[0])


def index_type(count: int) -> type[np.int32] | type[np.int64]:
    """Return the type that numbers so many items."""
    return np.int32 if count < 2**31 else np.int64
