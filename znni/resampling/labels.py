"""Labels of a resampled volume: of its largest map, or of another volume of labels."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.axis_taps import axis_taps
from znni.core.resampling import Resampling
from znni.core.shapes import FLOAT_BYTES, Box, Vec3
from znni.machine.arena import workspace
from znni.network.weights import Float32
from znni.primitives.cpu.common.numba_kernel import flat_view
from znni.primitives.cpu.common.workers import workers
from znni.resampling import label_kernels
from znni.resampling.spline import check_covered

# The rule by which the labels around a voxel decide on its label. Versions of batchgenerators have
# two. ``largest``, since 0.25.4, takes the label with the largest share. If shares are equal, the
# nearest voxel's label is taken, or else the smallest. ``half``, before, takes the largest label
# with a share of a half or more, or else 0.
VoteRule: TypeAlias = Literal["largest", "half"]


class Neighbours(NamedTuple):
    """The source samples on both sides of each target sample of a box, along one axis.

    Attributes:
        left: the sample before.
        right: the sample after. It is inside, too.
        weight_left: the weight of the sample before.
        weight_right: the weight of the sample after.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    weight_left: NDArray[np.floating]
    weight_right: NDArray[np.floating]


def neighbours(
    resampling: Resampling, box: Box, at: Vec3, dtype: DTypeLike = np.float32
) -> tuple[Neighbours, ...]:
    """Return the neighbours along each axis, as indices into values that begin at a voxel.

    Args:
        resampling: the change of voxels, of orders 0 or 1.
        box: the voxels of the target.
        at: the source voxel of the first of the values.
        dtype: the type of the weights.

    Raises:
        ValueError: an order is higher.
    """
    if max(resampling.orders) > 1:
        raise ValueError(f"labels need splines of orders 0 or 1, not {resampling.orders}")
    found = []
    for taps, start, stop, origin in zip(resampling.taps, *box, at, strict=True):
        left = (taps.first[start:stop] - origin).astype(np.int32)
        weights = np.zeros((2, stop - start), dtype)
        weights[: taps.taps] = taps.weights[start:stop].T
        found.append(Neighbours(left, left + np.int32(taps.taps - 1), *weights))
    return tuple(found)


def label_largest(
    values: Float32,
    at: Vec3,
    resampling: Resampling,
    box: Box,
    labels: NDArray[Any],
    *,
    threads: int,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the labels (z, y, x) of the largest maps of a box of the target.

    The resampled maps are never stored. If several maps are equally large, the first one counts.

    Args:
        values: values (f, z, y, x) of the source: those of ``resampling.source_box(box)`` at least.
        at: the source voxel of the first of them.
        resampling: the change of voxels, of orders 0 or 1.
        box: the voxels of the target that are wanted.
        labels: the label of each map, of the type wanted.
        threads: the threads that compute them.
        out: takes the labels. Default: a new array.

    Raises:
        ValueError: the values do not cover the box's source, or an order is higher than 1.
    """
    along = neighbours(resampling, box, at)
    check_covered(values.shape[1:], at, resampling, box)
    if out is None:
        out = np.empty(box.size, labels.dtype)
    pool, extents, width = workers(threads), tuple(box.size), values.shape[3]
    scratch = workspace((threads, _label_floats(width, box)), np.float32)
    number = workspace((threads, label_kernels.ROWS * box.size.x), np.int32)

    def task(worker: int, groups: slice) -> None:
        label_kernels.label_rows(
            *flat_view(values), len(values), width, groups.start, groups.stop, extents, *along,
            labels, scratch[worker], number[worker], out,
        )  # fmt: skip

    pool.for_each(task, pool.shares(box.size.z * -(-box.size.y // label_kernels.ROWS)))
    return out


def label_bytes(resampling: Resampling, box: Box, threads: int) -> int:
    """Return the bytes that ``label_largest`` takes, beside values and labels of a box."""
    width = resampling.source_box(box).size.x
    return FLOAT_BYTES * threads * (_label_floats(width, box) + label_kernels.ROWS * box.size.x)


def resample_labels(
    labels: NDArray[Any],
    at: Vec3,
    resampling: Resampling,
    box: Box,
    *,
    threads: int,
    rule: VoteRule = "largest",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the labels (z, y, x) of a box of the target.

    Args:
        labels: labels (z, y, x) of the source: those of ``resampling.source_box(box)`` at least.
        at: the source voxel of the first of them.
        resampling: the change of voxels, of orders 0 or 1.
        box: the voxels of the target that are wanted.
        threads: the threads that compute them.
        rule: how labels around a voxel decide, if they differ.
        out: takes the labels. Default: a new array.

    Raises:
        ValueError: the labels do not cover the box's source, or an order is higher than 1.
    """
    along = neighbours(resampling, box, at, np.float64)
    check_covered(labels.shape, at, resampling, box)
    if out is None:
        out = np.empty(box.size, labels.dtype)
    pool = workers(threads)
    nearest = tuple(
        axis_taps(source, target, 0).first[start:stop] - origin
        for source, target, start, stop, origin in zip(
            resampling.source, resampling.target, *box, at, strict=True
        )
    )
    around = np.empty((threads, 8), labels.dtype)
    shares = np.empty((threads, 8))

    def task(worker: int, rows: slice) -> None:
        label_kernels.vote_rows(
            labels, rows.start, rows.stop, *along, nearest, rule == "half", around[worker],
            shares[worker], out,
        )  # fmt: skip

    pool.for_each(task, pool.shares(out.shape[0] * out.shape[1]))
    return out


def _label_floats(width: int, box: Box) -> int:
    """Return the floats of a worker's scratch."""
    return 2 * label_kernels.ROWS * (width + box.size.x)
