"""Resamplings and boxes to try, and the same as scipy computes it in float64."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import ndimage

from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3

WHOLE_START = Vec3(0, 0, 0)


@st.composite
def extents(draw: st.DrawFn, most: int) -> Vec3:
    return Vec3(*(draw(st.integers(1, most)) for _ in range(3)))


@st.composite
def resamplings(draw: st.DrawFn, orders: tuple[int, ...] = (0, 1, 3), most: int = 60) -> Resampling:
    along = draw(st.tuples(*(st.sampled_from(orders),) * 3))
    separate = draw(st.sampled_from((None, 0, 1, 2)))
    return Resampling(draw(extents(most)), draw(extents(most)), along, separate)


@st.composite
def boxes(draw: st.DrawFn, extent: Vec3) -> Box:
    start = Vec3(*(draw(st.integers(0, each - 1)) for each in extent))
    ends = zip(start, extent, strict=True)
    return Box(start, Vec3(*(draw(st.integers(low + 1, high)) for low, high in ends)))


def whole(resampling: Resampling) -> Box:
    """Return the whole target."""
    return Box(WHOLE_START, resampling.target)


def along_axis(
    values: NDArray[np.float64], axis: int, target: int, order: int
) -> NDArray[np.float64]:
    """Return values resampled along one axis by scipy."""
    if values.shape[axis] == target:
        return values
    factors = [1.0] * values.ndim
    factors[axis] = target / values.shape[axis]
    found = ndimage.zoom(values, factors, order=order, mode="nearest", grid_mode=True)
    assert found.shape[axis] == target
    return np.asarray(found)


def by_scipy(
    values: NDArray[np.floating], resampling: Resampling, *, clips: bool = False
) -> NDArray[np.float64]:
    """Return values (f, z, y, x) resampled by scipy, slice by slice if they are."""
    made = values.astype(np.float64)
    separate = resampling.separate
    slices = tuple(axis for axis in (1, 2, 3) if separate is None or axis != separate + 1)
    lowest, highest = made.min(axis=slices, keepdims=True), made.max(axis=slices, keepdims=True)
    for axis in slices:
        made = along_axis(made, axis, resampling.target[axis - 1], resampling.orders[axis - 1])
    if clips:
        made = made.clip(lowest, highest)
    if separate is not None:
        order = resampling.orders[separate]
        made = along_axis(made, separate + 1, resampling.target[separate], order)
    return made
