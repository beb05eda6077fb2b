"""Going on where memory runs out, with a plan that takes less of it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

from znni.core.errors import OutOfDeviceMemory
from znni.core.text import in_units
from znni.engine.pipeline import Runner, RunState, run_volume
from znni.engine.stopwatch import Stopwatch
from znni.engine.workers.fleet import Fleet
from znni.machine.device_arena import device_peak
from znni.machine.machine import DeviceKind
from znni.plans.job_seconds import JobSeconds
from znni.plans.plan import Plan

log = logging.getLogger("znni")


class EnduringRunner:
    """Runs volumes through a plan and, where memory runs out, through ones that take less.

    What a plan has written by then stays, and the next one computes the rest.

    Args:
        plan: what to run first.
        prepare: makes a plan ready to run.

    Attributes:
        plans: those that were run so far, the first one first.
    """

    def __init__(self, plan: Plan, prepare: Callable[[Plan], Runner | Fleet]) -> None:
        self.plans = [plan]
        self._prepare = prepare
        self._runner: Runner | Fleet | None = None

    def run(self, state: RunState, smaller: Callable[[Plan, DeviceKind], Plan]) -> JobSeconds:
        """Compute what is left of a job, as ``run_volume`` does, and tell where the time went.

        A runner made for one job is kept for the next.

        Args:
            state: what is left of the job.
            smaller: gives the plan to go on with where memory ran out under another, of a device;
                where there is none, raises what ends the run.
        """
        remaining, stopwatch = state.remaining, Stopwatch()

        def short_of() -> DeviceKind | None:
            """Run to the end, or to where the memory of a device runs out."""
            try:
                with stopwatch.during("building"):
                    runner = self._runner = self._runner or self._prepare(self.plans[-1])
                if isinstance(runner, Fleet):
                    runner.run_volume(state, stopwatch)
                else:
                    run_volume(state, runner, stopwatch)
            except MemoryError as error:
                return "gpu" if isinstance(error, OutOfDeviceMemory) else "cpu"
            return None

        while remaining.voxels and (short := short_of()):
            self._runner = None
            gc.collect()  # what the failed patch held, wherever tracebacks still refer to it
            failed = self.plans[-1]
            with stopwatch.during("building"):
                found = smaller(failed, short)
            self.plans.append(found)
            _tell(failed, found, short, remaining.voxels / remaining.output.volume)
        return stopwatch.seconds

    @property
    def workers_memory(self) -> int:
        """The peak resident bytes of the last plan's workers, if it has any."""
        return self._runner.peak_memory if isinstance(self._runner, Fleet) else 0

    @property
    def gpu_peak_memory(self) -> int:
        """The most bytes that arrays of the last plan took of a GPU, if they took any."""
        return self._runner.gpu_peak_memory if isinstance(self._runner, Fleet) else device_peak()


def _tell(failed: Plan, found: Plan, short: DeviceKind, left: float) -> None:
    log.warning(
        "memory%s ran out under a plan of %s: going on with one of %s, in patches of %s, for the "
        "%.0f%% of the output that are left",
        " of the GPU" if short == "gpu" else "",
        in_units(failed.memory_on(short).total),
        in_units(found.memory_on(short).total),
        found.patch,
        100 * left,
    )
