"""Plans found and prepared, and kept for further jobs of the same shapes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from znni.calibration.compiled_notes import note_compiled
from znni.calibration.overhead_figures import cuda_seconds
from znni.calibration.phase_notes import AROUND, FixedSeconds, kind_of, note
from znni.calibration.record import StepTimes, refine
from znni.core.plan_options import ANYTHING, Choices
from znni.core.processors import GPU, HOST, DeviceKind
from znni.core.volume import Action
from znni.engine.executor import Measured, not_measured
from znni.engine.pipeline import PreparedPlan
from znni.engine.report import Report
from znni.engine.stopwatch import TimedBlock
from znni.engine.volume_runner import VolumeRunner
from znni.inference.build_runner import prepare
from znni.inference.first_measurement import fastest_measured
from znni.inference.plan_choice import given_or_found, smaller_plan, tell_nobody
from znni.inference.planning import as_here
from znni.inference.prepared_plans import Prepare, PreparedPlans, prepared_as, without_statistics
from znni.inference.prestart import several_waiting
from znni.inference.request import OpenRequest, Requirements
from znni.machine.gpus import forget_answer
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.network.weights import Weights, weights_for
from znni.plans.plan import Plan
from znni.plans.stored_values import AS_COMPUTED, Stored

log = logging.getLogger("znni")

if TYPE_CHECKING:
    from concurrent.futures import Future

    from znni.engine.workers.processes import WaitingProcesses

# The number of plans kept; they take little memory.
MOST_PLANS = 256


class Session:
    """Plans, prepared plans and weights for one run, or for many.

    With ``choices``, plans are kept for further jobs of the same shape. Prepared ones are kept
    within the memory allowed (``PreparedPlans``). That is looked up before each new plan, and
    before one is prepared.

    One thread runs volumes. Others may find plans for the next ones, and do further work in the
    memory that is left.

    Args:
        choices: limits and choices for all plans of many runs; None: there is one run.
        waiting: processes for several GPUs that have started already.
        weights: weights of the run that a thread reads or draws already (``weights_ahead``).
        measures: whether this machine may be measured before a long run. A dry run measures none.
        followed: whether each run begins before the one before it has ended.

    Attributes:
        keeps: whether prepared plans stay for a further run.
        times: collects the times of steps.
        searching: the seconds of searches for the plan of one run.
        prepared: the plans that are prepared, and the memory that they take.
    """

    def __init__(
        self,
        choices: Choices | None = None,
        *,
        waiting: WaitingProcesses | None = None,
        weights: Future[Weights] | None = None,
        measures: bool = True,
        followed: bool = False,
    ) -> None:
        self.keeps = choices is not None
        self.times = StepTimes()
        self.searching = 0.0
        self._choices = choices or ANYTHING
        self._waiting = waiting
        self._ahead = weights
        self._measures = measures
        self._followed = followed
        self._measured: dict[tuple[int, DeviceKind], Machine] = {}
        self._warned: set[str] = set()
        self._compiled: set[Hashable] = set()
        self._weights: dict[Hashable, tuple[object, Weights]] = {}
        self._planning = RLock()
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._plans_ahead: OrderedDict[Hashable, Plan] = OrderedDict()
        self._smaller: dict[Hashable, Plan] = {}
        self.prepared = PreparedPlans(self._choices)
        self._waiting_thread: ThreadPoolExecutor | None = None

    def weights_for(
        self, network: Network, given: Weights | str | Path | None, random_seed: int | None
    ) -> Weights:
        """Return the weights of all runs. They are checked, and hashed, in the first one alone."""
        if self._ahead is not None:
            return self._ahead.result()
        asked = network.weighted, network.weights, id(given), random_seed
        if asked not in self._weights:  # the given ones are kept, too, so that their id is theirs
            self._weights[asked] = given, weights_for(network, given, random_seed)
        return self._weights[asked][1]

    def plan_for(
        self, given: Plan | None, required: Requirements, planning: TimedBlock | None = None
    ) -> Plan:
        """Return the plan kept for such a job; else check the given one, or find the fastest.

        Args:
            given: a plan made earlier, or None.
            planning: counts the time of planning, without measurements; None: nothing does.
        """
        job = _job(required), given is None
        with self._planning:
            plan = self._plans.pop(job, None)
            if plan is None:
                here = self._within_limits(required)
                plan = self._plans_ahead.pop(job, None) or self._found(given, here)
                if given is None:
                    plan = self._measured_plan(plan, here, planning)
            if self.keeps:
                self._keep_plan(job, plan)
        return plan.normalized_as(required.network)

    def plan_ahead(self, required: Requirements) -> Plan:
        """Return the plan of a run whose input does not exist yet. The run then finds it here.

        The machine is not measured, because other work goes on. No processes start: they would take
        memory of the host and of GPUs that this work takes.
        """
        job = _job(required), True
        with self._planning:
            plan = self._plans.get(job) or self._plans_ahead.get(job)
            if plan is None:
                plan = self._found(None, self._within_limits(required), starts=False)
                self._plans_ahead[job] = plan
                while len(self._plans_ahead) > MOST_PLANS:
                    self._plans_ahead.popitem(last=False)
        return plan

    def expected(self, plan: Plan) -> Plan:
        """Return a plan with the seconds that a run is expected to take here, as ``as_here``."""
        return as_here(plan, searched=self.searching > 0)

    def runner(
        self,
        plan: Plan,
        weights: Weights,
        measured: Measured = not_measured,
        stored: Stored = AS_COMPUTED,
    ) -> VolumeRunner:
        """Return a runner of a plan. It takes a prepared plan that is kept, or prepares it."""
        find = self.prepared.get if self.keeps else self.prepared.take
        make, kind = self._preparation(weights, measured, stored)
        return VolumeRunner(plan, lambda plan: find(plan, kind, make))

    def build_ahead(self, plan: Plan, weights: Weights, stored: Stored, allowed: int) -> None:
        """Make the plan of the first run ready, as ``PreparedPlans.build_ahead`` does.

        Args:
            weights: its network's parameters.
            stored: how values are stored.
            allowed: the bytes of the host that may be taken in all.
        """
        make, kind = self._preparation(weights, self.times, stored)
        self.prepared.build_ahead(plan, kind, make, allowed)

    def _preparation(
        self, weights: Weights, measured: Measured, stored: Stored
    ) -> tuple[Prepare, Hashable]:
        """Return the function that prepares a plan, and the kind of the prepared plan.

        The kind has the weights, the type of the output, and whether it is values or labels.
        """

        def make(plan: Plan) -> PreparedPlan:
            return prepare(plan, weights, measured, stored, self._take_waiting())

        output = stored.dtype, stored.label_maps, stored.label_itemsize
        return make, (output, weights.sha256)  # other networks may have equal layers

    def smaller(self, failed: Plan, short: DeviceKind, required: Requirements) -> Plan:
        """Return a plan that takes less memory than a failed one. If it is new, release all plans.

        Runs of equal jobs that are open already go on with it, too, by ``instead_of``.
        """
        if (plan := self.instead_of(failed, required)) is not failed:
            return plan
        self.prepared.clear()
        plan = smaller_plan(failed, short, required)
        if prepared_as(plan) != prepared_as(failed):
            self._smaller[_job(required), prepared_as(failed)] = plan
        for job in ((_job(required), False), (_job(required), True)):
            if job in self._plans:
                self._keep_plan(job, plan)
        return plan

    def instead_of(self, plan: Plan, required: Requirements) -> Plan:
        """Return a plan, or a smaller one with which a run went on when memory ran out under it."""
        smaller = self._smaller.get((_job(required), prepared_as(plan)))
        return smaller.normalized_as(required.network) if smaller else plan

    def releasing(self, runner: VolumeRunner) -> AbstractContextManager[None]:
        """Give back the memory of a plan whose blocks are all computed, if no run follows.

        Other processes go within a ``with`` block, and are gone after it.
        """
        return nullcontext() if self.keeps else runner.released()

    def begin_to_wait(self, wait: Action) -> Action:
        """Wait for the disk in a thread if runs follow. Return the step that waits for the end."""
        if not self.keeps:
            return wait
        with self._planning:
            self._waiting_thread = self._waiting_thread or ThreadPoolExecutor(1, "znni-disk")
        return self._waiting_thread.submit(wait).result

    def done(self, plan: Plan, choices: Choices) -> None:
        """Add the times of a finished run's steps to those of calibration, at the end of all."""
        self._measured |= _timed_on(plan, choices)
        if not self.keeps:
            self._refine()

    def note_compiled(self, plan: Plan) -> None:
        """Note that the kernels of a plan are compiled, once for each plan."""
        if plan.computation not in self._compiled:
            note_compiled(plan)
            self._compiled.add(plan.computation)

    def note_phases(self, report: Report, found: Plan, *, whole: bool) -> None:
        """Note how long the fixed phases of a finished run took, for later predictions.

        Nothing is noted if the run went on with a smaller plan, or if nobody knows how long its
        process took to start.

        Args:
            report: the report of the run.
            found: its plan as the search found it, without seconds that runs noted. These change
                while other runs note theirs.
            whole: whether the run found its plan itself, computed all of its output, and did not go
                on with an earlier one.
        """
        plan, spent = report.plan, report.time
        if report.fallbacks or not whole or not spent.around.start:
            return
        cuda = None
        if plan.gpu_memory:
            known = cuda_seconds(plan.machine)
            cuda = max(0.0, spent.building - plan.time.building + known)
        planning = spent.around.planning - self.searching
        passes = found.time.around.finishing > AROUND.finishing
        note(
            kind_of(plan),
            FixedSeconds(
                start=spent.around.start,
                planning=None if spent.around.measuring else max(0.0, planning),
                searching=None if spent.around.measuring else self.searching or None,
                cuda=cuda,
                finishing=None if passes else spent.around.finishing,
            ),
        )

    def warn(self, message: str) -> None:
        """Log a warning, unless it was logged for another run."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s", message)

    def close(self) -> None:
        """Release all, and add the times of all steps to those of calibration."""
        if self._waiting_thread:
            self._waiting_thread.shutdown()
        self.prepared.clear()
        self._refine()

    def _measured_plan(
        self, found: Plan, required: Requirements, planning: TimedBlock | None
    ) -> Plan:
        """Return the fastest plan of a long run, for which this machine may be measured first.

        A part of a run does not measure: all parts follow one plan.
        """
        is_part = isinstance(required, OpenRequest) and required.request.part
        if is_part or not self._measures:
            return found

        def measuring() -> AbstractContextManager[None]:
            self.prepared.clear()
            return planning.paused_for("measuring") if planning else nullcontext()

        return fastest_measured(found, required, measuring)

    def _within_limits(self, required: Requirements) -> Requirements:
        """Return requirements within the memory that is allowed now, if runs follow."""
        if not self.keeps:
            return required
        allowed = self.prepared.look_up_limits()
        on_gpu = allowed[GPU] or self._choices.gpu_memory
        choices = replace(self._choices, ram=allowed[HOST], gpu_memory=on_gpu)
        return replace(required, choices=choices, followed=self._followed)

    def _found(self, given: Plan | None, required: Requirements, *, starts: bool = True) -> Plan:
        """Return the given plan, checked, or the fastest one.

        Args:
            given: the plan, or None.
            starts: whether processes for several GPUs start meanwhile, if none are kept.
        """
        if self.keeps:
            return given_or_found(given, required, held=self.prepared.held(HOST))
        tell_machine = self._start_processes if starts else tell_nobody
        return given_or_found(given, required, tell=self._add_search, tell_machine=tell_machine)

    def _add_search(self, seconds: float) -> None:
        self.searching += seconds

    def _start_processes(self, machine: Machine) -> None:
        """Start the processes of a run on several GPUs, unless they have started."""
        if self._waiting is None and machine.used_gpus > 1:
            self._waiting = several_waiting(gpu.number for gpu in machine.gpus[: machine.used_gpus])

    def _take_waiting(self) -> WaitingProcesses | None:
        """Return the processes that have started. Those that the caller leaves end with them.

        The run is planned by now. A session that keeps processes starts none ahead.
        """
        if self.keeps:
            return None
        forget_answer()
        waiting, self._waiting = self._waiting, None
        return waiting

    def _refine(self) -> None:
        """Add the times of steps to those of calibration."""
        for (_, device), machine in self._measured.items():
            refine(self.times.warm(), machine, device)

    def _keep_plan(self, job: Hashable, plan: Plan) -> None:
        self._plans[job] = plan
        while len(self._plans) > MOST_PLANS:
            self._plans.popitem(last=False)


def _timed_on(plan: Plan, choices: Choices) -> dict[tuple[int, DeviceKind], Machine]:
    """Return a plan's machine for its threads and devices; none if costs are built in."""
    if choices.costs == "built-in":
        return {}
    machine = plan.machine
    return {(machine.host.threads, part.device): machine for part in plan.parts}


def _job(required: Requirements) -> Hashable:
    """Return a value that is equal for jobs with the same plan."""
    return without_statistics(required.network), required.job.output, required.stored
