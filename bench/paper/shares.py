"""Joint decisions about memory, beside simpler ways to give it out.

The simpler ways are those of workspace reuse (Oyama et al., 2018): each layer is at its fastest
within its share, in pieces or whole. They take the arguments of
``planner.choices.undominated_within``, which decides for all layers jointly (workspace division).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Annotated

import typer

from bench import session
from bench.paper.strategies import of_families
from bench.patches import LONG, PlanPatch
from bench.record import Row
from bench.rounds import Effort, run_rounds
from planner.choices import Choice, Slot, choice_of, undominated_within
from planner.pareto import Front
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Costs
from znni.inference.planning import search
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.plans.plan import Plan
from znni.plans.segments import Step

Pairs = list[tuple[int, int]]


def shares_command(
    net: session.Nets,
    ram: session.RamLimits,
    family: session.Families = None,
    size: session.Volume = 512,
    measure: Annotated[bool, typer.Option(help="Run a patch of each plan, too.")] = True,
    costs: session.CostsChoice = "auto",
    repeats: session.Repeats = 3,
    budget: session.Budget = 60.0,
    out: session.Out = None,
) -> None:
    """Compare joint decisions about memory with simpler ones.

    The simpler ways are an equal share for each layer, and first come, first served.
    """
    among = session.known_families(family)
    effort = Effort(repeats, budget) if measure else None
    compared = (
        compare_shares(load_network(path), size, limit, among, costs, effort)
        for path, limit in product(net, ram)
    )
    session.report_all("shares", compared, [], out)


def equal_share(
    slots: Sequence[Slot], allowed: float, seconds_limit: float, _: float = 0.0
) -> list[Choice]:
    """Give every layer the same: the largest bound on resident memory and workspace that fits."""
    bounds = {_beside_arrays(step) for slot in slots for step in slot.options}
    for bound in sorted(bounds, reverse=True):
        steps = [next((s for s in it.options if _beside_arrays(s) <= bound), None) for it in slots]
        chosen = [step for step in steps if step]
        if len(chosen) < len(slots):
            return []
        choice = choice_of(slots, chosen)
        if choice.resident + choice.peak <= allowed:
            return [choice] if choice.seconds < seconds_limit else []
    return []


def first_come(
    slots: Sequence[Slot], allowed: float, seconds_limit: float, _: float = 0.0
) -> list[Choice]:
    """Let each layer in turn take its fastest step that leaves the later ones enough."""
    needs = _least_needs(slots)
    chosen: list[Step] = []
    resident = peak = 0
    for slot, later in zip(slots, needs[1:], strict=True):
        for step in slot.options:
            held, highest = resident + step.cost.memory.resident, max(peak, slot.peak(step))
            if any(held + more + max(highest, other) <= allowed for more, other in later):
                chosen.append(step)
                resident, peak = held, highest
                break
        else:
            return []
    choice = choice_of(slots, chosen)
    return [choice] if choice.seconds < seconds_limit else []


def _beside_arrays(step: Step) -> int:
    return step.cost.memory.resident + step.cost.memory.workspace


def _least_needs(slots: Sequence[Slot]) -> list[Pairs]:
    """Return all least pairs of resident bytes and peak, for the slots from each one on."""
    needs: list[Pairs] = [[(0, 0)]]
    for slot in reversed(slots):
        pairs = sorted(
            (more + s.cost.memory.resident, max(other, slot.peak(s)))
            for s in slot.options
            for more, other in needs[0]
        )
        front = Front()
        needs.insert(0, [pair for pair in pairs if front.admits(*pair)])
    return needs


SHARES = {"joint": undominated_within, "equal": equal_share, "first come": first_come}


def compare_shares(
    network: Network,
    size: int,
    ram: int,
    families: Sequence[str],
    costs: Costs,
    effort: Effort | None,
) -> list[Row]:
    """Return the fastest plan under a limit for each way to give out memory, and run a patch.

    Args:
        network: to plan for.
        size: voxels per axis of the volume.
        ram: bytes that a plan may take.
        families: of primitives to choose from; none for all.
        costs: costs of the model that predicts times.
        effort: how long to measure; None for predictions alone.
    """
    started = search(network, (size, size, size), ram=ram, device="cpu", costs=costs)
    among = of_families(started, families)
    plans: dict[str, Plan] = {}
    for name, choose in SHARES.items():
        session.progress(f"{network.name} in {ram / 2**30:g} GiB, {name}")
        try:
            plans[name] = among.choosing(choose).fastest()[0]
        except DoesNotFit:
            session.progress(f"{name}: nothing fits")
    measured = _measured(plans, effort) if effort else {}
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


def _outcome(plan: Plan, joint: Plan) -> Row:
    return {
        "patch": str(plan.patch),
        "predicted_voxels_per_s": plan.voxels_per_second,
        "predicted_gain": joint.voxels_per_second / plan.voxels_per_second,
        "declared_gib": plan.memory.total / 2**30,
        "patch_seconds": plan.patch_seconds,
    }


def _measured(plans: dict[str, Plan], effort: Effort) -> dict[str, Row]:
    """Time a patch of each plan, in turns, warm unless it is long. Equal plans run once."""
    contestants = {plan: PlanPatch(plan.to_json()) for plan in dict.fromkeys(plans.values())}
    names = {plan: name for name, plan in reversed(plans.items())}
    results = run_rounds(
        {names[plan]: patch.seconds for plan, patch in contestants.items()},
        effort,
        warm=[names[plan] for plan in contestants if plan.patch_seconds > LONG],
        progress=session.progress,
    )
    rows = {}
    for name, plan in plans.items():
        record = results[names[plan]].record()
        rows[name] = record | {"voxels_per_s": plan.patch.volume / record["seconds"]}
    return rows
