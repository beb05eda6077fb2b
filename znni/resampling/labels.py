"""Labels of a resampled volume: of its largest map, or of another volume of labels."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    weight_left: Float32
    weight_right: Float32


def neighbours(resampling: Resampling, box: Box, at: Vec3) -> tuple[Neighbours, ...]:
    """Return the neighbours along each axis, as indices into values that begin at a voxel.

    Args:
        resampling: the change of voxels, of orders 0 or 1.
        box: the voxels of the target.
        at: the source voxel of the first of the values.

    Raises:
        ValueError: an order is higher.
    """
    _check_linear(resampling)
    found = []
    for taps, start, stop, origin in zip(resampling.taps, *box, at, strict=True):
        left = (taps.first[start:stop] - origin).astype(np.int32)
        weights = taps.weights[start:stop].astype(np.float32)
        one = taps.taps == 1
        right = left if one else left + np.int32(1)
        after = np.zeros(len(left), np.float32) if one else weights[:, 1].copy()
        found.append(Neighbours(left, right, weights[:, 0].copy(), after))
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
    mixed = workspace((threads, width), np.float32)
    largest = workspace((threads, extents[2]), np.float32)
    number = workspace((threads, extents[2]), np.int32)

    def task(worker: int, rows: slice) -> None:
        label_kernels.label_rows(
            *flat_view(values), len(values), width, rows.start, rows.stop, extents, *along, labels,
            mixed[worker], largest[worker], number[worker], out,
        )  # fmt: skip

    pool.for_each(task, pool.shares(extents[0] * extents[1]))
    return out


def label_bytes(resampling: Resampling, box: Box, threads: int) -> int:
    """Return the bytes that ``label_largest`` takes, beside values and labels of a box."""
    width = resampling.source_box(box).size.x
    return FLOAT_BYTES * threads * (width + 2 * box.size.x)


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
    _check_linear(resampling)
    check_covered(labels.shape, at, resampling, box)
    if out is None:
        out = np.empty(box.size, labels.dtype)
    pool = workers(threads)
    along, nearest = [], []
    taps_of_axes = zip(resampling.taps, _nearest(resampling), *box, at, strict=True)
    for taps, closest, start, stop, origin in taps_of_axes:
        along.append((taps.first[start:stop] - origin, taps.weights[start:stop]))
        nearest.append(closest[start:stop] - origin)
    around = np.empty((threads, 8), labels.dtype)
    shares = np.empty((threads, 8))

    def task(worker: int, rows: slice) -> None:
        label_kernels.vote_rows(
            labels, rows.start, rows.stop, *along, tuple(nearest), rule == "half", around[worker],
            shares[worker], out,
        )  # fmt: skip

    pool.for_each(task, pool.shares(out.shape[0] * out.shape[1]))
    return out


def _nearest(resampling: Resampling) -> list[NDArray[np.int64]]:
    """Return the nearest source sample of each target sample, along each axis."""
    pairs = zip(resampling.source, resampling.target, strict=True)
    return [axis_taps(source, target, 0).first for source, target in pairs]


def _check_linear(resampling: Resampling) -> None:
    if max(resampling.orders) > 1:
        raise ValueError(f"labels need splines of orders 0 or 1, not {resampling.orders}")
