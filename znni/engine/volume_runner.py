"""Runs a volume, and goes on with a smaller plan if memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from znni.core.memory_errors import OutOfDeviceMemory
from znni.core.processors import GPU, HOST, DeviceKind, has_own_memory
from znni.core.text import in_units
from znni.engine.pipeline import ALONE, PreparedPlan, Turn, run_volume
from znni.engine.run_state import RunState
from znni.engine.stage_chain import nothing_to_do
from znni.engine.stopwatch import Stopwatch
from znni.plans.job_seconds import JobSeconds
from znni.plans.plan import Plan

log = logging.getLogger("znni")

# Returns the plan to continue with after memory of a device ran out under another plan. If there is
# none, it raises the error that ends the run.
Smaller: TypeAlias = Callable[[Plan, DeviceKind], Plan]


class VolumeRunner:
    """Runs volumes through a plan and, if memory runs out, through plans that take less.

    Blocks that a plan has written stay, and the next plan computes the rest.

    Args:
        plan: the first plan.
        prepare: prepares a plan. From ``Session.runner``, it asks ``PreparedPlans``, which calls
            ``build_runner.prepare`` if the plan is not kept.

    Attributes:
        plans: the plans that were run so far, in order.
    """

    def __init__(self, plan: Plan, prepare: Callable[[Plan], PreparedPlan]) -> None:
        self.plans = [plan]
        self._prepare = prepare
        self._prepared: PreparedPlan | None = None

    def run(
        self,
        state: RunState,
        smaller: Smaller,
        *,
        last: bool = False,
        turn: Turn = ALONE,
    ) -> JobSeconds:
        """Compute what is left of a job with ``run_volume``, and return where the time went.

        A plan that is prepared for one job stays for the next.

        Args:
            state: what is left of the job.
            smaller: finds the plan to go on with.
            last: whether no run follows, as for ``run_volume``.
            turn: as for ``run_volume``.
        """
        remaining, stopwatch = state.remaining, Stopwatch()

        def run_until_short() -> DeviceKind | None:
            """Run to the end, or until the memory of a device runs out. Return that device."""
            try:
                with stopwatch.during("building"):
                    prepared = self._prepared = self._prepared or self._prepare(self.plans[-1])
                run_volume(state, prepared, stopwatch, last=last, turn=turn)
            except MemoryError as error:
                return GPU if isinstance(error, OutOfDeviceMemory) else HOST
            return None

        while remaining.voxels and (short := run_until_short()):
            self._prepared = None
            gc.collect()  # what the failed patch held, wherever tracebacks still refer to it
            failed = self.plans[-1]
            with stopwatch.during("building"):
                smaller_plan = smaller(failed, short)
            self.plans.append(smaller_plan)
            _tell(failed, smaller_plan, short, remaining.voxels / remaining.total)
        return stopwatch.seconds

    @contextmanager
    def released(self) -> Iterator[None]:
        """Give back the memory of the last plan at once. No run may follow.

        Other processes end during a ``with`` block, and have ended after it.
        """
        ended = self._prepared.end() if self._prepared else nothing_to_do
        self._prepared = None
        if self.plans[-1].gpu_memory:
            gc.collect()  # references alone are known to free only what the host holds
        try:
            yield
        finally:
            ended()

    @property
    def workers_memory(self) -> int:
        """The peak resident bytes of the last plan's workers; 0 if it has none."""
        return self._prepared.workers_memory if self._prepared else 0

    @property
    def gpu_peak_memory(self) -> int:
        """The most bytes of a GPU that arrays of the last plan took; 0 if they took none."""
        return self._prepared.gpu_peak_memory if self._prepared else 0


def _tell(failed: Plan, smaller: Plan, short: DeviceKind, left: float) -> None:
    log.warning(
        "memory%s ran out under a plan of %s: going on with one of %s, in patches of %s, for the "
        "%.0f%% of the output that are left",
        " of the GPU" if has_own_memory(short) else "",
        in_units(failed.memory_on(short).total),
        in_units(smaller.memory_on(short).total),
        smaller.patch,
        100 * left,
    )
