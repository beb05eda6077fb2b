"""Whole networks: a plan's patch beside the peers', each in a process of its own."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench import network_peers
from bench.accuracy import CornerReference, Corners, pooled_by_fft
from bench.child import Child, ChildFailed
from bench.network_peers import EXTENTS, BestPatch
from bench.plan_patch import PlanPatch
from bench.published import published_rows
from bench.record import Row
from bench.rounds import Effort, Result, run_rounds, speedups
from bench.torch_settings import PARTS, WHOLE
from znni.core.options import Accuracy
from znni.core.shapes import Vec3
from znni.inference import planning
from znni.machine.detect import detect_host
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.plans.plan import Plan

OURS = "znni"
BASELINE = "torch_fp32"

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
        extents: output voxels per axis of the patches that they try, up to those of the volume.
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
    """The plan for the host and a volume as ``volume_for`` has it."""
    volume = volume_for(network, size, patch)
    return planning.plan(network, volume, ram=ram, threads=threads, accuracy=accuracy, device="cpu")


def volume_for(network: Network, size: int, patch: int | None) -> Vec3:
    """The extents of a volume of ``size`` voxels per axis.

    With ``patch`` those for an output of so many voxels per axis, so that no patch is larger.
    """
    return Vec3.of(size) if patch is None else network.field_of_view + patch - 1


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
    fitting = tuple(extent for extent in rivals.extents if extent <= max(plan.output))
    extents = fitting or (min(rivals.extents),)
    failed: dict[str, str] = {}
    best: dict[str, BestPatch] = {}
    for name in rivals.names:
        if reason := network_peers.missing(name, network):
            failed[name] = reason
            continue
        if same := best.get(SAME_PATCH.get(name, "")):
            best[name] = same
            continue
        progress(f"{name}, looking for its best patch")
        try:
            best[name] = network_peers.best_patch(
                name, network, threads, rivals.ram, SWEEP_SHARE * effort.budget, extents
            )
        except ChildFailed as error:
            failed[name] = str(error)
    limit = effort.budget / effort.repeats
    contestants = {OURS: _Contestant(lambda: Child(PlanPatch, plan.to_json()), None, limit)}
    for name, found in best.items():
        make = partial(network_peers.start, name, network, found.layout, threads, rivals.ram)
        contestants[name] = _Contestant(make, found, limit)
    results = run_rounds(
        {name: contestant.turn for name, contestant in contestants.items()},
        repeats=effort.repeats,
        budget=effort.budget,
        warm=contestants,
        progress=progress,
    )
    progress("errors against float64")
    reference = CornerReference(
        network, pooled_by_fft(network, random_weights(network, 0), threads)
    )
    volumes = {name: found.patch.volume for name, found in best.items()}
    volumes[OURS] = plan.patch.volume
    baseline = [(results[BASELINE], float(volumes[BASELINE]))] if BASELINE in results else []
    rows = []
    for name, contestant in contestants.items():
        if contestant.failure:
            failed[name] = contestant.failure
            continue
        about = _ours(plan) if name == OURS else _peer(best[name])
        row = {"network": network.name, "name": name, "threads": threads, **about}
        row |= contestant.row(reference) | _speed(results[name], volumes[name])
        rows.append(row | speedups(results[name], volumes[name], baseline))
    rows += [
        {"network": network.name, "name": name, "skipped": reason}
        for name, reason in failed.items()
    ]
    return rows + published_rows(network.name)


def _ours(plan: Plan) -> Row:
    return {
        "patch": str(plan.patch),
        "predicted_voxels_per_s": plan.patch.volume / plan.patch_seconds,
        "declared_gib": plan.memory.total / 2**30,
    }


def _peer(found: BestPatch) -> Row:
    return {"patch": str(found.patch), "layout": found.layout, "tried": found.tried}


def _speed(result: Result, voxels: int) -> Row:
    return {**result.record(), "voxels_per_s": voxels / result.timing.median}


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
        self._first_seconds: list[float] = []
        self._peaks: list[int] = []
        self._corners: Corners | None = None
        self.failure: str | None = None

    def turn(self) -> float | None:
        """Seconds of a patch, or None if it failed now or before."""
        if self.failure:
            return None
        try:
            with self._make() as child:
                return self._measured(child)
        except ChildFailed as error:
            self.failure = str(error)
            return None

    def _measured(self, child: Child) -> float:
        if self._found:
            room = detect_host().host.memory
            estimate = self._found.patch, self._found.seconds
            self._about["measured"] = child.call("prepare", *estimate, self._limit, room)
            self._about["least_gib"] = child.call("needed_bytes", self._found.patch) / 2**30
        in_parts = self._about["measured"] == PARTS
        if not in_parts:  # parts are warmed up one by one
            self._first_seconds.append(float(child.call("seconds")))
        seconds = float(child.call("seconds"))
        if not in_parts:  # parts do not take a patch's memory
            self._peaks.append(child.peak_memory())
        self._corners = child.call("corners")
        return seconds

    def row(self, reference: CornerReference) -> Row:
        """What was measured, with error, peak memory and the time of a process's first patch."""
        row = {**self._about}
        if self._first_seconds:
            row["first_seconds"] = statistics.median(self._first_seconds)
            row["peak_gib"] = max(self._peaks) / 2**30
        row["error"] = None if self._corners is None else reference.error(self._corners)
        return row
