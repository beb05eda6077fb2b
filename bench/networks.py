"""Whole networks: a plan's patch beside the peers', each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from bench import network_peers
from bench.accuracy import CornerReference
from bench.child import Child, ChildFailed
from bench.layers import Effort
from bench.network_peers import EXTENTS, BestPatch
from bench.plan_patch import PlanPatch
from bench.published import published_rows
from bench.rounds import Result, Stopwatch, run_rounds, speedups
from bench.torch_settings import PARTS, WHOLE
from znni import planning
from znni.network import Network
from znni.plans import Plan
from znni.shapes import Vec3
from znni.weights import random_weights

Row = dict[str, Any]
OURS = "znni"
BASELINE = "torch_fp32"

# Left to the system and to this process, beside the contestants.
MARGIN = 1 << 30

# The share of a contestant's budget that looking for its best patch may take.
SWEEP_SHARE = 0.4

# Seconds of a peer's patch beyond which a first, cold run is as good as any other.
LONG = 20.0

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


def plan_for(network: Network, size: int, ram: int, threads: int | None, patch: int | None) -> Plan:
    """The plan for a volume of ``size`` voxels per axis.

    With ``patch`` the plan for an output of so many voxels per axis, so that no patch is larger.
    """
    volume = Vec3.of(size) if patch is None else network.field_of_view + patch - 1
    return planning.plan(network, volume, ram=ram, threads=threads)


def compare_network(
    plan: Plan, rivals: Rivals, effort: Effort, progress: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Rows for a plan's patch, for each peer's best patch, and for what was published.

    Peers look for their best patch first, one after the other. Then all run in turn. A peer that
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
    with ExitStack() as open_children:
        progress(f"{OURS}, preparing")
        contest = _Contest(failed, open_children)
        contest.add(OURS, lambda: Child(PlanPatch, plan.to_json()))
        room = int(psutil.virtual_memory().total) - plan.memory.total - MARGIN
        for name, found in best.items():
            progress(f"{name}, preparing")
            contest.add(name, partial(network_peers.start, name, network, threads))
            limit = effort.budget / effort.repeats
            contest.prepare(name, found, limit, room // len(best))
        progress("the reference in float64")
        reference = CornerReference(network, random_weights(network, 0), threads)
        results = run_rounds(
            contest.stopwatches(),
            repeats=effort.repeats,
            budget=effort.budget,
            warm=contest.warm,
            progress=progress,
        )
        rows = []
        for name in results:
            patch = plan.patch if name == OURS else best[name].patch
            row = contest.row(name, reference)
            if "skipped" not in row:
                row |= _speed(results, name, patch, best, plan)
            rows.append({"network": network.name, "name": name, **row})
    rows += [
        {"network": network.name, "name": name, "skipped": reason}
        for name, reason in failed.items()
        if name not in results
    ]
    return rows + published_rows(network.name)


def _speed(
    results: dict[str, Result], name: str, patch: Vec3, best: dict[str, BestPatch], plan: Plan
) -> Row:
    result = results[name]
    row = {
        "patch": str(patch),
        **result.record(),
        "voxels_per_s": patch.volume / result.timing.median,
    }
    if BASELINE in results and results[BASELINE].ran:
        rival = results[BASELINE], float(best[BASELINE].patch.volume)
        row |= speedups(result, patch.volume, [rival])
    if name == OURS:
        row["predicted_voxels_per_s"] = patch.volume / plan.patch_seconds
        row["declared_gib"] = plan.memory.total / 2**30
    else:
        row["tried"] = best[name].tried
    return row


class _Contest:
    """The contestants' processes, and what is known of each.

    Args:
        failed: gets the reason for each that failed.
        open_children: closes the processes in the end.
    """

    def __init__(self, failed: dict[str, str], open_children: ExitStack) -> None:
        self.warm: set[str] = set()
        self._failed, self._open = failed, open_children
        self._children: dict[str, Child] = {}
        self._about: dict[str, Row] = {}

    def add(self, name: str, make: Callable[[], Child]) -> None:
        try:
            self._children[name] = self._open.enter_context(make())
            self._about[name] = {"measured": WHOLE}
        except ChildFailed as error:
            self._failed[name] = str(error)

    def prepare(self, name: str, found: BestPatch, limit: float, room: int) -> None:
        """Let a peer choose what it measures within so many seconds and bytes."""
        if name not in self._children:
            return
        child = self._children[name]
        try:
            measured = child.call("prepare", found.patch, found.seconds, limit, room)
            least = child.call("needed_bytes", found.patch) / 2**30
        except ChildFailed as error:
            self._failed[name] = str(error)
            return
        self._about[name] = {"measured": measured, "least_gib": least}
        if measured == PARTS or found.seconds > LONG:  # parts are warmed up one by one
            self.warm.add(name)

    def stopwatches(self) -> dict[str, Stopwatch]:
        return {
            name: child.stopwatch(self._failed, name, "seconds")
            for name, child in self._children.items()
        }

    def row(self, name: str, reference: CornerReference) -> Row:
        """Error and peak memory, or why there is nothing to tell."""
        if name in self._failed:
            return {"skipped": self._failed[name]}
        row = dict(self._about[name])
        child = self._children[name]
        try:
            if row["measured"] != PARTS:  # parts do not take a patch's memory
                row["peak_gib"] = child.peak_memory() / 2**30
            found = child.call("corner")
            row["error"] = None if found is None else reference.error(found)
        except ChildFailed as error:
            return {"skipped": str(error)}
        return row
