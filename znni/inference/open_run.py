"""One run in three parts: open everything and find a plan, compute blocks, complete the output.

Each part may be called in a thread of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.core.processors import DeviceKind
from znni.core.volume import Action, NewOutput, Output
from znni.engine.block_reader import BlockReader
from znni.engine.pipeline import Turn
from znni.engine.recheck import recheck
from znni.engine.report import Report
from znni.engine.run_state import Progress, RunState, no_progress
from znni.engine.stage_chain import nothing_to_do
from znni.engine.stopwatch import Stopwatch
from znni.engine.volume_runner import VolumeRunner
from znni.inference.agreed_plan import agreed_plan, remaining_of
from znni.inference.model_choice import open_faster
from znni.inference.output_attributes import as_run, provenance
from znni.inference.parts import memory_ran_out, share_of, why_no_blocks
from znni.inference.plan_choice import check_choices, tell_nobody
from znni.inference.planning import accuracy_note
from znni.inference.request import OpenRequest, Request
from znni.inference.resuming import identified, resume_advice
from znni.inference.session import Session
from znni.machine.arrays import high_water_mark, reset_high_water_mark
from znni.network.activations import TRAITS
from znni.network.weights import Weights
from znni.plans.job_seconds import SecondsAround
from znni.plans.plan import Plan
from znni.primitives.cpu.common.lazy_kernel import compiled_seconds
from znni.volumes.grid_attributes import grid_attributes
from znni.volumes.locate import open_output, writer_at
from znni.volumes.writer import Share

log = logging.getLogger("znni")


def begin_run(
    request: Request,
    session: Session,
    *,
    waited: float | SecondsAround = 0.0,
    progress: Progress = no_progress,
    reading: Progress | None = None,
    opened: Action = nothing_to_do,
    on_begin: Callable[[Plan, int, int], None] = tell_nobody,
) -> Callable[[], Report]:
    """Compute all blocks of a run, and return the function that completes the output.

    The errors are those of ``infer``.

    Args:
        request: the run.
        session: finds the plan and prepares it. It may let a thread wait for the disk.
        waited: as for ``infer``.
        progress: as for ``infer``.
        reading: called instead while the volume is read for its statistics; None: ``progress``.
        opened: called when input and output are open, and before anything is computed.
        on_begin: called once, before the first block is computed, and after a finished one is
            computed again. It takes the plan, the voxels that are written already, and those
            wanted.

    Returns:
        A function that waits for the disk, completes the output and returns the report. It is to be
        called once, and raises ``RunFailed`` if the output cannot be completed.
    """
    run = OpenRun(request, session, waited, progress, reading, opened)
    return run.compute(on_begin)


class OpenRun:
    """A run whose input and output are open, and whose plan is found.

    Arguments and errors are those of ``begin_run``. ``close`` gives up a run that is not computed.
    """

    def __init__(
        self,
        request: Request,
        session: Session,
        waited: float | SecondsAround = 0.0,
        progress: Progress = no_progress,
        reading: Progress | None = None,
        opened: Action = nothing_to_do,
    ) -> None:
        before = waited if isinstance(waited, SecondsAround) else SecondsAround(start=waited)
        self._request, self._session, self._progress = request, session, progress
        self._stopwatch = stopwatch = Stopwatch(before)
        asked = _open(request, stopwatch)
        with stopwatch.during("opening"):
            weights = session.weights_for(asked.network, request.weights, request.random_seed)
            self._share = share = share_of(asked, lambda: self.plan)
            wanted, self._output = _open_output(asked, weights, share)
            gives_shares = TRAITS[asked.network.last_activation].is_share
            if asked.stored.dtype == "uint8" and not gives_shares:
                session.warn(
                    "uint8 output holds 0 to 1; what the network gives beyond that is clipped"
                )
        self._weights, job, output = weights, asked.job, self._output
        with self._abandoning():
            opened()
            self.plan, self._earlier, self._asked = agreed_plan(
                output, request.plan, asked, session.plan_for, stopwatch, reading or progress
            )
            with stopwatch.during("opening"):
                agreed = self._asked
                self._reader = BlockReader(agreed.volume, job, agreed.network, weights, agreed.mask)
                self._expected = session.expected(self.plan)
                self._attributes = provenance(self.plan, weights, agreed, self._expected)
                self._attributes |= grid_attributes(wanted.grid)
                output.begin(self._attributes, self.plan.patch)
                boxes = share and share(self.plan.patch)
                self._remaining = remaining_of(output, job, self.plan, boxes, request.afresh)

    def compute(
        self, on_begin: Callable[[Plan, int, int], None] = tell_nobody
    ) -> Callable[[], Report]:
        """Compute all blocks, and return a function that completes the output."""
        session, stopwatch, output = self._session, self._stopwatch, self._output
        asked, reader, remaining = self._asked, self._reader, self._remaining
        last_steps = list[tuple[Action, Action]]()
        with self._abandoning(), session.prepared.running() as turn, ExitStack() as ending:
            left, done = remaining.voxels, remaining.total - remaining.voxels
            plan = session.instead_of(self.plan, asked)
            if plan is not self.plan:  # memory ran out under it after this run was opened
                self._expected = session.expected(plan)
                output.note_plan(plan.to_json())
            state = RunState(
                reader, output, asked.stored.dtype, remaining, self._progress, asked.labels
            )
            smaller = partial(_smaller, session, output, asked)
            runner = session.runner(plan, self._weights, session.times, asked.stored)
            compiled_before = compiled_seconds()
            marks = list[int]()
            own = _own_turn(turn, marks, partial(_check_plan, session, runner, asked))
            accuracy = asked.choices.accuracy
            before = Turn(own.wait_to_compute, own.wait_to_finish)
            spent = recheck(runner, state, output, asked.job, accuracy, smaller, before)
            if done:  # the rate of the progress counts from here
                self._progress(done, remaining.total)
            on_begin(self._expected, done, remaining.total)
            try:
                spent += runner.run(state, smaller, last=not session.keeps, turn=own)
            finally:
                if remaining.voxels < left:  # also if the run was stopped
                    session.note_compiled(runner.plans[-1])
            gpu_peak = runner.gpu_peak_memory if plan.gpu_memory else 0
            taken = runner.workers_memory + max([*marks, high_water_mark()])
            measured = as_run(
                runner.plans, spent + stopwatch.seconds, taken, reader.skipped, gpu_peak,
                self._earlier, output.resume_state.plan,
            )  # fmt: skip
            with stopwatch.during("finishing"):
                ending.enter_context(session.releasing(runner))
                output.finish(measured, lambda *both: last_steps.append(both))
            note = accuracy_note(runner.plans[-1], accuracy)
            report = Report(
                self._expected, tuple(runner.plans[1:]), left, spent, taken,
                self._attributes | measured, note, done, reader.skipped, gpu_peak,
                compiled_seconds() - compiled_before, why_no_blocks(asked, plan),
            )  # fmt: skip
            waits = [(session.begin_to_wait(wait), name) for wait, name in last_steps]
            released = ending.pop_all()

        def complete() -> Report:
            with self._abandoning():
                with stopwatch.during("finishing"):
                    with released:
                        for wait, name in waits:
                            wait()
                            name()
                    session.done(plan, asked.choices)
                complete_report = replace(report, time=report.time + stopwatch.seconds)
                log.info("%s", complete_report)
                is_whole = not (self._request.plan or self._earlier or self._share)
                session.note_phases(complete_report, plan, whole=is_whole)
            return complete_report

        return complete

    def close(self) -> None:
        """Give up a run that is not computed. What an earlier run has finished stays."""
        self._output.abandon()

    @contextmanager
    def _abandoning(self) -> Iterator[None]:
        """Abandon the output if there is an error, and add a note on the output to the error."""
        try:
            yield
        except BaseException as error:
            error.add_note(self._output.abandon(resume_advice(error)))
            raise


def _own_turn(turn: Turn, marks: list[int], check: Action) -> Turn:
    """Return a turn in which a run's peak of memory counts from its first turn to compute.

    Args:
        turn: the turn among all runs.
        marks: takes the peak in bytes when all blocks are computed.
        check: called when it is the run's turn to compute.
    """

    def wait_to_compute() -> None:
        turn.wait_to_compute()
        check()
        if not marks:  # a run that goes on with a smaller plan begins to compute again
            marks.append(0)
            reset_high_water_mark()

    def marked(end: Action) -> Action:
        def act() -> None:
            marks.append(high_water_mark())  # the next run resets it
            end()

        return act

    ends = {"finishing": marked(turn.finishing), "computed": marked(turn.computed)}
    return turn._replace(wait_to_compute=wait_to_compute, **ends)


def _check_plan(session: Session, runner: VolumeRunner, asked: OpenRequest) -> None:
    """Check that memory has not run out under a run's plan while the run waited for its turn.

    Raises:
        MemoryError: it has, in another run. This one then goes on as that did.
    """
    latest = runner.plans[-1]
    if session.instead_of(latest, asked) is not latest:
        raise MemoryError


def _smaller(
    session: Session, output: Output, asked: OpenRequest, failed: Plan, short: DeviceKind
) -> Plan:
    """Return the plan that an output goes on with after memory ran out, and note it there.

    Raises:
        DoesNotFit: there is none, or the output is one of several parts.
    """
    if asked.request.part is not None:
        raise memory_ran_out(failed, short)
    smaller = session.smaller(failed, short, asked)
    output.note_plan(smaller.to_json())
    return smaller


def _open(request: Request, stopwatch: Stopwatch) -> OpenRequest:
    """Open a request, and count how long that takes."""
    with stopwatch.during("opening"):
        network = request.loaded
    with stopwatch.during("importing" if network.models else "opening"):
        return open_faster(replace(request, network=network))


def _open_output(
    asked: OpenRequest, weights: Weights, share: Share | None
) -> tuple[NewOutput, Output]:
    """Return the description of an output, and the output, opened."""
    source, out, mask = asked.request.source, asked.request.out, asked.region.mask
    wanted = identified(asked, weights) if isinstance(out, str | Path) else asked.wanted
    output: Output
    try:
        if share is None:
            output = open_output(out, source, wanted, mask)
        else:
            output = writer_at(out, source, mask).join(wanted, share)
    except InvalidInput:
        check_choices(asked)  # a wrong option is reported first: the output may be right
        raise
    return wanted, output
