"""The best plans of a search side by side: whether their times are as predicted, and in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.child import Child, ChildFailed
from bench.plan_patch import PlanPatch
from bench.record import Row
from bench.rounds import Effort, Result, run_rounds
from znni.errors import InvalidInput
from znni.machine import detect_machine
from znni.plans import Plan
from znni.units import in_units


def compare_plans(
    plans: Sequence[Plan], effort: Effort, progress: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """A row for each plan: a warm patch as predicted and as measured, and what is lost with it.

    All of them are kept ready, each in a process of its own, and take turns. Speeds are those of
    the whole output, in as many patches as it takes, without reading, writing and preparation.

    Args:
        plans: for one output, the one chosen first.
        effort: of which the budget is per plan.
        progress: told what is being done.

    Raises:
        InvalidInput: together they take more memory than there is.
    """
    needed, available = sum(plan.memory.total for plan in plans), detect_machine().host.memory
    if needed > available:
        raise InvalidInput(
            f"{len(plans)} plans take {in_units(needed)} together and {in_units(available)} are "
            "available; give a lower --ram or --count"
        )
    failed: dict[str, str] = {}
    names = [f"plan {rank}" for rank, _ in enumerate(plans, 1)]
    with ExitStack() as children:
        contestants = {}
        for name, plan in zip(names, plans, strict=True):
            progress(f"preparing {name}")
            try:
                child = children.enter_context(Child(PlanPatch, plan.to_json()))
                contestants[name] = child.stopwatch(failed, name, "seconds")
            except ChildFailed as error:
                failed[name] = str(error)
        results = run_rounds(
            contestants, repeats=effort.repeats, budget=effort.budget, progress=progress
        )
    rows = [
        {"rank": rank, **_about(plan), **_measured(plan, results.get(name), failed.get(name))}
        for rank, (name, plan) in enumerate(zip(names, plans, strict=True), 1)
    ]
    ran = [row for row in rows if "voxels_per_s" in row]
    fastest = max((row["voxels_per_s"] for row in ran), default=0.0)
    for row in ran:
        row["regret"] = fastest / row["voxels_per_s"] - 1
    return rows


def _about(plan: Plan) -> Row:
    return {
        "network": plan.network.name,
        "threads": plan.machine.host.threads,
        "costs": plan.costs,
        "output": str(plan.output),
        "patch": str(plan.patch),
        "patches": plan.patches,
        "declared_gib": plan.memory.total / 2**30,
        "predicted_seconds": plan.patch_seconds,
        "predicted_voxels_per_s": _speed(plan, plan.patch_seconds),
        "steps": [step.primitive for step in plan.steps],
    }


def _measured(plan: Plan, result: Result | None, failure: str | None) -> Row:
    if failure or result is None:
        return {"skipped": failure}
    seconds = result.timing.median
    speed = {"voxels_per_s": _speed(plan, seconds), "off": plan.patch_seconds / seconds - 1}
    return {**result.record(), **speed}


def _speed(plan: Plan, patch_seconds: float) -> float:
    """Output voxels per second, if each patch takes that long."""
    return plan.output.volume / (plan.patches * patch_seconds)
