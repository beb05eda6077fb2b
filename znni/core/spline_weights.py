"""The weights of splines: those of source samples in each target sample, along one axis.

Each target sample is a weighted sum of a few source samples. A cubic spline usually needs a
recursive filter first. Here the filter and the spline are one sum. From one sample to the next, its
weights fall to 0.268 times as much. So the sum ends where weights no longer matter in float32. Then
a target sample depends on a fixed range of samples, and its value is the same in every box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# The samples of a cubic spline's sum. The weights beyond them add up to 1.3e-8.
CUBIC_TAPS = 28

# The orders of splines that can be computed.
ORDERS = (0, 1, 3)

# Positions along an axis.
Places: TypeAlias = NDArray[np.int64]

_POLE = math.sqrt(3) - 2  # of the recursive filter of cubic splines
_FILTER_REACH = 40  # samples; the filter's weights beyond are 1e-23


@dataclass(frozen=True, eq=False)
class AxisTaps:
    """The sums that make the samples of an axis.

    Attributes:
        first: the first source sample of each target sample. It never decreases.
        weights: the weights (target, taps) of that sample and of the next ones. All samples lie
            inside: the samples at the ends also take the weights of samples beyond them.
    """

    first: NDArray[np.int64]
    weights: NDArray[np.float64]

    @property
    def taps(self) -> int:
        """The number of source samples of each target sample."""
        return int(self.weights.shape[1])

    def needs(self, begins: Places, ends: Places) -> tuple[Places, Places]:
        """Return the ranges of source samples that ranges of the target need.

        Args:
            begins: the first target sample of each range.
            ends: the sample after the last one of each range.
        """
        return self.first[begins], self.first[ends - 1] + self.taps

    def most_needed(self, extent: int) -> int:
        """Return the most source samples that a range of target samples needs.

        Args:
            extent: the number of target samples.
        """
        last = self.first[min(extent, len(self.first)) - 1 :]
        return int((last - self.first[: len(last)]).max()) + self.taps

    def shares(self, sample: int) -> list[tuple[int, float]]:
        """Return the source samples and weights whose sum is a target sample."""
        first = int(self.first[sample])
        weights = enumerate(self.weights[sample].tolist(), first)
        return [(at, weight) for at, weight in weights if weight]


@lru_cache(maxsize=256)
def axis_taps(
    source: int, target: int, order: int, step: float | None = None, start: float = 0.0
) -> AxisTaps:
    """Return the sums that make an axis of ``target`` samples from one of ``source``.

    Beyond the ends of the source, its nearest sample continues.

    Args:
        source: the samples of the source.
        target: the samples of the target.
        order: the order of the spline: 0, 1 or 3.
        step: the distance between target samples, in source samples. None: both axes span the same
            extent.
        start: the place of the first target sample, in source samples from the first one. It
            counts with a step.
    """
    if source == target and step in {None, 1.0} and not start:
        return AxisTaps(np.arange(target), np.ones((target, 1)))
    if step is None:
        place = coordinates(source, target)
    else:
        place = np.asarray(start + np.arange(target) * step, np.float64)
    if order == 0:  # halves as in scipy and nnU-Net, or as in PyTorch and MONAI
        first = (np.floor(place + 0.5) if step is None else np.rint(place)).astype(np.int64)
        return AxisTaps(first.clip(0, source - 1), np.ones((target, 1)))
    if order == 1:  # rounded as in scipy, so that shares of labels are equal where scipy's are
        place = place.clip(0, source - 1)
        left = np.floor(place).astype(np.int64)
        before = 1 - (place - left)
        return _inside(left, np.stack([before, 1 - before], axis=1), source)
    left = np.floor(place).astype(np.int64)
    first = left - (CUBIC_TAPS // 2 - 1)
    weights = _cardinal_spline(place[:, None] - first[:, None] - np.arange(CUBIC_TAPS))
    return _inside(first, weights / weights.sum(axis=1, keepdims=True), source)


def coordinates(source: int, target: int) -> NDArray[np.float64]:
    """Return the place of each target sample, in source samples from the first one."""
    return np.asarray((np.arange(target) + 0.5) * (source / target) - 0.5)


def _inside(first: NDArray[np.int64], weights: NDArray[np.float64], source: int) -> AxisTaps:
    """Return sums over samples inside. Those at the ends take the weights of samples beyond."""
    target, taps = weights.shape
    kept = min(taps, source)
    begin = first.clip(0, source - kept)
    sample = (first[:, None] + np.arange(taps)).clip(0, source - 1)
    inside = np.zeros((target, kept))
    np.add.at(inside, (np.arange(target)[:, None], sample - begin[:, None]), weights)
    return AxisTaps(begin, inside)


def _cardinal_spline(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cubic spline that is 1 at 0, and 0 at all other whole numbers."""
    total = np.zeros_like(distance)
    for step in range(-_FILTER_REACH, _FILTER_REACH + 1):
        total += math.sqrt(3) * _POLE ** abs(step) * _cubic_b_spline(np.abs(distance - step))
    return total


def _cubic_b_spline(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    inner = (4 - 6 * distance**2 + 3 * distance**3) / 6
    return np.where(distance < 1, inner, np.maximum(2 - distance, 0) ** 3 / 6)
