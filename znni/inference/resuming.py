"""Going on with an unfinished output: of the same values, by the same plan."""

from __future__ import annotations

import logging
from dataclasses import replace
from hashlib import sha256

from znni.core.errors import InvalidInput, Unreadable, UnusableValues, option
from znni.core.options import Choices
from znni.core.shapes import Box, Vec3
from znni.core.volume import SAME_COMMAND, Begun, NewOutput, Output
from znni.engine.pipeline import Progress
from znni.engine.tiles import Job, Remaining
from znni.inference.plan_choice import given_or_found
from znni.inference.request import Request
from znni.network.weights import Weights
from znni.plans.plan import Plan
from znni.volumes.fingerprint import DIGITS, fingerprint

log = logging.getLogger("znni")


def identified(asked: Request, weights: Weights) -> NewOutput:
    """The output wanted, with all that its bytes depend on beside the plan.

    Args:
        asked: the run's input, network and output.
        weights: the network's parameters.
    """
    network, job, wanted, mask = asked.network, asked.job, asked.wanted, asked.mask
    whole = Box(Vec3(0, 0, 0), job.volume)
    seen = Box(job.origin, job.origin + job.output + network.field_of_view - 1)
    scaling = network.scaling
    layers = repr((network.in_features, network.layers)).encode()
    known = {
        "the weights": weights.sha256[:DIGITS],
        "the network": sha256(layers).hexdigest()[:DIGITS],
        "the scaling of the input": f"value * {scaling.scale!r} + {scaling.offset!r}",
        **fingerprint(asked.source, asked.volume, seen.intersection(whole) or whole),
        "the region": str(Box(job.center, job.center + job.output)),
        "the border": "valid" if seen.within(whole) else f"same, {job.pad}",
        "the type of the output": wanted.dtype,
        "its place in space": str(wanted.grid),
        "its compression": wanted.compression or "as usual",
        "its shards": "some" if wanted.sharded else "none",
    }
    if mask:
        known |= fingerprint(asked.mask_source, mask, Box(Vec3(0, 0, 0), mask.size), "the mask")
    return replace(wanted, identity=known)


def plan_of_rest(begun: Begun, given: Plan | None, asked: Request) -> tuple[Plan, list[Plan]]:
    """The plan of what is left of an output.

    An unfinished one goes on with the plan that it has, whose patches lie where they would have
    lain, and whose primitives add up in the same order. Without limits given, that has as much
    memory as it had.

    Args:
        begun: what there is of it.
        given: a plan made earlier, if there is one.
        asked: the run's network and output, and what the plan may use.

    Returns:
        The plan, and the one that computed what is finished of the output, if anything is.

    Raises:
        InvalidInput: the plan that the output has, or the one given, cannot be run.
        DoesNotFit: no plan stays within the memory allowed.
    """
    if not begun.history:
        return given_or_found(given, asked), []
    try:
        earlier = Plan.from_json(begun.plan)
        if given is None or _compute_alike(given, earlier):
            again = replace(asked, choices=_with_memory_of(earlier, asked.choices))
            return given_or_found(earlier, again), [earlier]
    except InvalidInput as error:
        error.add_note(
            f"that is the plan of the unfinished output: give another one to go on with, as "
            f"{option('plan', 'FILE')}, or {option('resume', False)} to start afresh"
        )
        raise
    log.warning(
        "the unfinished output goes on with another plan than it has: its values are within the "
        "primitives' accuracy of one run's, and not the same to the last bit"
    )
    return given_or_found(given, asked), [earlier]


def note_plan(output: Output, plan: Plan, earlier: list[Plan]) -> None:
    """Note the plan of the rest in an output, but for one that computes like the one it has."""
    if not earlier or not _compute_alike(plan, earlier[0]):
        output.go_on_with(plan.to_json())


def remaining_of(output: Output, job: Job, progress: Progress) -> Remaining:
    """What is left to be computed of an output that is described, told to those who watch."""
    history = output.begun.history
    remaining = Remaining(job.output, history)
    if history:
        finished = job.output.volume - remaining.voxels
        log.warning(
            "going on where an earlier run stopped, with %.0f%% of the output finished; %s starts "
            "afresh",
            100 * finished / job.output.volume,
            option("resume", False),
        )
        progress(finished, job.output.volume)
    return remaining


def way_on(error: BaseException) -> str:
    """What to do with the finished blocks that a run leaves which an error has stopped."""
    if isinstance(error, UnusableValues):
        return f"with the input mended, start afresh by {option('resume', False)}"
    if isinstance(error, Unreadable):
        return (
            f"{SAME_COMMAND}, if the input is as it was when that began, its time of change "
            f"included (cp -p keeps it)"
        )
    return SAME_COMMAND


def _with_memory_of(plan: Plan, choices: Choices) -> Choices:
    """The choices, with the memory that a plan was given where they state none.

    With other GPUs than it had, the host's memory goes by how many they are, and what is available.
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
    """Whether two plans of a network do the same arithmetic in the same order."""
    return _arithmetic(one) == _arithmetic(other)


def _arithmetic(plan: Plan) -> object:
    segments = [
        (part.sub_batch, [(step.operation, step.primitive, step.shape_in) for step in part.steps])
        for part in plan.segments
    ]
    return plan.patch, plan.device, plan.machine.host.threads, segments
