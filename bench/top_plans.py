"""The best plans side by side: their order, and their times as predicted and measured.

Between the plans' rounds, some calls of the calibration are made once more. A machine that others
share, or whose clock follows its temperature, is not always equally fast. Predictions from measured
costs hold for the time of the calibration.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import exp, log, sqrt
from pathlib import Path
from random import Random
from statistics import mean, median, stdev
from typing import Annotated, Unpack

import typer

from bench import session
from bench.ceilings import AnyCeilings
from bench.child import Child, ChildFailed
from bench.patches import LONG, PlanPatch, volume_for
from bench.record import Row
from bench.rounds import Effort, Result, run_rounds
from znni.calibration.choice import measurements_of
from znni.calibration.database import CostDatabase, Measurement
from znni.calibration.measure import Workbench
from znni.calibration.overhead_figures import handling_times
from znni.calibration.shapes import Call
from znni.core.errors import InvalidInput
from znni.core.option_types import Costs
from znni.core.plan_options import PlanOptions
from znni.core.text import in_units
from znni.engine.stages.layers import placed_seconds
from znni.inference.planning import fastest, search
from znni.machine.detect import detect_for, detect_machine
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, on_device
from znni.primitives.catalogue import catalogue

MEASURED = "measured"  # how the source of such costs begins
CALIBRATION = ("the calibration's calls", "the calibration's calls, again")
LEAST_ROUNDS = 3

# Calls are chosen that took so many seconds, take so many bytes at most, and keep few together.
SHORTEST, LONGEST = 0.02, 0.2
MOST_WORKING, MOST_RESIDENT = 2**28, 2**29
CALLS = 40

LEAST_SECONDS = 2.0  # a processor that others share is slow or fast for tenths of a second


def top_plans_command(
    net: session.Nets,
    size: session.Volume = 512,
    ram: session.Ram = session.RAM,
    patch: session.Patch = None,
    count: Annotated[int, typer.Option(min=1, help="How many plans.")] = 10,
    rank: Annotated[
        list[int] | None,
        typer.Option(
            min=2, help="Only these plans beside the one chosen; repeatable. Default: all."
        ),
    ] = None,
    costs: session.CostsChoice = "auto",
    accuracy: session.AccuracyClass = "float32",
    threads: session.Threads = None,
    repeats: session.Repeats = 3,
    budget: session.Budget = 120.0,
    out: session.Out = None,
) -> None:
    """Run the best plans side by side.

    Is the one chosen the fastest of them, and are predicted times right?
    """
    ceilings: list[AnyCeilings] = []
    effort = Effort(repeats, budget)

    def compared(path: Path) -> list[Row]:
        network = load_network(path)
        session.progress(f"planning {network.name}")
        found = best_plans(
            network, size, patch, count, ram=ram, threads=threads, costs=costs, accuracy=accuracy
        )
        plans = dict(enumerate(found, 1))
        if rank:
            if missing := set(rank) - set(plans):
                raise InvalidInput(f"--rank {min(missing)}: there are {len(plans)} plans")
            plans = {number: plans[number] for number in sorted({1, *rank})}
        rows = compare_plans(plans, effort)
        session.ceilings_of("cpu", plans[1].machine.host.threads, ceilings)
        return rows

    session.report_all("top-plans", map(compared, net), ceilings, out)


def best_plans(
    network: Network, size: int, patch: int | None, count: int, **options: Unpack[PlanOptions]
) -> list[Plan]:
    """Return the CPU's plans with the least predicted time for a volume like ``volume_for``'s."""
    options["device"] = "cpu"
    return fastest(search(network, volume_for(network, size, patch), **options), count)


def compare_plans(plans: Mapping[int, Plan], effort: Effort) -> list[Row]:
    """Return a row for each plan: a warm patch as predicted and measured, and what is lost with it.

    All plans are kept ready, each in a process of its own, and take turns. Speeds are those of the
    whole output, in as many patches as it takes, without reading, writing and preparation.
    ``beside_first`` says how much more time that takes than with the plan chosen, in the same
    rounds. Patches of many seconds are not warmed up. If costs are measured, some calls of the
    calibration take a turn before the plans and one after them. ``drift`` says how much slower the
    machine is than it was then, and ``off_now`` what is off beside that.

    Args:
        plans: for one output, by rank; the one chosen is 1.
        effort: how long to measure; the budget is per plan.

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
        used = {
            word for plan in plans.values() for s in plan.steps for word in str(s.primitive).split()
        }
        if some.costs.startswith(MEASURED):
            threads = some.machine.host.threads
            again = children.enter_context(Child(CalibratedCalls, threads, sorted(used)))
            if again.call("count"):
                contestants[CALIBRATION[0]] = again.stopwatch(failed, CALIBRATION[0], "slower")
        for rank, plan in plans.items():
            session.progress(f"preparing {names[rank]}")
            try:
                child = children.enter_context(Child(PlanPatch, plan.to_json()))
                contestants[names[rank]] = child.stopwatch(failed, names[rank], "seconds")
            except ChildFailed as error:
                failed[names[rank]] = str(error)
        if again and CALIBRATION[0] in contestants:
            contestants[CALIBRATION[1]] = again.stopwatch(failed, CALIBRATION[1], "slower")
        results = run_rounds(
            contestants,
            effort,
            warm=[names[rank] for rank, plan in plans.items() if plan.patch_seconds > LONG],
            progress=session.progress,
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
    """Return how many times as long it takes, in the rounds that both ran."""
    pairs = zip(result.by_round, other.by_round, strict=True)
    return median(its / others for its, others in pairs if its and others)


def held_out(rows: Sequence[Row]) -> Row:
    """Return what is lost with the first plan in each round, beside the fastest of all others.

    The fastest of several noisy times is partly so by luck. It has no such luck in a round that
    had no part in naming it. The result is the mean of the logarithms of all rounds, and its
    standard error.

    Args:
        rows: of the plans, the one chosen first.

    Returns:
        Columns with both; none if there are fewer than three rounds.
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
        "steps": [str(step.primitive) for step in plan.steps],
    }


def _patch_seconds(plan: Plan) -> float:
    """Return the predicted seconds of the layers and of bringing their output together."""
    costs: Costs = "measured" if plan.costs.startswith(MEASURED) else "built-in"
    placed = placed_seconds(plan.machine, handling_times(plan.machine, costs))
    values_out = plan.patch.volume * plan.steps[-1].shape_out.f
    return plan.patch_seconds + values_out * placed


def _measured(plan: Plan, result: Result | None, failure: str | None) -> Row:
    if failure or result is None:
        return {"skipped": failure}
    seconds = result.timing.median
    speed = {"voxels_per_s": _speed(plan, seconds), "off": _patch_seconds(plan) / seconds - 1}
    return {**result.record(), **speed}


def _speed(plan: Plan, patch_seconds: float) -> float:
    """Return output voxels per second, if each patch takes that long."""
    return plan.output.volume / (plan.patches * patch_seconds)


class CalibratedCalls:
    """Calls that were measured in a calibration, ready to be made again: for a child process.

    Args:
        threads: worker threads of the host.
        names: primitives that count, with all others of their kinds.
    """

    def __init__(self, threads: int, names: list[str]) -> None:
        primitives = on_device(catalogue(detect_for("cpu", threads=threads)), "cpu")
        kinds = {type(primitives[name]) for name in names if name in primitives}
        known = {name: found for name, found in primitives.items() if type(found) in kinds}
        chosen = _some_of(measurements_of(known, CostDatabase()), known)
        calls = [(known[one.primitive], Call(one.operation, one.shape)) for one in chosen]
        workbench = Workbench(calls)
        self._ready = [workbench.built(*call) for call in calls]
        self._then = sum(one.seconds for one in chosen)

    def count(self) -> int:
        """Return how many calls there are."""
        return len(self._ready)

    def slower(self) -> float:
        """Return how many times as long they take, one after another, as in the calibration."""
        start, passes = time.perf_counter(), 0
        while not passes or time.perf_counter() - start < LEAST_SECONDS:
            for run in self._ready:
                run()
            passes += 1
        return (time.perf_counter() - start) / (passes * self._then)


def _some_of(measurements: Iterable[Measurement], primitives: Catalogue) -> list[Measurement]:
    """Return measurements that suit: random ones, and always the same."""
    found, left = list(measurements), MOST_RESIDENT
    Random(0).shuffle(found)
    chosen: list[Measurement] = []
    for one in found:
        memory = primitives[one.primitive].cost(one.operation, one.shape).memory
        few = memory.working <= MOST_WORKING and memory.resident <= left
        if few and SHORTEST <= one.seconds <= LONGEST and len(chosen) < CALLS:
            chosen.append(one)
            left -= memory.resident
    return chosen
