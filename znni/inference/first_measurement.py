"""The first measurement of a machine: before a long run, and only without a calibration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter

from znni.calibration.plan_measurement import measure, unmeasured_calls
from znni.core.errors import InvalidInput
from znni.core.logged import telling_if_long
from znni.inference import planning
from znni.inference.plan_choice import machine_here
from znni.inference.request import Requirements
from znni.machine.busy import slowdown
from znni.plans.band import NOTABLE_SLOWDOWN
from znni.plans.plan import Plan
from znni.primitives.cpu.common.lazy_kernel import compiled_seconds

log = logging.getLogger("znni")

# A run is worth a measurement if it is predicted to take so many times as long.
WORTH = 20

# The least and the most seconds that are measured for a run. Less would tell little.
LEAST_SECONDS = 2.0
MOST_SECONDS = 60.0

# Plans that are measured one after another. Each is the fastest by the measurements so far.
MOST_PLANS = 3


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
    budget = _budget(plan)
    if not may_be_measured(plan) or required.choices.costs != "auto" or plan.machine.absent:
        return plan
    begun, compiled = perf_counter(), compiled_seconds()
    with telling_if_long("measuring this machine for the plan"):
        for _ in range(MOST_PLANS):
            search = planning.search_for(required, machine_here(required.choices))
            own, rivals = unmeasured_calls(plan, search.catalogue, search.model)
            left = budget - (perf_counter() - begun) + (compiled_seconds() - compiled)
            if not own or left < 0:
                break
            with measuring():
                try:
                    measure(own, left, needed=True)
                    measure(rivals, budget - (perf_counter() - begun))
                except InvalidInput as error:  # the times cannot be kept
                    log.warning("%s", error)
                    break
                search = planning.search_for(required, machine_here(required.choices))
                plan = planning.fastest(search)[0]
    return plan
