"""Whole networks: a plan's patch beside the peers', each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import psutil

from bench import network_peers
from bench.accuracy import CornerReference
from bench.child import Child, ChildFailed
from bench.layers import Effort
from bench.network_peers import EXTENTS, BestPatch
from bench.plan_patch import PlanPatch
from bench.published import published_rows
from bench.record import Row
from bench.rounds import Result, run_rounds, speedups
from bench.torch_settings import PARTS, WHOLE
from znni import planning
from znni.network import Network
from znni.options import Accuracy
from znni.plans import Plan
from znni.shapes import Vec3
from znni.weights import Float32, random_weights

OURS = "znni"
BASELINE = "torch_fp32"

# Left to the system and to this process, beside a contestant.
MARGIN = 1 << 30

# The share of a contestant's budget that looking for its best patch may take.
SWEEP_SHARE = 0.4

# A peer that takes the patch that suits another, whose layers it runs.
SAME_PATCH = {"monai_fp32": "dilated_fp32"}


@dataclass(frozen=True)
class Rivals:
    """Who competes.

    Attributes:
        names: of the peers.
        ram: bytes that a peer's patch may take.
        extents: output voxels per axis of the patches that they try.
    """

    names: tuple[str, ...]
    ram: int
    extents: tuple[int, ...] = EXTENTS


def plan_for(
    network: Network,
    size: int,
    ram: int,
    threads: int | None,
    patch: int | None,
    accuracy: Accuracy = "float32",
) -> Plan:
    """The plan for a volume of ``size`` voxels per axis.

    With ``patch`` the plan for an output of so many voxels per axis, so that no patch is larger.
    """
    volume = Vec3.of(size) if patch is None else network.field_of_view + patch - 1
    return planning.plan(network, volume, ram=ram, threads=threads, accuracy=accuracy)


def compare_network(
    plan: Plan, rivals: Rivals, effort: Effort, progress: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Rows for a plan's patch, for each peer's best patch, and for what was published.

    Peers look for their best patch first. Then all take turns, warming up in each. A peer that
    cannot run, or is killed, has a row that says so.

    Args:
        plan: ours.
        rivals: the peers.
        effort: of which the budget is per contestant.
        progress: told what is being done.
    """
    network, threads = plan.network, plan.machine.host.threads
    failed: dict[str, str] = {}
    best: dict[str, BestPatch] = {}
    for name in rivals.names:
        if reason := network_peers.missing(name):
            failed[name] = reason
            continue
        if same := best.get(SAME_PATCH.get(name, "")):
            best[name] = same
            continue
        progress(f"{name}, looking for its best patch")
        try:
            best[name] = network_peers.best_patch(
                name, network, threads, rivals.ram, SWEEP_SHARE * effort.budget, rivals.extents
            )
        except ChildFailed as error:
            failed[name] = str(error)
    limit = effort.budget / effort.repeats
    contestants = {OURS: _Contestant(lambda: Child(PlanPatch, plan.to_json()), None, limit)}
    for name, found in best.items():
        make = partial(network_peers.start, name, network, threads, rivals.ram)
        contestants[name] = _Contestant(make, found, limit)
    progress("the reference in float64")
    reference = CornerReference(network, random_weights(network, 0), threads)
    results = run_rounds(
        {name: contestant.turn for name, contestant in contestants.items()},
        repeats=effort.repeats,
        budget=effort.budget,
        warm=contestants,
        progress=progress,
    )
    rows = []
    for name, contestant in contestants.items():
        row = contestant.row(reference)
        if "skipped" in row:
            failed[name] = row["skipped"]
        else:
            patch = plan.patch if name == OURS else best[name].patch
            row |= _speed(results, name, patch, best, plan, failed)
            rows.append({"network": network.name, "name": name, **row})
    rows += [
        {"network": network.name, "name": name, "skipped": reason}
        for name, reason in failed.items()
    ]
    return rows + published_rows(network.name)


def _speed(
    results: dict[str, Result],
    name: str,
    patch: Vec3,
    best: dict[str, BestPatch],
    plan: Plan,
    failed: dict[str, str],
) -> Row:
    result = results[name]
    row = {
        "patch": str(patch),
        **result.record(),
        "voxels_per_s": patch.volume / result.timing.median,
    }
    if BASELINE in results and BASELINE not in failed:
        rival = results[BASELINE], float(best[BASELINE].patch.volume)
        row |= speedups(result, patch.volume, [rival])
    if name == OURS:
        row["predicted_voxels_per_s"] = patch.volume / plan.patch_seconds
        row["declared_gib"] = plan.memory.total / 2**30
    else:
        row["tried"] = best[name].tried
    return row


class _Contestant:
    """One of those that take turns, and what is known of it.

    Its process lives for a turn only, so that each has the machine's memory to itself.

    Args:
        make: starts the process.
        found: a peer's best patch; None for our own plan.
        limit: seconds that one measurement of a peer may take.
    """

    def __init__(self, make: Callable[[], Child], found: BestPatch | None, limit: float) -> None:
        self._make, self._found, self._limit = make, found, limit
        self._about: Row = {"measured": WHOLE}
        self._corner: Float32 | None = None
        self._failure: str | None = None

    def turn(self) -> float | None:
        """Seconds of a patch, or None if it failed now or before."""
        if self._failure:
            return None
        try:
            with self._make() as child:
                return self._measured(child)
        except ChildFailed as error:
            self._failure = str(error)
            return None

    def _measured(self, child: Child) -> float:
        if self._found:
            room = int(psutil.virtual_memory().available) - MARGIN
            estimate = self._found.patch, self._found.seconds
            self._about["measured"] = child.call("prepare", *estimate, self._limit, room)
            self._about["least_gib"] = child.call("needed_bytes", self._found.patch) / 2**30
        in_parts = self._about["measured"] == PARTS
        if not in_parts:  # parts are warmed up one by one
            self._about["first_seconds"] = float(child.call("seconds"))
        seconds = float(child.call("seconds"))
        if not in_parts:  # parts do not take a patch's memory
            self._about["peak_gib"] = child.peak_memory() / 2**30
        self._corner = child.call("corner")
        return seconds

    def row(self, reference: CornerReference) -> Row:
        """What was measured, with error and peak memory, or why there is nothing to tell."""
        if self._failure:
            return {"skipped": self._failure}
        error = None if self._corner is None else reference.error(self._corner)
        return {**self._about, "error": error}
