"""The loops of resampling that give labels, for rows of the target."""

from __future__ import annotations

from znni.primitives.cpu.common.lazy_kernel import lazy_njit
from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.resampling.linear_kernels import ROWS, interpolate_group


@numba_kernel
def label_rows(  # type: ignore[no-untyped-def]
    memory, start, strides, maps, width, first, stop, extents, along_z, along_y, along_x, labels,
    scratch, number, out,
):  # fmt: skip
    """Write the label of the largest map for some groups of rows. NaN is the largest, as in NumPy.

    ``scratch`` has room for ``2 * ROWS`` rows of the source, and as many of the target. ``number``
    has room for the numbers of the maps of a group. The other arguments are as for
    ``interpolate_groups``.
    """
    size = ROWS * extents[2]
    value, largest = scratch[:size], scratch[size : 2 * size]
    mixed, turned = scratch[2 * size :], scratch[2 * size + ROWS * width :]
    groups = (extents[1] + ROWS - 1) // ROWS
    for group in range(first, stop):
        z, y = divmod(group, groups)
        y *= ROWS
        count = min(ROWS, extents[1] - y)
        for f in range(maps):
            interpolate_group(
                memory, start + f * strides[0], strides, width, z, y, count, along_z, along_y,
                along_x, mixed, turned, value,
            )  # fmt: skip
            if f == 0:
                for i in range(size):
                    largest[i] = value[i]
                    number[i] = 0
            else:
                _keep_largest(value, f, largest, number)
        for lane in range(count):
            for x in range(extents[2]):
                out[z, y + lane, x] = labels[number[x * ROWS + lane]]


@numba_kernel
def _keep_largest(value, f, largest, number):  # type: ignore[no-untyped-def]
    """Note the number of a map where it is larger than all maps before it."""
    for i in range(value.size):
        here, before = value[i], largest[i]
        is_larger = (not here <= before) & (before == before)  # noqa: PLR0124 - no NaN
        largest[i] = here if is_larger else before
        number[i] = f if is_larger else number[i]


@numba_kernel
def vote_rows(  # type: ignore[no-untyped-def]
    source, first, stop, along_z, along_y, along_x, nearest, labels, shares, out
):  # fmt: skip
    """Write the label that has the largest share of each voxel, for some rows.

    ``labels`` and ``shares`` have room for the labels around a voxel.
    """
    left, right, weight_left, weight_right = along_x
    for row in range(first, stop):
        z, y = divmod(row, out.shape[1])
        above, below = source[along_z[0][z]], source[along_z[1][z]]
        near, far = along_y[0][y], along_y[1][y]
        a, b, c, d = above[near], above[far], below[near], below[far]
        share_a = along_z[2][z] * along_y[2][y]
        share_b = along_z[2][z] * along_y[3][y]
        share_c = along_z[3][z] * along_y[2][y]
        share_d = along_z[3][z] * along_y[3][y]
        closest = source[nearest[0][z], nearest[1][y]]
        for x in range(out.shape[2]):
            i, j = left[x], right[x]
            label = a[i]
            same = (label == a[j]) & (label == b[i]) & (label == b[j]) & (label == c[i])
            same &= (label == c[j]) & (label == d[i]) & (label == d[j])
            if not same:
                count, here, there = 0, weight_left[x], weight_right[x]
                count = _add_share(labels, shares, count, a[i], share_a * here)
                count = _add_share(labels, shares, count, a[j], share_a * there)
                count = _add_share(labels, shares, count, b[i], share_b * here)
                count = _add_share(labels, shares, count, b[j], share_b * there)
                count = _add_share(labels, shares, count, c[i], share_c * here)
                count = _add_share(labels, shares, count, c[j], share_c * there)
                count = _add_share(labels, shares, count, d[i], share_d * here)
                count = _add_share(labels, shares, count, d[j], share_d * there)
                label = _most(labels, shares, count, closest[nearest[2][x]])
            out[z, y, x] = label


@lazy_njit(nogil=True)
def _add_share(labels, shares, count, label, share):  # type: ignore[no-untyped-def]
    """Add to the share of a label, and return the number of labels."""
    place = 0
    while place < count and labels[place] != label:
        place += 1
    if place == count:
        labels[place], shares[place] = label, share
        return count + 1
    shares[place] += share
    return count


@lazy_njit(nogil=True)
def _most(labels, shares, count, closest):  # type: ignore[no-untyped-def]
    """Return the label with the largest share.

    If shares are equal, the closest label counts, or else the smallest.
    """
    chosen, most = labels[0], shares[0]
    for place in range(1, count):
        is_equal = shares[place] == most and labels[place] < chosen
        if shares[place] > most or is_equal:
            chosen, most = labels[place], shares[place]
    for place in range(count):
        if labels[place] == closest and shares[place] == most:
            chosen = labels[place]
    return chosen
