"""The workers of a run."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from znni.core.options import OutputType
from znni.engine.pipeline import RunState
from znni.engine.stopwatch import Stopwatch
from znni.engine.workers.lanes import Lanes
from znni.engine.workers.serving import Prepare
from znni.engine.workers.slots import SlotShape
from znni.engine.workers.worker import Worker, end_all
from znni.plans.job_seconds import Stage
from znni.plans.plan import Plan


@dataclass(frozen=True)
class Member:
    """What a worker is made with.

    Attributes:
        name: for messages.
        prepare: makes what computes patches, in its process.
        environment: variables of that beside those of this one, such as those that say which GPU
            it sees.
    """

    name: str
    prepare: Prepare
    environment: Mapping[str, str]


class Fleet:
    """Processes that compute patches of a plan, until nobody refers to them.

    While they get ready, the first blocks of a run are read; what keeps them from it is raised by
    that run. Where a run fails they are ended, and started afresh for the next.

    Args:
        plan: what they run.
        members: what each is made with.
        dtype: of the output.

    Attributes:
        plan: what they run.

    """

    def __init__(
        self,
        plan: Plan,
        members: Sequence[Member],
        dtype: OutputType,
    ) -> None:
        self.plan = plan
        self._members = members
        network = plan.network
        self._shape = SlotShape(
            (network.in_features, *plan.input_patch), (network.out_features, *plan.patch), dtype
        )
        self._workers: list[Worker] = []
        self._accounted: Mapping[Stage, float] = {}
        weakref.finalize(self, _end, self._workers)
        self._start()

    def _start(self) -> None:
        self._accounted = {}
        try:
            for made in self._members:
                self._workers.append(Worker(made.name, self._shape, made.environment))
            for worker, made in zip(self._workers, self._members, strict=True):
                worker.prepare(made.prepare)
        except BaseException:
            _end(self._workers)
            raise

    def run_volume(self, state: RunState, stopwatch: Stopwatch) -> None:
        """Compute what is left of a job, as ``run_volume`` does, and blocks in any order.

        Args:
            state: what is left of the job.
            stopwatch: learns how long the workers took to get ready, how long blocks were written,
                and how long a worker was at each of the other stages, on average.

        Raises:
            BaseException: what was raised in one of them, as it got ready or later.
            RunFailed: one is gone.
        """
        if not self._workers:  # an earlier run failed
            self._start()
        lanes = Lanes(self.plan, state)
        try:
            lanes.run(self._workers, stopwatch)
        except BaseException:
            _end(self._workers)
            raise
        finally:
            stopwatch.add("reading", lanes.reading / len(self._members))
            stopwatch.add("writing", lanes.writing)
        before, self._accounted = self._accounted, self._busy()
        for stage, seconds in self._accounted.items():
            stopwatch.add(stage, (seconds - before.get(stage, 0.0)) / len(self._members))

    def _busy(self) -> dict[Stage, float]:
        """Seconds that all workers together have been at each stage."""
        accounts = [worker.account().seconds.busy.by_stage() for worker in self._workers]
        return {stage: sum(busy[stage] for busy in accounts) for stage in accounts[0]}

    @property
    def peak_memory(self) -> int:
        """The most bytes that were resident in each, added up; what they share counts in each."""
        return sum(worker.account().peak_memory for worker in self._workers)

    @property
    def gpu_peak_memory(self) -> int:
        """The most bytes that arrays took of one of the GPUs."""
        return max(worker.account().gpu_peak_memory for worker in self._workers)


def _end(workers: list[Worker]) -> None:
    end_all(workers)
    workers.clear()
