"""The time of the planner's search, here and for machines that are not here."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from bench import session
from bench.record import Row
from planner.search import Search
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Division
from znni.core.processors import DeviceChoice
from znni.inference.planning import search
from znni.network.network_file import load_network


def search_command(
    net: session.Nets,
    ram: session.RamLimits = [],  # noqa: B006
    machine: Annotated[
        list[Path] | None,
        typer.Option(help="A machine's file, with the memory that it has; repeatable."),
    ] = None,
    size: session.Volume = 2048,
    micro_batches: Annotated[Division, typer.Option("--micro-batches")] = "power-of-two",
    device: Annotated[DeviceChoice, typer.Option(help="Where layers may run.")] = "cpu",
    costs: session.CostsChoice = "auto",
    out: session.Out = None,
) -> None:
    """Time the search for a plan."""
    networks = [load_network(path) for path in net]
    asked = [*product(ram, [None]), *product([None], machine or [])]

    def timed(limit: int | None, file: Path | None) -> list[Row]:
        rows = []
        for network in networks:
            session.progress(f"planning {network.name} for {file or 'this machine'}")
            started = search(
                network,
                (size, size, size),
                ram=limit,
                machine=file,
                micro_batches=micro_batches,
                device=device,
                costs=costs,
            )
            rows.append(time_search(started))
        return rows

    session.report_all("search", (timed(*one) for one in asked), [], out)


def time_search(started: Search) -> Row:
    """Time a search that starts afresh for one plan, and say what it finds."""
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
