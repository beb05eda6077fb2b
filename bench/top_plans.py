"""The best plans of a search side by side: whether their times are as predicted, and in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import exp, log, sqrt
from statistics import mean, median, stdev

from bench.child import Child, ChildFailed
from bench.drift import CalibratedCalls
from bench.plan_patch import LONG, PlanPatch
from bench.record import Row
from bench.rounds import Effort, Result, run_rounds
from znni.calibration.io_rates import handling_times
from znni.calibration.run_overhead import run_overhead
from znni.core.errors import InvalidInput
from znni.core.options import Costs
from znni.core.text import in_units
from znni.machine.detect import detect_machine
from znni.plans.plan import Plan

MEASURED = "measured"  # how the source of such costs begins
CALIBRATION = ("the calibration's calls", "the calibration's calls, again")
LEAST_ROUNDS = 3


def compare_plans(
    plans: Mapping[int, Plan], effort: Effort, progress: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """A row for each plan: a warm patch as predicted and as measured, and what is lost with it.

    All of them are kept ready, each in a process of its own, and take turns. Speeds are those of
    the whole output, in as many patches as it takes, without reading, writing and preparation.
    ``beside_first`` is by how much more time that takes than with the plan chosen, in the same
    rounds. Patches of many seconds are not warmed up. Where costs are measured, some of the calls
    of the calibration take a turn before the plans and one after them, too: by how much the machine
    is slower than it was then is ``drift``, and ``off_now`` is what is off beside it.

    Args:
        plans: for one output, by rank; the one chosen is 1.
        effort: of which the budget is per plan.
        progress: told what is being done.

    Raises:
        InvalidInput: together they take more memory than there is.
    """
    needed, available = (
        sum(plan.memory.total for plan in plans.values()),
        detect_machine().host.memory,
    )
    if needed > available:
        raise InvalidInput(
            f"{len(plans)} plans take {in_units(needed)} together and {in_units(available)} are "
            "available; give a lower --ram or --count, or some of them by --rank"
        )
    failed: dict[str, str] = {}
    names = {rank: f"plan {rank}" for rank in plans}
    some = next(iter(plans.values()))
    with ExitStack() as children:
        contestants, again = {}, None
        used = {word for plan in plans.values() for s in plan.steps for word in s.primitive.split()}
        if some.costs.startswith(MEASURED):
            threads = some.machine.host.threads
            again = children.enter_context(Child(CalibratedCalls, threads, sorted(used)))
            if again.call("count"):
                contestants[CALIBRATION[0]] = again.stopwatch(failed, CALIBRATION[0], "slower")
        for rank, plan in plans.items():
            progress(f"preparing {names[rank]}")
            try:
                child = children.enter_context(Child(PlanPatch, plan.to_json()))
                contestants[names[rank]] = child.stopwatch(failed, names[rank], "seconds")
            except ChildFailed as error:
                failed[names[rank]] = str(error)
        if again and CALIBRATION[0] in contestants:
            contestants[CALIBRATION[1]] = again.stopwatch(failed, CALIBRATION[1], "slower")
        results = run_rounds(
            contestants,
            repeats=effort.repeats,
            budget=effort.budget,
            warm=[names[rank] for rank, plan in plans.items() if plan.patch_seconds > LONG],
            progress=progress,
        )
    rows = []
    for rank, plan in plans.items():
        name = names[rank]
        measured = _measured(plan, results.get(name), failed.get(name))
        rows.append({"rank": rank, **_about(plan), **measured})
    slower = [it for name in CALIBRATION if name in results for it in results[name].timing.seconds]
    drift = median(slower) if slower else None
    ran = [row for row in rows if "voxels_per_s" in row]
    fastest = max((row["voxels_per_s"] for row in ran), default=0.0)
    for row in ran:
        row["regret"] = fastest / row["voxels_per_s"] - 1
        if drift:
            row |= {"drift": drift - 1, "off_now": (1 + row["off"]) * drift - 1}
    if ran and ran[0]["rank"] == 1:
        for row in ran[1:]:
            its, first = results[names[row["rank"]]], results[names[1]]
            patches = row["patches"] / ran[0]["patches"]
            row["beside_first"] = patches * _ratio(its, first) - 1
        ran[0] |= held_out(ran)
    return rows


def _ratio(result: Result, other: Result) -> float:
    """How many times as long it takes, in the rounds of both; the first is of all."""
    pairs = zip(result.by_round, other.by_round, strict=True)
    return median(its / others for its, others in pairs if its and others)


def held_out(rows: Sequence[Row]) -> Row:
    """What is lost with the first plan in each round, beside the fastest of all other rounds.

    The fastest of several noisy times is so by luck in part, which it does not have in a round that
    had no part in naming it. Of the logarithms of all rounds the mean, and its standard error.

    Args:
        rows: of the plans, the one chosen first.

    Returns:
        Columns with both; none of fewer than three rounds.
    """
    rounds = range(min(row["rounds"] for row in rows))
    if len(rounds) < LEAST_ROUNDS:
        return {}
    # seconds of the whole output
    times = [[log(s * row["patches"]) for s in row["all_seconds"]] for row in rows]
    lost = []
    for left_out in rounds:
        others = [r for r in rounds if r != left_out]
        best = min(times, key=lambda its: sum(its[r] for r in others))
        lost.append(times[0][left_out] - best[left_out])
    return {"regret_held_out": exp(mean(lost)) - 1, "regret_error": stdev(lost) / sqrt(len(lost))}


def _about(plan: Plan) -> Row:
    predicted = _patch_seconds(plan)
    return {
        "network": plan.network.name,
        "threads": plan.machine.host.threads,
        "costs": plan.costs,
        "output": str(plan.output),
        "patch": str(plan.patch),
        "patches": plan.patches,
        "declared_gib": plan.memory.total / 2**30,
        "predicted_seconds": predicted,
        "predicted_error": plan.error,
        "predicted_voxels_per_s": _speed(plan, predicted),
        "steps": [step.primitive for step in plan.steps],
    }


def _patch_seconds(plan: Plan) -> float:
    """Predicted, of the layers and of bringing their output together."""
    costs: Costs = "measured" if plan.costs.startswith(MEASURED) else "built-in"
    handling = run_overhead(plan.machine, measured=handling_times(plan.machine, costs)).handling
    values_out = plan.patch.volume * plan.steps[-1].shape_out.f
    return plan.patch_seconds + values_out * handling.placed


def _measured(plan: Plan, result: Result | None, failure: str | None) -> Row:
    if failure or result is None:
        return {"skipped": failure}
    seconds = result.timing.median
    speed = {"voxels_per_s": _speed(plan, seconds), "off": _patch_seconds(plan) / seconds - 1}
    return {**result.record(), **speed}


def _speed(plan: Plan, patch_seconds: float) -> float:
    """Output voxels per second, if each patch takes that long."""
    return plan.output.volume / (plan.patches * patch_seconds)
