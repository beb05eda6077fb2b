"""The planner's model of times, made from measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from math import exp, log
from typing import get_args

import numpy as np

from planner.cost_model import BUILT_IN, Estimate
from znni.calibration.database import Measurement
from znni.calibration.features import AXES, Numbers, place
from znni.calibration.regression import Regression
from znni.core.shapes import Shape5
from znni.core.text import aligned
from znni.machine.machine import DeviceKind
from znni.network.layers import Operation
from znni.plans.cost import Cost
from znni.plans.plan import MEASURED_HERE
from znni.plans.primitive import Catalogue, Primitive

# Latest measurements that count for each kind of primitives. Recorded runs add some for every new
# plan, and the time of a prediction grows with the square of their number.
MOST_MEASUREMENTS = 1000


@dataclass(frozen=True)
class Fitted:
    """The accuracy of predictions for a primitive.

    Attributes:
        primitive: its name.
        measurements: number of measured shapes.
        error: relative error when each is predicted from all others; None without measurements.
        built_in_error: relative error of the built-in model on them; None without measurements.
    """

    primitive: str
    measurements: int
    error: float | None
    built_in_error: float | None


class MeasuredModel:
    """The built-in model's times, multiplied by factors that measurements determine.

    The median factor of all measurements on a device applies to all its primitives. The rest is
    determined per kind. A kind is one class of primitives, for example one algorithm with tiles of
    different sizes.

    Args:
        measurements: valid measurements of primitives in the catalogue; at least one.
        catalogue: primitives that the model must predict.
    """

    follows_costs = False

    def __init__(self, measurements: Iterable[Measurement], catalogue: Catalogue) -> None:
        self._kinds = {name: type(primitive) for name, primitive in catalogue.items()}
        self._samples: dict[type, list[_Sample]] = {kind: [] for kind in self._kinds.values()}
        days = []
        for measured in measurements:
            sample = _Sample(catalogue[measured.primitive], measured)
            self._samples[self._kinds[sample.name]].append(sample)
            days.append(measured.day)
        for samples in self._samples.values():
            del samples[:-MOST_MEASUREMENTS]
        known = len({s.name for samples in self._samples.values() for s in samples})
        all_ = len(catalogue)
        part = "" if known == all_ else f", {known} of {all_} primitives"
        self.source = f"{MEASURED_HERE} on {max(days).isoformat()}{part}"
        self._common = {kind: self._in_common(kind) for kind in get_args(DeviceKind)}
        self._regressions: dict[type, Regression] = {}

    @property
    def fingerprint(self) -> str:
        """A text that differs if the measurements differ."""
        told = sorted(
            f"{sample.name} {sample.place} {sample.logarithm!r}"
            for samples in self._samples.values()
            for sample in samples
        )
        return sha256("\n".join(told).encode()).hexdigest()

    def estimate(
        self, primitive: Primitive, operation: Operation, shape: Shape5, cost: Cost
    ) -> Estimate:
        """Return the expected time of one call, and its error.

        The model predicts the logarithm of the time. The expected time is longer than the mean of
        the logarithm suggests, more so if less is known. So the planner does not choose a primitive
        only because it might be fast.
        """
        if cost.seconds is not None:  # other devices take part; measurements say nothing about them
            return BUILT_IN.estimate(primitive, operation, shape, cost)
        regression = self._regression(type(primitive))
        found = regression.predict(primitive.name, place(primitive, operation, shape, cost))
        built_in = BUILT_IN.estimate(primitive, operation, shape, cost).seconds
        logarithm = self._common[primitive.device.kind] + found.mean + found.error**2 / 2
        return Estimate(built_in * exp(logarithm), found.error)

    def known(self) -> Iterator[Fitted]:
        """Yield the accuracy of predictions for each primitive of the catalogue."""
        for name, kind in self._kinds.items():
            own = np.array([s.logarithm for s in self._samples[kind] if s.name == name])
            if not own.size:
                yield Fitted(name, 0, None, None)
                continue
            misses = self._regression(kind).of(name)
            yield Fitted(name, own.size, _root_mean_square(misses), _root_mean_square(own))

    def _in_common(self, device: DeviceKind) -> float:
        """Return the median logarithm of measured over modelled seconds on a device."""
        logarithms = [
            sample.logarithm
            for samples in self._samples.values()
            for sample in samples
            if sample.device == device
        ]
        return float(np.median(logarithms)) if logarithms else 0.0

    def _regression(self, kind: type) -> Regression:
        """Return the regression of a kind, made on first use: few searches need all of them."""
        if kind not in self._regressions:
            samples = self._samples.get(kind, [])
            self._regressions[kind] = Regression(
                [sample.name for sample in samples],
                np.array([sample.place for sample in samples]).reshape(len(samples), AXES),
                np.array([s.logarithm - self._common[s.device] for s in samples]),
            )
        return self._regressions[kind]


class _Sample:
    """A measurement, its place, and the logarithm of its seconds over the built-in model's."""

    def __init__(self, primitive: Primitive, measured: Measurement) -> None:
        operation, shape = measured.operation, measured.shape
        cost = primitive.cost(operation, shape)
        built_in = BUILT_IN.estimate(primitive, operation, shape, cost).seconds
        self.name, self.device = primitive.name, primitive.device.kind
        self.place = place(primitive, operation, shape, cost)
        self.logarithm = log(measured.seconds / built_in)


def _root_mean_square(logarithms: Numbers) -> float:
    return float(np.sqrt(np.mean(np.square(logarithms))))


HEADER = ("primitive", "measurements", "error", "error of the built-in model")


def calibration_table(known: Iterable[Fitted]) -> str:
    """Return a table with a row for each primitive; a dash means no measurement."""
    rows = [
        (
            fitted.primitive,
            f"{fitted.measurements}",
            _share(fitted.error),
            _share(fitted.built_in_error),
        )
        for fitted in known
    ]
    return "\n".join(aligned([HEADER, *rows], left=1))


def _share(error: float | None) -> str:
    return "-" if error is None else f"{error:.0%}"
