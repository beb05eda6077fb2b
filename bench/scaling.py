"""The same work with more and more threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bench.ceilings import Ceilings
from bench.child import Child
from bench.layers import Layer, compare_layer, convolution_of
from bench.networks import plan_for
from bench.plan_patch import PlanPatch
from bench.record import Row
from bench.rounds import Effort, run_rounds
from znni.core.shapes import Shape5
from znni.machine.detect import detect_host
from znni.network.network import Network

Progress = Callable[[str], None]


def layer_rows(
    ceilings: Iterable[Ceilings],
    layers: list[tuple[Layer, Shape5]],
    only: list[str],
    effort: Effort,
    progress: Progress = lambda _: None,
) -> Iterator[Row]:
    """Each layer by each primitive and peer, with the number of threads of each of the ceilings."""
    for measured in ceilings:
        machine = detect_host(threads=measured.threads)
        for layer, shape in layers:
            progress(f"{convolution_of(layer).kernel} on {shape}, {measured.threads} threads")
            for row in compare_layer(machine, layer, shape, only, effort, measured):
                yield {"work": f"{row['kernel']} {row['input']}", **row}


def network_rows(
    threads: Iterable[int],
    network: Network,
    patch: int,
    ram: int,
    effort: Effort,
    progress: Progress = lambda _: None,
) -> Iterator[Row]:
    """A network's patch of at most so many voxels per axis, planned for each number of threads."""
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
        yield row | ({"skipped": failed["znni"]} if failed else {})


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
