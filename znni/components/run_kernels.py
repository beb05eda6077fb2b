"""The loops over runs: neighbouring voxels of a row that have the same class.

Rows are numbered plane by plane. Runs are numbered over all rows, in the order of their voxels.
So a component's first run has the lowest number, and it holds its first voxel. A run's parent is
an earlier run of its tree, or the run itself.
"""

from __future__ import annotations

from znni.primitives.cpu.common.lazy_kernel import lazy_njit
from znni.primitives.cpu.common.numba_kernel import numba_kernel


@numba_kernel
def count_changes(values, found):  # type: ignore[no-untyped-def]
    """Count the places where a row's next value differs, as ``found[0]``."""
    total = 0
    for row in range(values.shape[0]):
        line = values[row]
        for x in range(1, line.size):
            total += line[x] != line[x - 1]
    found[0] = total


@numba_kernel
def find_runs(values, classes, flags, words, first, begin, end, kind):  # type: ignore[no-untyped-def]
    """Find the runs of all classes but 0.

    Args:
        values: labels (rows, x).
        classes: the class of each label.
        flags: scratch for a row, filled with 0, of a multiple of 8 bytes.
        words: the same scratch in words of 8 bytes, by which equal voxels are skipped.
        first: receives the first run of each row, and the number of runs (rows + 1,).
        begin: receives the first x of each run. It has room for all runs.
        end: receives the x after each run.
        kind: receives the class of each run.
    """
    count = 0
    width = values.shape[1]
    for row in range(values.shape[0]):
        first[row] = count
        line = values[row]
        for x in range(1, width):
            flags[x] = line[x] != line[x - 1]
        here = classes[line[0]]
        begin[count] = 0
        for word in range(words.size):
            if words[word] == 0:
                continue
            for x in range(8 * word, 8 * word + 8):
                if flags[x] == 0 or classes[line[x]] == here:
                    continue
                if here != 0:
                    end[count] = x
                    kind[count] = here
                    count += 1
                here = classes[line[x]]
                if here != 0:
                    begin[count] = x
        if here != 0:
            end[count] = width
            kind[count] = here
            count += 1
    first[values.shape[0]] = count


@lazy_njit(nogil=True)
def _root(parent, run):  # type: ignore[no-untyped-def]
    """Return the root of a run's tree, and halve the way to it."""
    while parent[run] != run:
        parent[run] = parent[parent[run]]
        run = parent[run]
    return run


@lazy_njit(nogil=True)
def _unite(parent, one, other):  # type: ignore[no-untyped-def]
    """Join two trees. The lower root becomes the root of both."""
    one, other = _root(parent, one), _root(parent, other)
    if one < other:
        parent[other] = one
    else:
        parent[one] = other


@lazy_njit(nogil=True)
def _join_rows(here, there, reach, first, begin, end, kind, parent):  # type: ignore[no-untyped-def]
    """Unite the runs of two rows that lie at most ``reach`` apart and have the same class."""
    near, after = first[there], first[there + 1]
    for run in range(first[here], first[here + 1]):
        while near < after and end[near] + reach <= begin[run]:
            near += 1
        other = near
        while other < after and begin[other] < end[run] + reach:
            if kind[other] == kind[run] and parent[other] != parent[run]:
                _unite(parent, run, other)
            other += 1


@numba_kernel
def join_runs(first, begin, end, kind, height, steps, parent):  # type: ignore[no-untyped-def]
    """Unite the runs that touch and have the same class.

    Args:
        first: the first run of each row, and the number of runs.
        begin: the first x of each run.
        end: the x after each run.
        kind: the class of each run.
        height: the rows of a plane.
        steps: the most axes along which touching voxels may differ by 1: 1, 2 or 3.
        parent: receives the tree of each run.
    """
    for run in range(first[first.size - 1]):
        parent[run] = run
    straight, oblique = min(1, steps - 1), max(0, steps - 2)
    for row in range(first.size - 1):
        if first[row] == first[row + 1]:
            continue
        y = row % height
        if y > 0:
            _join_rows(row, row - 1, straight, first, begin, end, kind, parent)
        if row < height:
            continue
        above = row - height
        _join_rows(row, above, straight, first, begin, end, kind, parent)
        if steps == 1:
            continue
        if y > 0:
            _join_rows(row, above - 1, oblique, first, begin, end, kind, parent)
        if y < height - 1:
            _join_rows(row, above + 1, oblique, first, begin, end, kind, parent)


@numba_kernel
def number_trees(parent, found):  # type: ignore[no-untyped-def]
    """Replace each run's parent by the number of its tree. Trees are numbered by their roots."""
    count = 0
    for run in range(parent.size):
        if parent[run] == run:
            parent[run] = count
            count += 1
        else:
            parent[run] = parent[parent[run]]
    found[0] = count


@numba_kernel
def unite_components(parent, component, tree):  # type: ignore[no-untyped-def]
    """Unite the components whose runs are in one tree."""
    for run in range(parent.size):
        if parent[run] != run:
            _unite(tree, component[run], component[parent[run]])


@numba_kernel
def count_voxels(begin, end, kind, component, voxels, kinds):  # type: ignore[no-untyped-def]
    """Add up the voxels of each component."""
    for run in range(component.size):
        voxels[component[run]] += end[run] - begin[run]
        kinds[component[run]] = kind[run]


@numba_kernel
def bound_components(first, begin, end, component, height, start, stop):  # type: ignore[no-untyped-def]
    """Find the box around each component.

    Args:
        first: the first run of each row, and the number of runs.
        begin: the first x of each run.
        end: the x after each run.
        component: the component of each run.
        height: the rows of a plane.
        start: receives the least z, y, x of each component. It must hold larger numbers before.
        stop: receives the z, y, x after the largest. It must hold 0 before.
    """
    for row in range(first.size - 1):
        z, y = row // height, row % height
        for run in range(first[row], first[row + 1]):
            low, high = start[component[run]], stop[component[run]]
            low[0], high[0] = min(low[0], z), max(high[0], z + 1)
            low[1], high[1] = min(low[1], y), max(high[1], y + 1)
            low[2], high[2] = min(low[2], begin[run]), max(high[2], end[run])


@numba_kernel
def paint_runs(first, begin, end, component, chosen, paint, values):  # type: ignore[no-untyped-def]
    """Give the voxels of some components a value."""
    for row in range(first.size - 1):
        for run in range(first[row], first[row + 1]):
            if chosen[component[run]]:
                for x in range(begin[run], end[run]):
                    values[row, x] = paint[component[run]]
