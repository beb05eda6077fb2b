"""The weights by which samples along an axis make the samples of another number of them.

Each target sample is a sum of a few source samples. A cubic spline needs a recursive filter first.
Here the filter and the spline are one sum. Its weights fall by 0.268 from one sample to the next,
so it ends where they no longer matter in float32. Then a target sample depends on a fixed range of
samples, and its value is the same in every box.
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
        weights: the weights (target, taps) of that sample and of those after it. All lie inside:
            samples at the ends have the weights of those beyond them, too.
    """

    first: NDArray[np.int64]
    weights: NDArray[np.float64]

    @property
    def taps(self) -> int:
        """The source samples of each target sample."""
        return int(self.weights.shape[1])

    def needs(self, begins: Places, ends: Places) -> tuple[Places, Places]:
        """Return the ranges of source samples that ranges of the target need.

        Args:
            begins: the first target sample of each range.
            ends: the sample after its last.
        """
        return self.first[begins], self.first[ends - 1] + self.taps

    def gives(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of target samples that depend on a range of source samples alone."""
        first, stop = self.first, self.first + self.taps
        return int(first.searchsorted(begin)), int(stop.searchsorted(end, side="right"))

    def most_needed(self, extent: int) -> int:
        """Return the most source samples that a range of so many target samples needs."""
        last = self.first[min(extent, len(self.first)) - 1 :]
        return int((last - self.first[: len(last)]).max()) + self.taps

    def shares(self, sample: int) -> list[tuple[int, float]]:
        """Return the source samples whose weighted sum a target sample is, with their weights."""
        first = int(self.first[sample])
        weights = enumerate(self.weights[sample].tolist(), first)
        return [(at, weight) for at, weight in weights if weight]


@lru_cache(maxsize=256)
def axis_taps(source: int, target: int, order: int) -> AxisTaps:
    """Return the sums that make an axis of ``target`` samples from one of ``source``.

    Outside, the nearest sample continues. The ends of the axes lie at the same places.

    Args:
        source: the samples of the source.
        target: the samples of the target.
        order: the order of the spline: 0, 1 or 3.
    """
    if source == target:
        return AxisTaps(np.arange(target), np.ones((target, 1)))
    place = coordinates(source, target)
    if order == 0:
        first = np.floor(place + 0.5).astype(np.int64)
        return AxisTaps(first.clip(0, source - 1), np.ones((target, 1)))
    if order == 1:  # rounded as scipy does: equal shares of labels are told from unequal ones
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
    """Return sums over samples inside; those at the ends take the weights of those beyond."""
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
