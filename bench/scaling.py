"""The same work with more and more threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bench.ceilings import Ceilings
from bench.child import Child
from bench.layers import Effort, compare_layer
from bench.networks import plan_for
from bench.plan_patch import PlanPatch
from bench.rounds import run_rounds
from znni.machine import detect_machine
from znni.network import Conv, Network
from znni.shapes import Shape5

Row = dict[str, Any]
Progress = Callable[[str], None]


def layer_rows(
    ceilings: Iterable[Ceilings],
    layers: list[tuple[Conv, Shape5]],
    only: list[str],
    effort: Effort,
    progress: Progress = lambda _: None,
) -> list[Row]:
    """Each layer by each primitive and peer, with the number of threads of each of the ceilings."""
    rows = []
    for measured in ceilings:
        machine = detect_machine(threads=measured.threads)
        for conv, shape in layers:
            progress(f"{conv.kernel} on {shape}, {measured.threads} threads")
            found = compare_layer(machine, conv, shape, only, effort, measured)
            rows += [{"work": f"{row['kernel']} {row['input']}", **row} for row in found]
    return with_efficiency(rows)


def network_rows(
    threads: Iterable[int],
    network: Network,
    patch: int,
    ram: int,
    effort: Effort,
    progress: Progress = lambda _: None,
) -> list[Row]:
    """A network's patch of at most so many voxels per axis, planned for each number of threads."""
    rows = []
    for count in threads:
        plan = plan_for(network, 0, ram, count, patch)
        with Child(PlanPatch, plan.to_json()) as child:
            failed: dict[str, str] = {}
            contestants = {"znni": child.stopwatch(failed, "znni", "seconds")}
            result = run_rounds(
                contestants, repeats=effort.repeats, budget=effort.budget, progress=progress
            )["znni"]
        row: Row = {"work": network.name, "name": "znni", "threads": count}
        row["patch"] = str(plan.patch)
        if result.ran:
            row |= result.record()
            row["voxels_per_s"] = plan.patch.volume / row["seconds"]
            row["predicted_voxels_per_s"] = plan.patch.volume / plan.patch_seconds
        rows.append(row | ({"skipped": failed["znni"]} if failed else {}))
    return with_efficiency(rows)


def with_efficiency(rows: list[Row]) -> list[Row]:
    """Rows with the speed-up over the fewest threads of the same work, and per thread added.

    Speeds are compared per output voxel, since a plan for other threads may take another patch.
    """
    alone: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: int(row["threads"])):
        if "voxels_per_s" in row:
            base = alone.setdefault((row["work"], row["name"]), row)
            row["speedup"] = row["voxels_per_s"] / base["voxels_per_s"]
            row["efficiency"] = row["speedup"] * base["threads"] / row["threads"]
    return rows
