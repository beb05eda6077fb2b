"""How long the planner searches, and what deciding jointly about memory gains."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench.plan_patch import LONG, PlanPatch
from bench.record import Row
from bench.rounds import Effort, run_rounds
from bench.shares import equal_share, first_come
from planner.choices import undominated_within
from planner.exhaustive import Search
from znni.core.errors import DoesNotFit
from znni.core.options import Costs
from znni.inference.planning import search
from znni.network.network import Network
from znni.plans.plan import Plan
from znni.primitives.catalogue import FAMILIES

SHARES = {"joint": undominated_within, "equal": equal_share, "first come": first_come}


def time_search(started: Search) -> Row:
    """How long a search that starts afresh takes for one plan, and what it finds."""
    host = started.machine.host
    start = time.perf_counter()
    row: Row = {
        "network": started.network.name,
        "processor": host.name,
        "threads": host.threads,
        "limit_gib": host.memory / 2**30,
        "division": started.division,
        "device": started.device,
    }
    try:
        plan = started.fastest()[0]
    except DoesNotFit as error:
        row["skipped"] = str(error)
        return row
    return row | {
        "seconds": time.perf_counter() - start,
        "calls": started.calls,
        "patch": str(plan.patch),
        "predicted_voxels_per_s": plan.voxels_per_second,
        "declared_gib": plan.memory.total / 2**30,
    }


def compare_shares(
    network: Network,
    size: int,
    ram: int,
    families: Sequence[str],
    costs: Costs,
    effort: Effort | None,
    progress: Callable[[str], None],
) -> list[Row]:
    """The fastest plan under a limit, for each way to give out memory, with a measured patch.

    Args:
        network: to plan for.
        size: voxels per axis of the volume.
        ram: bytes that a plan may take.
        families: of the primitives to choose from; none for all.
        costs: of the model that predicts times.
        effort: of the measurement; None for predictions alone.
        progress: told what comes next.
    """
    among = search(network, (size, size, size), ram=ram, device="cpu", costs=costs)
    if families:
        names = [n for n in among.catalogue if _is_pooling(n) or _family(n) in families]
        among = among.among(names)
    plans: dict[str, Plan] = {}
    for name, choose in SHARES.items():
        progress(f"{network.name} in {ram / 2**30:g} GiB, {name}")
        try:
            plans[name] = among.choosing(choose).fastest()[0]
        except DoesNotFit:
            progress(f"{name}: nothing fits")
    measured = _measured(plans, effort, progress) if effort else {}
    rows = []
    for name in SHARES:
        row: Row = {
            "network": network.name,
            "primitives": " + ".join(families) or "all",
            "limit_gib": ram / 2**30,
            "shares": name,
        }
        if name in plans:
            row |= _outcome(plans[name], plans["joint"]) | measured.get(name, {})
            if "seconds" in row:
                row["gain"] = measured["joint"]["voxels_per_s"] / row["voxels_per_s"]
        else:
            row["skipped"] = "nothing fits"
        rows.append(row)
    return rows


def _family(primitive: str) -> str | None:
    return next((name for name, starts in FAMILIES.items() if primitive.startswith(starts)), None)


def _is_pooling(primitive: str) -> bool:
    return _family(primitive) is None


def _outcome(plan: Plan, joint: Plan) -> Row:
    return {
        "patch": str(plan.patch),
        "predicted_voxels_per_s": plan.voxels_per_second,
        "predicted_gain": joint.voxels_per_second / plan.voxels_per_second,
        "declared_gib": plan.memory.total / 2**30,
        "patch_seconds": plan.patch_seconds,
    }


def _measured(
    plans: dict[str, Plan], effort: Effort, progress: Callable[[str], None]
) -> dict[str, Row]:
    """A patch of each plan, in turns, warm unless it is long; those that are the same run once."""
    contestants = {plan: PlanPatch(plan.to_json()) for plan in dict.fromkeys(plans.values())}
    names = {plan: name for name, plan in reversed(plans.items())}
    results = run_rounds(
        {names[plan]: patch.seconds for plan, patch in contestants.items()},
        repeats=effort.repeats,
        budget=effort.budget,
        warm=[names[plan] for plan in contestants if plan.patch_seconds > LONG],
        progress=progress,
    )
    rows = {}
    for name, plan in plans.items():
        record = results[names[plan]].record()
        rows[name] = record | {"voxels_per_s": plan.patch.volume / record["seconds"]}
    return rows
