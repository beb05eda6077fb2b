"""Attributes of an output: how it was computed, and where it lies in space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from znni.core.option_types import ACCURACIES
from znni.core.version import __version__
from znni.engine.block_reader import Skipped
from znni.inference.planning import accuracy_of
from znni.inference.provenance import origin_attributes
from znni.inference.request import OpenRequest
from znni.network.weights import Weights
from znni.plans.job_seconds import JobSeconds
from znni.plans.plan import Plan
from znni.plans.rewrites.network_rules import as_given


def provenance(
    plan: Plan, weights: Weights, asked: OpenRequest, expected: Plan | None = None
) -> dict[str, Any]:
    """Return the attributes that say how an output is computed.

    Args:
        plan: the plan of the run.
        weights: parameters of the plan's network.
        asked: the request for the run.
        expected: the plan with the seconds that this machine takes beside it; None: the same.
    """
    network = as_given(plan.network)
    run = as_run([plan], JobSeconds(), 0, Skipped(), 0)  # replaced at the end of the run
    return {
        "znni_version": __version__,
        "command": asked.request.command,
        "network": plan.network.name,
        **origin_attributes(asked, network, weights, run["accuracy"]),
        **_predicted(expected or plan),
        **run,
    }


def _predicted(plan: Plan) -> Mapping[str, Any]:
    """Return the attributes that say what a plan promises."""
    return {
        "predicted_seconds": plan.seconds,
        "predicted_error": plan.error,
        "predicted_memory_bytes": plan.memory.total,
        "predicted_gpu_memory_bytes": plan.gpu_memory.total if plan.gpu_memory else 0,
        **plan.time.for_job(plan.patches).named("predicted_"),
    }


def as_run(
    plans: Sequence[Plan],
    spent: JobSeconds,
    peak: int,
    skipped: Skipped,
    gpu_peak: int,
    before: Sequence[Plan] = (),
    noted: str = "",
) -> dict[str, Any]:
    """Return the attributes that describe a run, given the plans that it used in turn.

    The accuracy is the lowest of all plans that computed a part of the output. This includes the
    plans of earlier runs, ``before``. The plan is ``noted``, the one that the output holds, if
    there is one. Otherwise it is the last plan of the run, which may assume another machine's
    memory, or limits.
    """
    classes = {accuracy_of(plan) for plan in (*before, *plans)}
    return {
        "accuracy": max(classes, key=list(ACCURACIES).index),
        "plan": noted or plans[-1].to_json(),
        "fallbacks": len(plans) - 1,
        **measured(spent, peak, skipped, gpu_peak),
    }


def measured(spent: JobSeconds, peak: int, skipped: Skipped, gpu_peak: int = 0) -> dict[str, Any]:
    """Return what the last run of an output measured; these values differ between equal runs.

    They are stored while the output is completed. So its last two phases are not among them.
    """
    known = spent.named()
    for phase in ("finishing", "exit"):
        del known[f"{phase}_seconds"]
    return {
        "seconds": spent.total,
        **known,
        "bottleneck": spent.busy.bottleneck,
        "peak_memory_bytes": peak,
        "gpu_peak_memory_bytes": gpu_peak,
        "blocks_outside_mask": skipped.outside_mask,
        "blocks_constant": skipped.constant,
    }
