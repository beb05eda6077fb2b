"""Layers and networks with more and more threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, product
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from bench import session
from bench.ceilings import Ceilings, measure_ceilings
from bench.child import Child, ChildFailed
from bench.layers import Layer, compare_layer, convolution_of, layers_of
from bench.patches import PlanPatch, volume_for
from bench.peers.best_patch import PEERS, SWEEP_SHARE, Rivals, best_patch, missing, start
from bench.record import Row
from bench.rounds import Effort, run_rounds
from bench.table import table
from znni.core.shapes import Shape5
from znni.inference.planning import search
from znni.machine.detect import detect_host
from znni.network.network import Network
from znni.network.network_file import load_network


def scaling_command(
    threads: session.ThreadCounts,
    kernel: session.Kernels = [],  # noqa: B006
    batch: session.Batches = [8],  # noqa: B006
    size: session.Sizes = [48],  # noqa: B006
    features: session.Features = 80,
    out_features: session.OutFeatures = 80,
    only: session.Only = None,
    net: Annotated[list[Path] | None, typer.Option(help="Network file; repeatable.")] = None,
    patch: Annotated[
        int, typer.Option(min=1, help="Output voxels per axis of a network's patch.")
    ] = 64,
    ram: session.Ram = session.RAM,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"For networks: {', '.join(PEERS)}; repeatable. Default: none."),
    ] = None,
    repeats: session.Repeats = 5,
    budget: session.Budget = 60.0,
    out: session.Out = None,
) -> None:
    """Run layers and networks with more threads, and peers beside them.

    Peers of networks take the patch that suits them best, up to the size of ours.
    """
    session.check_primitives(only or [], detect_host())
    session.check_known("peer", peer or [], PEERS)
    effort = Effort(repeats, budget)
    layers = layers_of(kernel, batch, size, [(features, out_features)])
    networks = [load_network(path) for path in net or []]
    ceilings = [measure_ceilings(count) for count in threads]
    for measured in ceilings:
        typer.echo(measured)
    found = chain(
        layer_rows(ceilings, layers, only or [], effort),
        *(network_rows(ceilings, network, patch, ram, effort) for network in networks),
        *(
            peer_rows(threads, network, patch, Rivals(tuple(peer or ()), ram=ram), effort)
            for network in networks
        ),
    )
    rows: list[Row] = []
    for row in found:
        rows.append(row)
        session.save_to(out, "scaling", with_efficiency(rows), ceilings)
    typer.echo(table("scaling", rows))


def layer_rows(
    ceilings: Iterable[Ceilings],
    layers: list[tuple[Layer, Shape5]],
    only: list[str],
    effort: Effort,
) -> Iterator[Row]:
    """Yield rows of each layer by each primitive and peer, with the threads of each ceiling."""
    for measured in ceilings:
        machine = detect_host(threads=measured.threads)
        for layer, shape in layers:
            session.progress(
                f"{convolution_of(layer).kernel} on {shape}, {measured.threads} threads"
            )
            for row in compare_layer(machine, layer, shape, only, effort, measured):
                yield {"work": f"{row['kernel']} {row['input']}", **row}


def network_rows(
    ceilings: Iterable[Ceilings],
    network: Network,
    patch: int,
    ram: int,
    effort: Effort,
) -> Iterator[Row]:
    """Yield rows of a network's patch, planned for the threads of each ceiling.

    The patch has at most so many output voxels per axis. Plans are those of a process that has
    touched all its memory, because a warm patch is timed.
    """
    volume = volume_for(network, 0, patch)
    for measured in ceilings:
        threads = measured.threads
        cold = search(network, volume, device="cpu", ram=ram, threads=threads)
        (plan,) = replace(cold, overhead=replace(cold.overhead, warm=inf)).fastest()
        with Child(PlanPatch, plan.to_json()) as child:
            failed: dict[str, str] = {}
            contestants = {"znni": child.stopwatch(failed, "znni", "seconds")}
            result = run_rounds(contestants, effort, progress=session.progress)["znni"]
        row: Row = {"work": network.name, "name": "znni", "threads": threads}
        row["patch"] = str(plan.patch)
        if result.ran:
            row |= result.record()
            row["voxels_per_s"] = plan.patch.volume / row["seconds"]
            row["predicted_voxels_per_s"] = plan.patch.volume / plan.patch_seconds
            floor = sum(
                count * measured.floor(step.cost).seconds
                for part in plan.parts
                for step, count in part.step_runs()
            )
            row["achieved"] = floor / row["seconds"]
        yield row | ({"skipped": failed["znni"]} if failed else {})


def peer_rows(
    threads: Iterable[int], network: Network, patch: int, rivals: Rivals, effort: Effort
) -> Iterator[Row]:
    """Yield rows of a network by each peer, with each number of threads.

    Patches have at most so many output voxels per axis. A patch that takes longer than the budget
    is timed in parts.
    """
    room = detect_host().host.memory
    for count, name in product(threads, rivals.names):
        row: Row = {"work": network.name, "name": name, "threads": count}
        session.progress(f"{network.name}, {name}, {count} threads")
        failed: dict[str, str] = {}
        try:
            if reason := missing(name, network):
                raise ChildFailed(reason)
            found = best_patch(name, network, count, rivals, SWEEP_SHARE * effort.budget, patch)
            with start(name, network, found.layout, count, rivals.ram) as child:
                row |= {"patch": str(found.patch), "layout": found.layout}
                way = child.call("prepare", found.patch, found.seconds, effort.budget, room)
                contestants = {name: child.stopwatch(failed, name, "seconds")}
                result = run_rounds(contestants, effort)[name]
            if result.ran:
                row |= {"measured": way, **result.record()}
                row["voxels_per_s"] = found.patch.volume / row["seconds"]
        except ChildFailed as error:
            failed[name] = str(error)
        yield row | ({"skipped": failed[name]} if failed else {})


def with_efficiency(rows: list[Row]) -> list[Row]:
    """Add the speed-up over the fewest threads of the same work, and per thread.

    Speeds are compared per output voxel, because a plan for other threads may take another patch.
    The speed-up of the floors is the one that the machine allows, if its ceilings were measured.
    """
    alone: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: int(row["threads"])):
        if "voxels_per_s" in row:
            base = alone.setdefault((row["work"], row["name"]), row)
            row["speedup"] = row["voxels_per_s"] / base["voxels_per_s"]
            row["efficiency"] = row["speedup"] * base["threads"] / row["threads"]
            if "achieved" in row and "achieved" in base:
                row["floor_speedup"] = row["speedup"] * base["achieved"] / row["achieved"]
    return rows
