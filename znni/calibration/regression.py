"""Factors by which to multiply the built-in model's times, predicted from some measured calls.

This is Gaussian-process regression (Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, chapter 2). It predicts the logarithm of measured over modelled seconds. Primitives
of one kind differ little from each other. A primitive's calls differ less if their points are
nearer. So each measurement says something about all calls, and most about similar ones. Without any
measurement, the built-in model stays unchanged. Each prediction comes with its expected error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from znni.calibration.features import Numbers, Point

# Standard deviations of the parts of that logarithm. They are the likeliest ones, or somewhat
# larger, for 900 calls of 23 primitives on a processor with AVX-512. Other machines may be less
# alike.
KIND = 0.25  # shared by all calls of a kind of primitives
OWN = 0.08  # shared by all calls of a primitive, besides its kind's part
KIND_NEARBY = 0.13  # shared by nearby calls of a kind
OWN_NEARBY = 0.08  # shared by nearby calls of a primitive
CALL = 0.08  # of one call alone: effects that its point does not tell
NOISE = 0.09  # of a single measurement
REACH = 3.0  # distance that counts as nearby, in factors of two

PRIOR = KIND**2 + OWN**2 + KIND_NEARBY**2 + OWN_NEARBY**2 + CALL**2

# A measurement was disturbed if it differs from the others' prediction by more than this many
# standard deviations. The more it differs, the more noise is assumed for it.
OUTLIER = 1.5
# But not all of so many measurements of one call are disturbed. Their median counts as it is.
REPEATED = 3
ROUNDS = 4  # rounds of weighing measurements by their latest errors


class Prediction(NamedTuple):
    """A predicted logarithm.

    Attributes:
        mean: expected value.
        error: root mean square error of a single measurement.
    """

    mean: float
    error: float


class Regression:
    """Predictions for all calls of one kind of primitives, from measurements of some.

    Args:
        names: primitive of each measurement; there may be none.
        points: points of the calls, one row each.
        logarithms: logarithms of measured over modelled seconds, less the part that all kinds
            share.
        times: number of times that each call was measured; by default once.
    """

    def __init__(
        self,
        names: list[str],
        points: Numbers,
        logarithms: Numbers,
        times: Sequence[int] | None = None,
    ) -> None:
        from znni.primitives.cpu.common.workers import serial_blas  # loads threadpoolctl

        self._serial_blas = serial_blas
        self._points = points
        named = np.array(names, dtype=np.str_)
        self._same = {name: named == name for name in names}
        count = len(names)
        self._none = np.zeros(count, dtype=bool)
        rows = [self._covariances([name], at) for name, at in zip(names, points, strict=True)]
        between = np.array(rows).reshape(count, count)
        repeats = np.array(times or [1] * count)
        undisturbed = NOISE**2 / repeats
        noise = undisturbed
        for _ in range(ROUNDS):
            with serial_blas:
                self._inverse = np.linalg.inv(between + np.diag(noise))
                self._weights = self._inverse @ logarithms
            # each one as the others predict it (Rasmussen and Williams, section 5.4.2)
            variance = 1 / np.diag(self._inverse)
            self.misses = self._weights * variance
            off = np.abs(self.misses) / np.sqrt(np.maximum(variance - noise, 0.0) + undisturbed)
            off[repeats >= REPEATED] = 0.0
            noise = undisturbed * np.maximum(1.0, off / OUTLIER) ** 4

    def predict(self, names: Sequence[str], point: Point) -> list[Prediction]:
        """Predict a call of each of some primitives of this kind, all at the same point."""
        covariances = self._covariances(names, np.array(point))
        with self._serial_blas:
            known = covariances @ self._inverse
            means = covariances @ self._weights
        left = np.maximum(0.0, PRIOR - np.sum(known * covariances, axis=-1))
        errors = np.sqrt(left + NOISE**2)
        return list(map(Prediction, means.tolist(), errors.tolist()))

    def of(self, name: str) -> Numbers:
        """Return how far each measurement of a primitive is from the others' prediction."""
        return np.asarray(self.misses[self._same.get(name, self._none)])

    def _covariances(self, names: Sequence[str], point: Numbers) -> Numbers:
        """Return the covariances of calls at a point with the measured ones, a row for each."""
        apart = np.square(self._points - point).sum(axis=-1)
        near = np.exp(apart / (-2 * REACH**2))
        own = OWN**2 + OWN_NEARBY**2 * near + CALL**2 * (apart == 0)
        of_kind = KIND**2 + KIND_NEARBY**2 * near
        same = np.array([self._same.get(name, self._none) for name in names])
        return np.asarray(of_kind + same * own)
