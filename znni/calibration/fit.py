"""A model of one primitive's times, fitted to measurements of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from planner.costs import Estimate
from znni.calibration.features import BUILT_IN_WEIGHTS, Numbers

# Fewer measurements do not tell how far a fit can be trusted.
LEAST_MEASUREMENTS = 5

# How far a weight may well be from the built-in model's: seconds of a call and of an item, shares
# of the others. The worse the sums explain the measurements, the more a weight is held to that.
LEEWAY: Numbers = np.array([1e-3, 1e-3, 0.5, 0.5])

# How badly they do, in a relative error, is itself uncertain where there are few measurements: this
# much is expected, and counts as half a measurement.
EXPECTED_MISS = 0.2
EXPECTED_COUNTS = 0.5

# A measurement that is off by more, as a logarithm, counts the less: it was disturbed, or its
# operations are not those declared.
OUTLIER = 0.4
ROUNDS = 5  # of weighing measurements by what the weights before made of them

# The nearest measurements correct the sum of terms, each by what it was off. Their say falls with
# the square of the distance: within ``SAME`` it is the same, and at ``REACH`` as much as that of no
# correction. Distances are in factors of two.
NEIGHBOURS = 4
SAME = 0.25
REACH = 2.0

LEAST_SECONDS = 1e-6  # that no call falls short of


@dataclass(frozen=True)
class Curve:
    """Seconds as a weighted sum of terms, corrected by what was measured nearby.

    Attributes:
        weights: of the terms, none negative.
        places: of the measurements, a row each.
        corrections: the logarithm of the measured time over the sum, of each.
    """

    weights: Numbers
    places: Numbers
    corrections: Numbers

    @classmethod
    def through(cls, terms: Numbers, places: Numbers, seconds: Numbers) -> Curve:
        """The one nearest to measurements.

        Args:
            terms: a row for each measurement, none negative; the first one is 1.
            places: a row for each.
            seconds: measured; positive.
        """
        weights = fitted_weights(terms, seconds)
        return cls(weights, places, np.log(seconds / np.maximum(terms @ weights, LEAST_SECONDS)))

    def seconds(self, terms: Numbers, distances: Numbers) -> float:
        """The time of a call; positive.

        Args:
            terms: of the call.
            distances: from its place to those of the measurements.
        """
        nearest = np.argsort(distances)[:NEIGHBOURS]
        say = 1 / (distances[nearest] ** 2 + SAME**2)
        correction = say @ self.corrections[nearest] / (say.sum() + REACH**-2)
        return max(float(terms @ self.weights), LEAST_SECONDS) * exp(correction)


@dataclass(frozen=True)
class Fit:
    """A curve, and how far it can be trusted.

    Attributes:
        curve: through all measurements.
        error: of a measurement predicted from the others: the logarithm's root mean square.
        spacing: how far a measurement is from the nearest other one, typically.
    """

    curve: Curve
    error: float
    spacing: float

    @classmethod
    def to(cls, terms: Numbers, places: Numbers, seconds: Numbers) -> Fit:
        """The fit to measurements, ``LEAST_MEASUREMENTS`` or more; arguments as of ``Curve``."""
        apart = distances_between(places[:, np.newaxis], places)
        misses = []
        for left_out in range(len(seconds)):
            kept = np.arange(len(seconds)) != left_out
            curve = Curve.through(terms[kept], places[kept], seconds[kept])
            predicted = curve.seconds(terms[left_out], apart[left_out, kept])
            misses.append(np.log(predicted / seconds[left_out]))
        np.fill_diagonal(apart, np.inf)
        spacing = max(SAME, float(np.median(apart.min(axis=1))))
        error = sqrt(np.mean(np.square(misses)))
        return cls(Curve.through(terms, places, seconds), error, spacing)

    def estimate(self, terms: Numbers, place: Numbers) -> Estimate:
        """The time of a call.

        The error is that of places among the measurements; farther out, it grows in proportion.
        """
        distances = distances_between(place, self.curve.places)
        farther = max(1.0, float(distances.min()) / self.spacing)
        return Estimate(self.curve.seconds(terms, distances), self.error * farther)


def fitted_weights(terms: Numbers, seconds: Numbers) -> Numbers:
    """Weights, none negative, with which sums of terms have small relative errors.

    The least squares of these errors, and of how far the weights are from the built-in model's,
    scaled to the measurements, in units of ``LEEWAY``: what few or alike measurements leave open is
    as in that model.

    Args:
        terms: a row for each measurement.
        seconds: measured; positive.
    """
    scale = float(np.median(seconds / (terms @ BUILT_IN_WEIGHTS)))
    weights = expected = BUILT_IN_WEIGHTS * scale
    leeway = LEEWAY * np.array([1, 1, scale, scale])
    for _ in range(ROUNDS):
        sums = np.maximum(terms @ weights, LEAST_SECONDS)
        # Relative to both, so that half is as far off as double.
        share = 1 / np.sqrt(sums * seconds) / np.hypot(1, np.log(sums / seconds) / OUTLIER)
        weights = _pulled(terms * share[:, np.newaxis], seconds * share, expected, leeway)
    return weights


def _pulled(rows: Numbers, wanted: Numbers, expected: Numbers, leeway: Numbers) -> Numbers:
    """Weights, none negative, of columns that add up to what is wanted, and are as expected."""
    free = _least_squares(rows, wanted)
    squares = EXPECTED_COUNTS * EXPECTED_MISS**2 + np.sum(np.square(rows @ free - wanted))
    miss = np.sqrt(squares / (EXPECTED_COUNTS + len(wanted) - np.count_nonzero(free)))
    pull = np.diag(miss / leeway)
    return _least_squares(np.vstack([rows, pull]), np.concatenate([wanted, pull @ expected]))


def _least_squares(rows: Numbers, wanted: Numbers) -> Numbers:
    """Weights, none negative, of columns of any sizes."""
    from scipy.optimize import nnls

    sizes = np.linalg.norm(rows, axis=0)
    sizes[sizes == 0] = 1.0
    weights, _ = nnls(rows / sizes, wanted, maxiter=1000)
    return np.asarray(weights / sizes)


def distances_between(place: Numbers, places: Numbers) -> Numbers:
    """From one place, or each of some along a new axis, to each of others."""
    return np.asarray(np.sqrt(np.square(places - place).sum(axis=-1)))
