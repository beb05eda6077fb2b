"""How fast the machine is now, beside when it was calibrated: some of the same calls once more.

A machine that others share, or whose clock follows its temperature, is not always equally fast, and
predictions from measured costs are of the time of the calibration.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from random import Random

from znni.calibration.choice import measurements_of
from znni.calibration.database import CostDatabase, Measurement
from znni.calibration.measure import Workbench
from znni.calibration.shapes import Call
from znni.machine.detect import detect_for
from znni.plans.primitive import Catalogue, on_device
from znni.primitives.catalogue import catalogue

# The calls took so many seconds, take so many bytes at most, and keep so few together.
SHORTEST, LONGEST = 0.02, 0.2
MOST_WORKING, MOST_RESIDENT = 2**28, 2**29
CALLS = 40

LEAST_SECONDS = 2.0  # a processor that others share is slow or fast for tenths of a second


class CalibratedCalls:
    """Calls that were measured in a calibration, ready to be made again: for a child process.

    Args:
        threads: worker threads of the host.
        names: of the primitives that count, with all others of their kinds.
    """

    def __init__(self, threads: int, names: list[str]) -> None:
        primitives = on_device(catalogue(detect_for("cpu", threads=threads)), "cpu")
        kinds = {type(primitives[name]) for name in names if name in primitives}
        known = {name: found for name, found in primitives.items() if type(found) in kinds}
        chosen = _some_of(measurements_of(known, CostDatabase()), known)
        calls = [(known[one.primitive], Call(one.operation, one.shape)) for one in chosen]
        workbench = Workbench(calls)
        self._ready = [workbench.ready(*call) for call in calls]
        self._then = sum(one.seconds for one in chosen)

    def count(self) -> int:
        """How many there are."""
        return len(self._ready)

    def slower(self) -> float:
        """How many times as long they take, one after another, as in the calibration."""
        start, passes = time.perf_counter(), 0
        while not passes or time.perf_counter() - start < LEAST_SECONDS:
            for run in self._ready:
                run()
            passes += 1
        return (time.perf_counter() - start) / (passes * self._then)


def _some_of(measurements: Iterable[Measurement], primitives: Catalogue) -> list[Measurement]:
    """Ones that suit, at random, and ever the same."""
    found, left = list(measurements), MOST_RESIDENT
    Random(0).shuffle(found)
    chosen: list[Measurement] = []
    for one in found:
        memory = primitives[one.primitive].cost(one.operation, one.shape).memory
        few = memory.working <= MOST_WORKING and memory.resident <= left
        if few and SHORTEST <= one.seconds <= LONGEST and len(chosen) < CALLS:
            chosen.append(one)
            left -= memory.resident
    return chosen
