"""The source samples on both sides of each target sample, for linear interpolation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.resampling import Resampling
from znni.core.shapes import Box


class Neighbours(NamedTuple):
    """The source samples on both sides of each target sample of a box, along one axis."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    weight_left: NDArray[np.floating]
    weight_right: NDArray[np.floating]


def neighbours(
    resampling: Resampling, box: Box, dtype: DTypeLike = np.float32
) -> tuple[Neighbours, ...]:
    """Return the neighbours along each axis, counted from the first sample that the box needs.

    Raises:
        ValueError: an order is higher than 1.
    """
    if max(resampling.orders) > 1:
        raise ValueError(f"this needs splines of orders 0 or 1, not {resampling.orders}")
    found = []
    for taps, start, stop in zip(resampling.taps, *box, strict=True):
        left = (taps.first[start:stop] - taps.first[start]).astype(np.int32)
        weights = np.zeros((2, stop - start), dtype)
        weights[: taps.taps] = taps.weights[start:stop].T
        found.append(Neighbours(left, left + np.int32(taps.taps - 1), *weights))
    return tuple(found)
