"""The planner's model of times, from what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean, median

import numpy as np

from planner.costs import BUILT_IN, BUILT_IN_ERROR, Estimate
from znni.calibration.database import Measurement
from znni.calibration.features import place, terms
from znni.calibration.fit import LEAST_MEASUREMENTS, Fit
from znni.cost import Cost
from znni.network import Operation
from znni.primitive import Catalogue, Primitive
from znni.shapes import Shape5


@dataclass(frozen=True)
class Fitted:
    """What is known of a primitive.

    Attributes:
        primitive: its name.
        measurements: how many shapes were measured.
        error: of the fit to them, relative; None where they are too few for one.
        built_in_error: of the built-in model on them, relative; None without any.
    """

    primitive: str
    measurements: int
    error: float | None
    built_in_error: float | None


class MeasuredModel:
    """Times fitted to measurements, primitive by primitive.

    A primitive with too few has the built-in model's time, times what the measured ones took of
    theirs, as a median, and a larger error.

    Args:
        measurements: one at least; of primitives of the catalogue, as they are now.
        catalogue: the primitives that will be asked for.
    """

    def __init__(self, measurements: Iterable[Measurement], catalogue: Catalogue) -> None:
        self._samples: dict[str, list[_Sample]] = {name: [] for name in catalogue}
        days = []
        for measured in measurements:
            sample = _Sample(catalogue[measured.primitive], measured)
            self._samples[measured.primitive].append(sample)
            days.append(measured.day)
        enough = sum(len(samples) >= LEAST_MEASUREMENTS for samples in self._samples.values())
        part = "" if enough == len(catalogue) else f", {enough} of {len(catalogue)} primitives"
        self.source = f"measured on this machine on {max(days).isoformat()}{part}"
        ratios = [sample.ratio for samples in self._samples.values() for sample in samples]
        self._ratio = median(ratios)
        self._ratio_error = max(BUILT_IN_ERROR, _spread(ratio / self._ratio for ratio in ratios))
        self._fits: dict[str, Fit | None] = {}

    def estimate(
        self, primitive: Primitive, operation: Operation, shape: Shape5, cost: Cost
    ) -> Estimate:
        """The time of one call, and the error to be expected of it."""
        if fit := self._fit(primitive.name):
            return fit.estimate(terms(primitive, shape, cost), place(operation, shape))
        built_in = BUILT_IN.estimate(primitive, operation, shape, cost)
        return Estimate(self._ratio * built_in.seconds, self._ratio_error)

    def known(self) -> Iterator[Fitted]:
        """What is known of each primitive of the catalogue."""
        for name, samples in self._samples.items():
            fit = self._fit(name)
            off = _spread(sample.ratio for sample in samples) if samples else None
            yield Fitted(name, len(samples), fit.error if fit else None, off)

    def _fit(self, name: str) -> Fit | None:
        """Made when it is first asked for: few searches ask for all."""
        if name not in self._fits:
            samples = self._samples.get(name, [])
            self._fits[name] = _fit(samples) if len(samples) >= LEAST_MEASUREMENTS else None
        return self._fits[name]


class _Sample:
    """A measurement with what its primitive declares of it."""

    def __init__(self, primitive: Primitive, measured: Measurement) -> None:
        operation, shape = measured.operation, measured.shape
        cost = primitive.cost(operation, shape)
        self.seconds = measured.seconds
        self.terms = terms(primitive, shape, cost)
        self.place = place(operation, shape)
        # to the built-in model's time
        self.ratio = self.seconds / BUILT_IN.estimate(primitive, operation, shape, cost).seconds


def _fit(samples: list[_Sample]) -> Fit:
    return Fit.to(
        np.array([sample.terms for sample in samples]),
        np.array([sample.place for sample in samples]),
        np.array([sample.seconds for sample in samples]),
    )


def _spread(ratios: Iterable[float]) -> float:
    """How far ratios are from one: the logarithm's root mean square."""
    return sqrt(fmean(log(ratio) ** 2 for ratio in ratios))
