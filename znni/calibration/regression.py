"""What the built-in model's times are to be multiplied with, from measurements of some calls.

Gaussian-process regression (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
chapter 2) of the logarithm of measured over modelled seconds. Primitives of one kind differ little
from each other, and a primitive's calls differ the less the nearer their places; so each
measurement tells something of all calls, most of those like it, and where nothing was measured the
built-in model is left as it is. How far a prediction may be off comes with it.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np

from znni.calibration.features import Numbers

# What makes up that logarithm, as standard deviations. The likeliest, or somewhat more than that,
# of 900 calls of 23 primitives on a processor with AVX-512: other machines may be less alike.
KIND = 0.25  # of all calls of a kind of primitives
OWN = 0.08  # of all calls of a primitive, beside that of its kind
KIND_NEARBY = 0.13  # of calls near each other of a kind
OWN_NEARBY = 0.08  # of calls near each other of a primitive
CALL = 0.08  # of one call, whatever those near it: of what its place does not tell
NOISE = 0.09  # of a single measurement
REACH = 3.0  # of nearby, in factors of two

PRIOR = KIND**2 + OWN**2 + KIND_NEARBY**2 + OWN_NEARBY**2 + CALL**2

# A measurement that is off by more than so many standard deviations of what the others make of it
# was disturbed: the farther it is off, the more noise it is taken to have.
OUTLIER = 1.5
ROUNDS = 4  # of weighing measurements by how far they were off before


class Prediction(NamedTuple):
    """A logarithm.

    Attributes:
        mean: expected.
        error: root mean square, of a single measurement.
    """

    mean: float
    error: float


class Regression:
    """What measurements of one kind of primitives tell of all of their calls.

    Args:
        names: of the primitive of each measurement; there may be none.
        places: of the calls, a row each.
        logarithms: of measured over modelled seconds, less what all kinds have in common.
    """

    def __init__(self, names: list[str], places: Numbers, logarithms: Numbers) -> None:
        self._places = places
        named = np.array(names, dtype=np.str_)
        self._same = {name: named == name for name in names}
        count = len(names)
        self._none = np.zeros(count, dtype=bool)
        rows = [self._covariances(name, place) for name, place in zip(names, places, strict=True)]
        between = np.array(rows).reshape(count, count)
        noise = np.full(count, NOISE**2)
        for _ in range(ROUNDS):
            self._inverse = np.linalg.inv(between + np.diag(noise))
            self._weights = self._inverse @ logarithms
            # each as the others predict it (Rasmussen and Williams, section 5.4.2)
            variance = 1 / np.diag(self._inverse)
            self.misses = self._weights * variance
            off = np.abs(self.misses) / np.sqrt(np.maximum(variance - noise, 0.0) + NOISE**2)
            noise = NOISE**2 * np.maximum(1.0, off / OUTLIER) ** 4

    def predict(self, name: str, place: Numbers) -> Prediction:
        """Of a call of a primitive of this kind."""
        covariances = self._covariances(name, place)
        left = max(0.0, float(PRIOR - covariances @ self._inverse @ covariances))
        return Prediction(float(covariances @ self._weights), sqrt(left + NOISE**2))

    def of(self, name: str) -> Numbers:
        """By how much each measurement of a primitive is off what the others make of it."""
        return np.asarray(self.misses[self._same.get(name, self._none)])

    def _covariances(self, name: str, place: Numbers) -> Numbers:
        """Of a call with those that were measured."""
        apart = np.square(self._places - place).sum(axis=-1)
        near = np.exp(apart / (-2 * REACH**2))
        own = OWN**2 + OWN_NEARBY**2 * near + CALL**2 * (apart == 0)
        of_kind = KIND**2 + KIND_NEARBY**2 * near
        return np.asarray(of_kind + self._same.get(name, self._none) * own)
