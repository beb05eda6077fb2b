"""Keeping the times of calls in a calibration or a run."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from znni.calibration.choice import measurements_of
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase, Measurement, today
from znni.calibration.shapes import Call
from znni.core.errors import InvalidInput
from znni.core.processors import HOST, DeviceKind
from znni.machine.detect import detect_host
from znni.machine.machine import Machine
from znni.plans.primitive import Catalogue, Primitive, on_device
from znni.plans.segments import Step
from znni.primitives.catalogue import catalogue

log = logging.getLogger("znni")

# The largest error of predictions that are not to be improved, and how many times its error a
# prediction is off if that is news. Other programs often make a tenth of difference.
SURE = 0.15
UNLIKELY = 2.0

LATEST_CALLS = 1000  # calls of a step that count: a run may take days


def record(timings: Iterable[tuple[Primitive, Call, float]], database: CostDatabase) -> None:
    """Keep the seconds of single calls of primitives.

    Raises:
        InvalidInput: the database cannot be written.
    """
    by_conditions: dict[Conditions, list[Measurement]] = {}
    for primitive, call, seconds in timings:
        measured = Measurement(primitive.name, primitive.version, *call, seconds, today())
        by_conditions.setdefault(Conditions.of(primitive.device), []).append(measured)
    for conditions, measurements in by_conditions.items():
        database.add(conditions, measurements)


def record_steps(
    timings: Iterable[tuple[Step, float]],
    machine: Machine,
    database: CostDatabase,
    device: DeviceKind = HOST,
) -> None:
    """Keep the seconds of single calls of a plan's steps on this machine.

    Args:
        timings: times of warm calls. Steps computed in pieces are left out: their times are not
            known per piece.
        machine: the plan's machine, as ``_primitives_here`` takes it.
        database: database to store them in.
        device: device that ran the steps.

    Raises:
        InvalidInput: the database cannot be written.
    """
    primitives = _primitives_here(machine, device)
    of_primitives = (
        (primitives[step.primitive], Call(step.operation, step.shape_in), seconds)
        for step, seconds in timings
        if isinstance(step.primitive, str) and step.primitive in primitives
    )
    record(of_primitives, database)


def refine(
    timings: Iterable[tuple[Step, float]], machine: Machine, device: DeviceKind = HOST
) -> None:
    """Add the times of a run to those of a calibration, if its device has had one.

    Times that were predicted well are left out. They would tell little, and each addition makes the
    plans that are kept useless. An unreadable or unwritable file is only logged, because the run
    itself has succeeded.

    Args:
        timings: times of warm calls of the steps.
        machine: the plan's machine, as ``_primitives_here`` takes it.
        device: device that ran the steps.
    """
    database = CostDatabase()
    try:
        if next(measurements_of(_primitives_here(machine, device), database), None):
            news = [(step, seconds) for step, seconds in timings if _is_news(step, seconds)]
            record_steps(news, machine, database, device)
    except InvalidInput as error:
        log.warning("%s", error)


def _is_news(step: Step, seconds: float) -> bool:
    """Return whether a step took longer or shorter than its prediction's error makes likely.

    Nothing is news of a cost that says its own seconds: no measurement changes what it says.
    """
    if step.cost.seconds is not None:
        return False
    return abs(math.log(seconds / step.seconds)) > UNLIKELY * min(step.error, SURE)


def _primitives_here(machine: Machine, device: DeviceKind) -> Catalogue:
    """Return the primitives that ran a plan's steps.

    Args:
        machine: the plan's machine. Its GPUs are those of this machine, which are not looked at
            again. Its host may be another one's, if the plan is, but for the number of threads.
        device: device that ran the steps.
    """
    here = replace(detect_host(threads=machine.host.threads), gpus=machine.gpus)
    return on_device(catalogue(here), device)


class StepTimes:
    """Collects the times of a plan's steps while it runs."""

    def __init__(self) -> None:
        self._seconds: dict[Step, deque[float]] = {}
        # The same by the number of an object, which is hashed at once. It is kept with the object.
        self._by_number: dict[int, tuple[Step, deque[float]]] = {}

    def __call__(self, step: Step, seconds: float) -> None:
        """Add the seconds of a call. A step's first call is skipped: it includes other costs."""
        known = self._by_number.get(id(step))
        if known is None:
            is_first = step not in self._seconds
            calls = self._seconds.setdefault(step, deque(maxlen=LATEST_CALLS))
            self._by_number[id(step)] = known = step, calls
            if is_first:
                return
        known[1].append(seconds)

    def warm(self) -> Iterator[tuple[Step, float]]:
        """Yield each step that ran more than once, with the seconds of a fast call.

        Only a tenth of the calls after the first are faster. Slower calls may have waited for
        threads that read and write. A plan counts these waits separately.
        """
        for step, seconds in self._seconds.items():
            if seconds:
                yield step, sorted(seconds)[len(seconds) // 10]
