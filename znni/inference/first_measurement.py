"""The first measurement of a machine: before a long run, and only without a calibration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from znni.calibration.plan_measurement import unmeasured_calls
from znni.core.errors import InvalidInput
from znni.core.logged import telling_if_long
from znni.inference import planning
from znni.inference.plan_choice import machine_here, tell_nobody
from znni.inference.request import Requirements
from znni.inference.tuning import tune
from znni.machine.busy import slowdown
from znni.plans.band import NOTABLE_SLOWDOWN
from znni.plans.plan import Plan

log = logging.getLogger("znni")

# A run is worth a measurement if it is predicted to take so many times as long.
WORTH = 20

# The least and the most seconds that are measured for a run. Less would tell little.
LEAST_SECONDS = 2.0
MOST_SECONDS = 60.0


def may_be_measured(plan: Plan) -> bool:
    """Return whether a run is long enough for a measurement before it."""
    return _budget(plan) >= LEAST_SECONDS


def _budget(plan: Plan) -> float:
    """Return the seconds that are measured for a run, if it is long."""
    return min(plan.seconds / WORTH, MOST_SECONDS)


def fastest_measured(
    plan: Plan, required: Requirements, measuring: Callable[[], AbstractContextManager[None]]
) -> Plan:
    """Return the fastest plan for a long run, by times of this machine.

    If kinds of primitives were never measured, the steps that they compute are measured first. Then
    another plan may be faster, whose steps are measured in turn. Nothing is measured while other
    programs keep cores busy.

    Args:
        plan: the fastest plan by what is known.
        required: requirements that it meets.
        measuring: releases other memory, and returns the ``with`` block for a measurement.
    """
    if slowdown() >= NOTABLE_SLOWDOWN:
        return plan  # times beside other programs would mislead all later plans
    if not may_be_measured(plan) or required.choices.costs != "auto" or plan.machine.absent:
        return plan
    search = planning.search_for(required, machine_here(required.choices))
    if not unmeasured_calls(plan, search.catalogue, search.model).own:
        return plan
    with measuring(), telling_if_long("measuring this machine for the plan"):
        try:
            return tune(search, plan, _budget(plan), tell_nobody, quick=True).after
        except InvalidInput as error:  # the times cannot be kept
            log.warning("%s", error)
            return plan
