"""Plans and processes made ready, and kept for further jobs of the same shapes."""

from __future__ import annotations

import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from znni.calibration.overhead_figures import cuda_seconds
from znni.calibration.phase_notes import AROUND, FixedSeconds, kind_of, note
from znni.calibration.record import StepTimes, refine
from znni.core.options import ANYTHING, AS_COMPUTED, Choices, Stored
from znni.core.processors import GPU, HOST, DeviceKind, has_own_memory
from znni.core.volume import Step
from znni.engine.executor import Measured, not_measured
from znni.engine.oom_fallback import VolumeRunner
from znni.engine.pipeline import Processes
from znni.engine.report import Report
from znni.inference.build_runner import prepare
from znni.inference.plan_choice import given_or_found, machine_here, smaller_plan
from znni.inference.planning import as_here
from znni.inference.prestart import several_waiting
from znni.inference.request import Requirements
from znni.machine.gpus import forget_answer
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.network.weights import Weights, weights_for
from znni.plans.plan import Plan

log = logging.getLogger("znni")

if TYPE_CHECKING:
    from concurrent.futures import Future

    from znni.engine.workers.processes import WaitingProcesses

# The number of plans kept; they take little memory.
MOST_PLANS = 256


class Session:
    """Plans, processes and weights for one run, or for many.

    With ``choices``, plans and processes are kept for further jobs of the same shape. All that is
    kept counts to the memory allowed. What was used longest ago is released first. The memory
    allowed is looked up before each new plan, and before processes are made.

    Args:
        choices: limits and choices for all plans of many runs; None: there is one run.
        waiting: processes for several GPUs that have started already.
        weights: weights of the run that a thread reads or draws already (``weights_ahead``).

    Attributes:
        keeps: whether processes stay for a further run.
        times: collects the times of steps.
        searching: the seconds of searches for the plan of one run.
    """

    def __init__(
        self,
        choices: Choices | None = None,
        *,
        waiting: WaitingProcesses | None = None,
        weights: Future[Weights] | None = None,
    ) -> None:
        self.keeps = choices is not None
        self.times = StepTimes()
        self.searching = 0.0
        self._choices = choices or ANYTHING
        self._waiting = waiting
        self._ahead = weights
        self._allowed: dict[DeviceKind, int] = {}
        self._measured: dict[tuple[int, DeviceKind], Machine] = {}
        self._warned: set[str] = set()
        self._weights: tuple[object, object, Weights] | None = None
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._processes: OrderedDict[Hashable, Processes] = OrderedDict()
        self._waiting_thread: ThreadPoolExecutor | None = None

    def weights_for(
        self, network: Network, given: Weights | str | Path | None, random_seed: int | None
    ) -> Weights:
        """Return the weights of all runs. They are checked, and hashed, in the first one alone."""
        if self._ahead is not None:
            return self._ahead.result()
        asked = network.weighted, network.weights, id(given), random_seed
        if self._weights is None or self._weights[0] != asked:
            self._weights = asked, given, weights_for(network, given, random_seed)
        return self._weights[-1]

    def plan_for(self, given: Plan | None, required: Requirements) -> Plan:
        """Return the plan kept for such a job; else check the given one, or find the fastest."""
        if not self.keeps:
            return given_or_found(
                given, required, tell=self._add_search, tell_machine=self._start_processes
            )
        job = _job(required), given is None
        found = self._plans.pop(job, None)
        if found is None:
            self._look_up_limits()
            limits = replace(
                self._choices,
                ram=self._allowed[HOST],
                gpu_memory=self._allowed[GPU] or self._choices.gpu_memory,
            )
            here = replace(required, choices=limits)
            found = given_or_found(given, here, held=self._held(HOST))
        self._keep_plan(job, found)
        return found.normalized_as(required.network)

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
        """Return a runner of a plan, by the processes kept for it. See ``prepare``."""

        def prepared(plan: Plan) -> Processes:
            return prepare(plan, weights, measured, stored, self._take_waiting())

        made = stored.dtype, stored.label_maps, stored.label_itemsize
        return VolumeRunner(plan, lambda plan: self._ready(plan, weights, prepared, made))

    def smaller(self, failed: Plan, short: DeviceKind, required: Requirements) -> Plan:
        """Release all that is kept, and return a plan that takes less memory than a failed one."""
        self._processes.clear()
        gc.collect()  # tracebacks may still refer to it
        found = smaller_plan(failed, short, required)
        for job in ((_job(required), False), (_job(required), True)):
            if job in self._plans:
                self._keep_plan(job, found)
        return found

    def releasing(self, runner: VolumeRunner) -> AbstractContextManager[None]:
        """Give back the memory of a plan whose blocks are all computed, if no run follows.

        Other processes go within a ``with`` block, and are gone after it.
        """
        return nullcontext() if self.keeps else runner.released()

    def begin_to_wait(self, wait: Step) -> Step:
        """Wait for the disk in a thread if runs follow. Return the step that waits for the end."""
        if not self.keeps:
            return wait
        self._waiting_thread = self._waiting_thread or ThreadPoolExecutor(1, "znni-disk")
        return self._waiting_thread.submit(wait).result

    def done(self, plan: Plan, choices: Choices) -> None:
        """Add the times of a finished run's steps to those of calibration, at the end of all."""
        self._measured |= _timed_on(plan, choices)
        if not self.keeps:
            self._refine()

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
        passes = found.time.around.finishing > AROUND.finishing
        note(
            kind_of(plan),
            FixedSeconds(
                start=spent.around.start,
                planning=max(0.0, spent.around.planning - self.searching),
                searching=self.searching or None,
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
        self._processes.clear()
        self._refine()

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

    def _ready(
        self,
        plan: Plan,
        weights: Weights,
        prepared: Callable[[Plan], Processes],
        made: Hashable,
    ) -> Processes:
        """Return the processes of a plan, after releasing what does not fit beside them.

        Args:
            plan: the plan.
            weights: the parameters. Networks of equal layers may have different ones.
            prepared: prepares the processes.
            made: what they make of a voxel: values or labels, and of which type.
        """
        if not self.keeps:
            return prepared(plan)
        key = _computation(plan), weights.sha256, made
        found = self._processes.pop(key, None)
        if found is None:
            self._look_up_limits()
        while self._processes and not self._fits(plan):
            self._processes.popitem(last=False)
        if found is None:
            found = prepared(plan)
        self._processes[key] = found
        return found

    def _fits(self, plan: Plan) -> bool:
        """Return whether a plan runs within the memory allowed, beside all that is kept."""
        on_gpu = plan.gpu_memory.total if plan.gpu_memory else 0
        return (
            plan.memory.total + self._held(HOST) <= self._allowed[HOST]
            and on_gpu + self._held(GPU) <= self._allowed[GPU]
        )

    def _look_up_limits(self) -> None:
        """Look up the memory allowed now; what is kept is a part of it.

        It never grows while something is kept, because plans made before stay within it.
        """
        here = machine_here(self._choices)
        if self._processes:
            left = here.host.memory + self._held(HOST)
            self._allowed[HOST] = min(self._allowed[HOST], left)
        else:
            on_gpu = here.gpus[0].memory if here.gpus else 0
            self._allowed = {HOST: here.host.memory, GPU: on_gpu}

    def _held(self, device: DeviceKind) -> int:
        """Return the bytes of a device that the kept processes take."""
        return sum(_idle_memory(kept.plan, device) for kept in self._processes.values())


def _timed_on(plan: Plan, choices: Choices) -> dict[tuple[int, DeviceKind], Machine]:
    """Return a plan's machine for its threads and devices; none if costs are built in."""
    if choices.costs == "built-in":
        return {}
    machine = plan.machine
    return {(machine.host.threads, part.device): machine for part in plan.parts}


def _idle_memory(plan: Plan, device: DeviceKind) -> int:
    """Return the most bytes that a plan made ready takes, beside the process and the weights."""
    if has_own_memory(device):
        return plan.gpu_memory.total if plan.gpu_memory else 0
    memory = plan.memory
    if plan.workers > 1:  # its processes have weights of their own
        return memory.total
    return memory.total - memory.process - memory.weights


def _job(required: Requirements) -> Hashable:
    """Return a value that is equal for jobs with the same plan."""
    return _without_statistics(required.network), required.job.output, required.stored


def _computation(plan: Plan) -> Hashable:
    """Return a value that is equal for plans that the same processes can run."""
    network, host = _without_statistics(plan.network), plan.machine.host
    gpus = tuple(gpu.number for gpu in plan.machine.gpus[: plan.workers])
    return network, plan.computation, host.threads, gpus, plan.time.in_turn


def _without_statistics(network: Network) -> Network:
    """Return a network without what depends on the values of one volume."""
    if not network.scaling.statistics:
        return network
    return replace(network, scaling=replace(network.scaling, statistics=()))
