"""The loops of resampling that give labels: a row of the target at a time."""

from __future__ import annotations

from znni.primitives.cpu.common.numba_kernel import numba_kernel


@numba_kernel
def label_rows(  # type: ignore[no-untyped-def]
    memory, start, strides, maps, width, first, stop, extents, along_z, along_y, along_x, labels,
    mixed, largest, number, out,
):  # fmt: skip
    """Write the label of the largest map for some rows. NaN is largest, as in NumPy.

    Args:
        memory: the memory of the values (f, z, y, x).
        start: the place of its first element.
        strides: the elements from one index to the next.
        maps: the number of maps.
        width: the samples of a source row.
        first: the number of the first row.
        stop: the number of the row after the last.
        extents: the extents of the target.
        along_z: the samples before and after each target sample along z, and their weights.
        along_y: the same along y.
        along_x: the same along x.
        labels: the label of each map.
        mixed: scratch for a row of the source.
        largest: scratch for a row of the target.
        number: scratch for the numbers of maps of a row of the target.
        out: the labels (z, y, x).
    """
    left, right, weight_left, weight_right = along_x
    for row in range(first, stop):
        z, y = divmod(row, extents[1])
        above, below = along_z[0][z] * strides[1], along_z[1][z] * strides[1]
        near, far = along_y[0][y] * strides[2], along_y[1][y] * strides[2]
        weight_a = along_z[2][z] * along_y[2][y]
        weight_b = along_z[2][z] * along_y[3][y]
        weight_c = along_z[3][z] * along_y[2][y]
        weight_d = along_z[3][z] * along_y[3][y]
        for f in range(maps):
            at = start + f * strides[0]
            a, b = memory[at + above + near :], memory[at + above + far :]
            c, d = memory[at + below + near :], memory[at + below + far :]
            for x in range(width):
                mixed[x] = weight_a * a[x] + weight_b * b[x] + weight_c * c[x] + weight_d * d[x]
            if f == 0:
                for x in range(extents[2]):
                    largest[x] = weight_left[x] * mixed[left[x]] + weight_right[x] * mixed[right[x]]
                    number[x] = 0
            else:
                for x in range(extents[2]):
                    value = weight_left[x] * mixed[left[x]] + weight_right[x] * mixed[right[x]]
                    before = largest[x]
                    is_larger = not value <= before and before == before  # noqa: PLR0124 - no NaN
                    largest[x] = value if is_larger else before
                    number[x] = f if is_larger else number[x]
        for x in range(extents[2]):
            out[z, y, x] = labels[number[x]]


@numba_kernel
def vote_rows(  # type: ignore[no-untyped-def]
    source, first, stop, along_z, along_y, along_x, nearest, needs_half, labels, shares, out
):  # fmt: skip
    """Write the label that has the largest share of each voxel, for some rows.

    Args:
        source: the labels (z, y, x) of the source.
        first: the number of the first row.
        stop: the number of the row after the last.
        along_z: the first sample of each target sample along z, and the weights (target, taps).
        along_y: the same along y.
        along_x: the same along x.
        nearest: the nearest sample of each target sample, along each axis.
        needs_half: whether only a share of a half counts, and the largest label of them.
        labels: scratch for the labels around a voxel.
        shares: scratch for their shares.
        out: the labels (z, y, x) of the target.
    """
    taps_z, taps_y, taps_x = along_z[1].shape[1], along_y[1].shape[1], along_x[1].shape[1]
    for row in range(first, stop):
        z, y = divmod(row, out.shape[1])
        for x in range(out.shape[2]):
            from_z, from_y, from_x = along_z[0][z], along_y[0][y], along_x[0][x]
            count = 0
            for k in range(taps_z):
                for j in range(taps_y):
                    weight = along_z[1][z, k] * along_y[1][y, j]
                    for i in range(taps_x):
                        label = source[from_z + k, from_y + j, from_x + i]
                        share = weight * along_x[1][x, i]
                        place = 0
                        while place < count and labels[place] != label:
                            place += 1
                        if place == count:
                            labels[place], shares[place] = label, share
                            count += 1
                        else:
                            shares[place] += share
            chosen = labels[0]
            if needs_half:
                chosen = labels[0] * 0
                for place in range(count):
                    if shares[place] >= 0.5:
                        chosen = max(chosen, labels[place])
            elif count > 1:
                here = source[nearest[0][z], nearest[1][y], nearest[2][x]]
                most = shares[0]
                for place in range(1, count):
                    is_more = shares[place] > most
                    is_equal = shares[place] == most
                    if is_more or (is_equal and labels[place] < chosen):
                        chosen, most = labels[place], shares[place]
                for place in range(count):
                    if labels[place] == here and shares[place] == most:
                        chosen = here
            out[z, y, x] = chosen
