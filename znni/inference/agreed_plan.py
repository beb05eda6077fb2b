"""The plan of a run, as its output and all its processes agree, and what is left to compute.

A new run finds a plan, and notes it in the output. A run that resumes goes on with that plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from znni.core.errors import InvalidInput, option
from znni.core.plan_options import Choices
from znni.core.shapes import Box
from znni.core.volume import Output, ResumeState
from znni.engine.run_state import Progress, no_progress
from znni.engine.statistics import normalized
from znni.engine.stopwatch import Stopwatch, TimedBlock
from znni.engine.tiles import Job, Remaining
from znni.inference.plan_choice import given_or_found
from znni.inference.request import OpenRequest, Requirements
from znni.plans.plan import Plan

log = logging.getLogger("znni")

# Checks the given plan, or finds one that meets the requirements.
Find: TypeAlias = Callable[[Plan | None, Requirements], Plan]
# The same, while a stopwatch counts the time as planning.
TimedFind: TypeAlias = Callable[[Plan | None, Requirements, TimedBlock], Plan]


def normalized_as_begun(
    resume_state: ResumeState, asked: OpenRequest, progress: Progress = no_progress
) -> OpenRequest:
    """Return the request with the numbers that normalize its input.

    An output that was begun has them in its plan. Otherwise the volume is read, if they depend on
    its values.

    Args:
        resume_state: what there is of the output.
        asked: the run's input and network.
        progress: called while the volume is read.

    Raises:
        InvalidInput: the output was begun with other numbers than the network file has.
        UnusableValues: a value of the input is NaN, or infinite as float32.
    """
    if not resume_state.plan:
        return replace(asked, network=normalized(asked.network, asked.volume, progress))
    known = Plan.from_json(resume_state.plan).network.scaling
    if asked.network.scaling.statistics not in ((), known.statistics):
        raise InvalidInput(
            f"the unfinished output is {known}, and the network file has other statistics; leave "
            f"them out, or start afresh with {option('resume', False)}"
        )
    if asked.network.scaling.box not in (None, known.box):
        raise InvalidInput(
            f"the unfinished output is cropped to {known.box}, and the network file has another "
            f"box; leave it out, or start afresh with {option('resume', False)}"
        )
    return replace(asked, network=asked.network.scaled_by(known))


def plan_of_rest(
    resume_state: ResumeState, given: Plan | None, asked: OpenRequest, find: Find
) -> tuple[Plan, list[Plan]]:
    """Return the plan for what is left of an output.

    An unfinished output goes on with its own plan: the patches lie where they would have lain, and
    the primitives add up in the same order. If no limits are given, that plan has as much memory as
    before.

    Args:
        resume_state: what there is of the output.
        given: a plan made earlier, if there is one.
        asked: the run's network and output, and what the plan may use.
        find: checks the given plan, or finds one.

    Returns:
        The plan, and the one that computed the finished part of the output, if there is one.

    Raises:
        InvalidInput: the output's plan, or the given one, cannot be run.
        DoesNotFit: no plan stays within the memory allowed.
    """
    if not resume_state.plan and not resume_state.history:
        return find(given, asked), []
    try:
        earlier = Plan.from_json(resume_state.plan)
        if given is None or _compute_alike(given, earlier):
            again = replace(asked, choices=_with_memory_of(earlier, asked.choices))
            return given_or_found(earlier, again), [earlier]
    except InvalidInput as error:
        error.add_note(
            f"the unfinished output was begun with that plan; go on with another plan by "
            f"{option('plan', 'FILE')}, or start afresh with {option('resume', False)}"
        )
        raise
    log.warning(
        "the unfinished output goes on with another plan than it has: its values are within the "
        "primitives' accuracy of one run's, and not the same to the last bit"
    )
    return find(given, asked), [earlier]


def agreed_plan(
    output: Output,
    given: Plan | None,
    asked: OpenRequest,
    find: TimedFind,
    stopwatch: Stopwatch,
    progress: Progress,
) -> tuple[Plan, list[Plan], OpenRequest]:
    """Return the plan for what is left of an output, and note it there.

    If several processes write the output, all follow the plan that was noted first. The volume is
    read for its statistics only after a plan is found, because that can take hours.

    Args:
        given: as for ``plan_of_rest``.
        asked: as for ``plan_of_rest``.
        find: as for ``plan_of_rest``. It may pause the count of planning.
        stopwatch: counts the time of planning, and that of reading as opening.
        progress: called while the volume is read.

    Returns:
        As ``plan_of_rest``, and the request with the numbers that normalize its input.

    Raises:
        InvalidInput: the plan cannot be run, or other processes follow another plan.
        DoesNotFit: no plan stays within the memory allowed.
        UnusableValues: as for ``normalized_as_begun``.
    """

    def plan_for(given: Plan | None, request: OpenRequest) -> tuple[Plan, list[Plan]]:
        with stopwatch.during("planning") as planning:
            return plan_of_rest(
                output.resume_state,
                given,
                request,
                lambda plan, wanted: find(plan, wanted, planning),
            )

    if output.resume_state.plan:
        asked = normalized_as_begun(output.resume_state, asked)
    plan, earlier = plan_for(given, asked)
    with stopwatch.during("opening"):
        known = normalized_as_begun(output.resume_state, asked, progress)
    plan = plan.normalized_as(known.network)
    if known.network.window != asked.network.window:  # windows lie over a part of the volume
        plan, earlier = plan_for(given, known)
    asked = known
    note_new_plan(output, plan, earlier)
    noted = output.resume_state.plan
    if noted in ("", plan.to_json()) or _compute_alike(plan, Plan.from_json(noted)):
        return plan, earlier, asked
    if given is not None:
        raise InvalidInput(
            f"other parts of the output follow another plan than the given one; leave out "
            f"{option('plan', 'FILE')}, or write elsewhere"
        )
    return *plan_for(None, asked), asked


def note_new_plan(output: Output, plan: Plan, earlier: list[Plan]) -> None:
    """Note the plan of the rest in an output, unless it computes like the plan noted there."""
    if not earlier or not _compute_alike(plan, earlier[0]):
        output.note_plan(plan.to_json())


def remaining_of(
    output: Output, job: Job, plan: Plan, share: list[Box] | None, afresh: str
) -> Remaining:
    """Return what is left to be computed of an output that is begun.

    Args:
        job: which output is wanted.
        plan: the plan for what is left.
        share: the boxes that this process writes; None if it writes all.
        afresh: what starts the run afresh, for a message.
    """
    history = output.resume_state.history
    remaining = Remaining(job, history, share, swept=plan.network.swept_along)
    if history:
        finished = remaining.total - remaining.voxels
        log.warning(
            "going on where an earlier run stopped, with %.0f%% of %s finished%s",
            100 * finished / remaining.total,
            "the output" if share is None else "this part",
            f"; {afresh}" if share is None else "",
        )
    return remaining


def _with_memory_of(plan: Plan, choices: Choices) -> Choices:
    """Return the choices, with the memory that a plan had if they state none.

    If another number of GPUs is chosen, the host's memory depends on that number, and on what is
    available.
    """
    if str(choices.gpus) != str(plan.workers):
        return choices
    on_gpu = plan.gpu_memory.total if plan.gpu_memory else None
    return replace(
        choices,
        ram=plan.memory.total if choices.ram is None else choices.ram,
        gpu_memory=on_gpu if choices.gpu_memory is None else choices.gpu_memory,
    )


def _compute_alike(one: Plan, other: Plan) -> bool:
    """Return whether two plans of a network do the same arithmetic in the same order."""
    return _arithmetic(one) == _arithmetic(other)


def _arithmetic(plan: Plan) -> object:
    segments = [
        (part.sub_batch, [(step.operation, step.primitive, step.shape_in) for step in part.steps])
        for part in plan.segments
    ]
    return plan.patch, plan.device, plan.machine.host.threads, segments
