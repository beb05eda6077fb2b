"""How fast the machine is now, beside when it was calibrated: some of the same calls once more.

A machine that others share, or whose clock follows its temperature, is not always equally fast, and
predictions from measured costs are of the time of the calibration.
"""

from __future__ import annotations

import time
from random import Random

from znni.calibration.choice import measurements_of
from znni.calibration.database import CostDatabase, Measurement
from znni.calibration.measure import Workbench
from znni.calibration.shapes import Call
from znni.machine import detect_for
from znni.primitive import catalogue, on_device

# The calls took so many seconds, take so many bytes at most, and keep so few that all are ready.
SHORTEST, LONGEST = 0.02, 0.2
MOST_WORKING, MOST_RESIDENT = 2**28, 2**22
CALLS = 40


class CalibratedCalls:
    """Calls that were measured in a calibration, ready to be made again: for a child process.

    Args:
        threads: worker threads of the host.
        names: of the primitives that count.
    """

    def __init__(self, threads: int, names: list[str]) -> None:
        primitives = on_device(catalogue(detect_for("cpu", threads=threads)), "cpu")
        known = {name: primitives[name] for name in names if name in primitives}

        def suits(measured: Measurement) -> bool:
            memory = known[measured.primitive].cost(measured.operation, measured.shape).memory
            few = memory.working <= MOST_WORKING and memory.resident <= MOST_RESIDENT
            return few and SHORTEST <= measured.seconds <= LONGEST

        found = [one for one in measurements_of(known, CostDatabase()) if suits(one)]
        chosen = Random(0).sample(found, min(CALLS, len(found)))
        calls = [(known[one.primitive], Call(one.operation, one.shape)) for one in chosen]
        workbench = Workbench(calls)
        self._ready = [workbench.ready(*call) for call in calls]
        self._then = sum(one.seconds for one in chosen)

    def count(self) -> int:
        """How many there are."""
        return len(self._ready)

    def slower(self) -> float:
        """How many times as long they take, one after another, as in the calibration."""
        start = time.perf_counter()
        for run in self._ready:
            run()
        return (time.perf_counter() - start) / self._then
