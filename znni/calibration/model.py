"""The planner's model of times, made from measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from math import exp, log
from typing import get_args

import numpy as np

from planner.cost_model import CostModel, Factor, Factors, built_in_seconds
from znni.calibration.database import Measurement
from znni.calibration.features import AXES, Numbers, Point, point_of
from znni.calibration.regression import REPEATED, Regression
from znni.calibration.shapes import Call
from znni.core.processors import DeviceKind
from znni.core.shapes import Shape5
from znni.core.text import aligned
from znni.network.layers import Operation, unnamed
from znni.plans.band import MEASURED_HERE
from znni.plans.primitive import Catalogue, Primitive, TakesTimePerItem

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


class MeasuredModel(CostModel):
    """The built-in model's times, multiplied by factors that measurements determine.

    The median factor of all measurements on a device applies to all its primitives. The rest is
    determined per kind. A kind is one class of primitives, for example one algorithm with tiles of
    different sizes.

    Args:
        measurements: valid measurements of primitives in the catalogue; at least one.
        catalogue: primitives that the model must predict.
    """

    def __init__(self, measurements: Iterable[Measurement], catalogue: Catalogue) -> None:
        self._kinds = {name: type(primitive) for name, primitive in catalogue.items()}
        self._samples: dict[type, list[_Sample]] = {kind: [] for kind in self._kinds.values()}
        self._times: dict[tuple[str, Call], int] = {}
        self._sure_points = set[tuple[str, Point]]()
        days = []
        for measured in measurements:
            sample = _Sample(catalogue[measured.primitive], measured)
            self._samples[self._kinds[sample.name]].append(sample)
            days.append(measured.day)
            self._times[sample.name, Call(measured.operation, measured.shape)] = measured.times
        for samples in self._samples.values():
            del samples[:-MOST_MEASUREMENTS]
            sure = (sample for sample in samples if sample.times >= REPEATED)
            self._sure_points.update((sample.name, sample.point) for sample in sure)
        known = len({s.name for samples in self._samples.values() for s in samples})
        all_ = len(catalogue)
        part = "" if known == all_ else f", {known} of {all_} primitives"
        self.source = f"{MEASURED_HERE} on {max(days).isoformat()}{part}"
        self._common = {kind: self._in_common(kind) for kind in get_args(DeviceKind)}
        self._regressions: dict[type, Regression] = {}
        self._factors: dict[Point, Factors] = {}
        self._known: dict[tuple[type, Point], dict[str, Factor]] = {}

    @property
    def fingerprint(self) -> str:
        """A text that differs if the measurements differ."""
        lines = sorted(
            f"{sample.name} {sample.point} {sample.logarithm!r} {sample.times}"
            for samples in self._samples.values()
            for sample in samples
        )
        return sha256("\n".join(lines).encode()).hexdigest()

    def factors(self, operation: Operation, shape: Shape5) -> Factors:
        """Return the function from a primitive to its factor for one call.

        The model predicts the logarithm of the factor. The expected factor is larger than the mean
        of the logarithm suggests, more so if less is known. So the planner does not choose a
        primitive only because it might be fast.
        """
        where = point_of(operation, shape)
        if where not in self._factors:
            self._factors[where] = self._factors_at(where)
        return self._factors[where]

    def _factors_at(self, where: Point) -> Factors:
        """Return the factors at a point; those of a kind are predicted when the first is needed."""
        known: dict[str, Factor] = {}

        def factor(primitive: Primitive) -> Factor:
            if primitive.name not in known:
                known.update(self._of_kind_at(primitive, _point_for(primitive, where)))
            return known[primitive.name]

        return factor

    def _of_kind_at(self, primitive: Primitive, where: Point) -> dict[str, Factor]:
        """Return the factors of all primitives of a primitive's kind at a point, by name."""
        kind = type(primitive)
        if (kind, where) not in self._known:
            names = [name for name, its_kind in self._kinds.items() if its_kind is kind]
            common = self._common[primitive.device.kind]
            self._known[kind, where] = {
                name: Factor(exp(common + each.mean + each.error**2 / 2), each.error)
                for name, each in zip(
                    names, self._regression(kind).predict(names, where), strict=True
                )
            }
        return self._known[kind, where]

    def has_measured(self, primitive: Primitive) -> bool:
        """Return whether a primitive of the same kind was measured."""
        return bool(self._samples.get(type(primitive)))

    def times(self, primitive: Primitive, call: Call) -> int:
        """Return how often a call was measured, whatever the names of its layers."""
        return self._times.get((primitive.name, Call(unnamed(call.operation), call.shape)), 0)

    def is_sure(self, primitive: Primitive, call: Call) -> bool:
        """Return whether a call was measured so often that its time is sure.

        Args:
            call: the call. The extents of its images do not count.
        """
        return (primitive.name, _point_for(primitive, point_of(*call))) in self._sure_points

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
                np.array([sample.point for sample in samples]).reshape(len(samples), AXES),
                np.array([s.logarithm - self._common[s.device] for s in samples]),
                [sample.times for sample in samples],
            )
        return self._regressions[kind]


class _Sample:
    """A measurement, its point, and the logarithm of its seconds over the nominal ones."""

    def __init__(self, primitive: Primitive, measured: Measurement) -> None:
        operation, shape = measured.operation, measured.shape
        nominal = built_in_seconds(primitive, primitive.cost(operation, shape))
        self.name, self.device, self.times = primitive.name, primitive.device.kind, measured.times
        self.point = _point_for(primitive, point_of(operation, shape))
        self.logarithm = log(measured.seconds / nominal)


def _point_for(primitive: Primitive, where: Point) -> Point:
    """Return a point without its batch, if a primitive takes its time per item."""
    return (0.0, *where[1:]) if isinstance(primitive, TakesTimePerItem) else where


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
