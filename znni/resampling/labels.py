"""Labels of a resampled volume: from its largest maps, or from a volume of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.resampling import Resampling
from znni.core.shapes import FLOAT_BYTES, Box, Vec3
from znni.core.spline_weights import axis_taps
from znni.machine.arena import workspace
from znni.network.weights import Float32
from znni.primitives.cpu.common.numba_kernel import flat_view
from znni.primitives.cpu.common.workers import workers
from znni.resampling import label_kernels
from znni.resampling.box_resampling import part_needed
from znni.resampling.linear_kernels import ROWS, group_floats
from znni.resampling.neighbours import neighbours


def label_largest(
    values: Float32,
    at: Vec3,
    resampling: Resampling,
    box: Box,
    labels: NDArray[Any],
    *,
    threads: int,
) -> NDArray[Any]:
    """Return the label of the largest map for each voxel (z, y, x) of a box of the target.

    The resampled maps are never stored. If several maps are equally large, the first one counts.

    Args:
        values: values (f, z, y, x) of the source, at least in ``resampling.source_box(box)``.
        at: the source voxel of the first value.
        resampling: the change of voxels, of orders 0 or 1.
        box: the voxels of the target that are wanted.
        labels: the label of each map. Their type is the type of the output.
        threads: the number of threads.

    Raises:
        ValueError: the values do not cover the box's source, or an order is higher than 1.
    """
    along = neighbours(resampling, box)
    values = values[:, *part_needed(values.shape[1:], at, resampling, box).slices]
    out = np.empty(box.size, labels.dtype)
    pool, extents, width = workers(threads), tuple(box.size), values.shape[3]
    scratch = workspace((threads, _label_floats(width, box)), np.float32)
    number = workspace((threads, ROWS * box.size.x), np.int32)

    def task(worker: int, groups: slice) -> None:
        label_kernels.label_rows(
            *flat_view(values), len(values), width, groups.start, groups.stop, extents, *along,
            labels, scratch[worker], number[worker], out,
        )  # fmt: skip

    pool.for_each(task, pool.shares(box.size.z * -(-box.size.y // ROWS)))
    return out


def label_bytes(resampling: Resampling, box: Box, threads: int) -> int:
    """Return the bytes that ``label_largest`` takes for a box, beside its values and labels."""
    width = resampling.source_box(box).size.x
    return FLOAT_BYTES * threads * (_label_floats(width, box) + ROWS * box.size.x)


def resample_labels(
    labels: NDArray[Any], at: Vec3, resampling: Resampling, box: Box, *, threads: int
) -> NDArray[Any]:
    """Return labels (z, y, x) resampled to a box of the target, as batchgenerators 0.25.4 does.

    The label with the largest share around a voxel counts. If shares are equal, the label of the
    nearest voxel counts, or else the smallest. ``labels`` (z, y, x) are those of the source
    from the voxel ``at`` on. The other arguments are as for ``label_largest``.

    Raises:
        ValueError: the labels do not cover the box's source, or an order is higher than 1.
    """
    along = neighbours(resampling, box, np.float64)
    labels = labels[part_needed(labels.shape, at, resampling, box).slices]
    out = np.empty(box.size, labels.dtype)
    pool = workers(threads)
    needed = resampling.source_box(box).start
    nearest = tuple(
        axis_taps(source, target, 0).first[start:stop] - origin
        for source, target, start, stop, origin in zip(
            resampling.source, resampling.target, *box, needed, strict=True
        )
    )
    around = np.empty((threads, 8), labels.dtype)
    shares = np.empty((threads, 8))

    def task(worker: int, rows: slice) -> None:
        label_kernels.vote_rows(
            labels, rows.start, rows.stop, *along, nearest, around[worker], shares[worker], out,
        )  # fmt: skip

    pool.for_each(task, pool.shares(out.shape[0] * out.shape[1]))
    return out


def _label_floats(width: int, box: Box) -> int:
    """Return the floats of a worker's scratch."""
    return group_floats(width, box.size.x) + ROWS * box.size.x
