"""The options of each step of some segments: those that fit beside the other steps."""

from __future__ import annotations

from dataclasses import replace

from planner.choices import Slot, undominated_within
from planner.micro_batches import Limit
from planner.partition_bounds import ROUNDED
from planner.step_options import StepOptions


def slots_that_fit(
    bare: list[Slot],
    bounds: list[float],
    options: StepOptions,
    allowed: float,
    limit: float,
) -> list[Slot]:
    """Return a slot for each step with the options that fit; nothing if no choice of them fits.

    There are three checks, from cheap to costly. The bounds cost nothing. The fastest relaxed
    options need few prices. The lists of pieces are made last, and only for some steps. Those
    are the steps for which the best choices for the other steps leave time and memory.

    Args:
        bare: the slots with the bare steps.
        bounds: lower bounds on the seconds of all runs of each step.
        options: the source of the steps' options.
        allowed: the bytes for all steps.
        limit: the seconds of all steps.
    """
    least = list(bounds)
    # The longest steps tell most about the sum, so they are priced first.
    for index in sorted(range(len(bare)), key=lambda index: -least[index]):
        (step,), slot, left = bare[index].options, bare[index], limit - sum(least)
        if not left > 0:
            return []
        cutoff = least[index] + ROUNDED * left
        seconds = options.fastest(
            step, allowed - slot.held, cutoff / slot.runs, in_place=slot.in_place
        )
        least[index] = max(least[index], slot.runs * seconds)
    slots: list[Slot] = []
    for slot, fastest in zip(bare, least, strict=True):
        left = limit - sum(least)
        if not left > 0:
            return []
        (step,), cutoff = slot.options, ROUNDED * (fastest + left) / slot.runs
        steps = options.relaxed(
            step, in_place=slot.in_place, copied_bytes=slot.copied_bytes, cutoff=cutoff
        )
        fitting = slot.fitting(steps, allowed)
        if not fitting.options:
            return []
        slots.append(fitting)
    if not options.divides:
        return slots
    for index, slot in enumerate(bare):
        if slot.options[0].shape_in.n > 1:
            others = [*slots[:index], *slots[index + 1 :]]
            fitting = _slot_with_pieces(slot, slots[index], others, options, allowed, limit)
            if not fitting.options:
                return []
            slots[index] = fitting
    return slots


def _slot_with_pieces(
    bare: Slot,
    relaxed: Slot,
    others: list[Slot],
    options: StepOptions,
    allowed: float,
    limit: float,
) -> Slot:
    """Return a step's slot with lists of pieces that fit beside the other steps.

    Args:
        bare: the slot with the bare step.
        relaxed: the slot with the step's relaxed options.
        others: the slots of the other steps, with options that are relaxed or not.
        options: the source of the step's options.
        allowed: the bytes for all steps.
        limit: the seconds of all steps.
    """
    (step,) = bare.options
    arrays = bare.peak(step)
    beside = undominated_within(others, allowed, limit - bare.runs * relaxed.options[0].seconds)
    piece_limit = Limit(
        ((limit - it.seconds) / bare.runs, allowed - it.resident - arrays) for it in beside
    )
    if not any(
        piece_limit.holds(candidate.seconds, relaxed.peak_and_resident(candidate) - arrays)
        for candidate in relaxed.options
    ):
        return replace(bare, options=())
    return bare.fitting(
        options(step, in_place=bare.in_place, copied_bytes=bare.copied_bytes, limit=piece_limit),
        allowed,
    )
