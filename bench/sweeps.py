"""The share of work that is done more than once, by the best plans with and without sweeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import znni
from bench import session
from bench.record import Row
from bench.unet_networks import UNETS
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Accuracy
from znni.core.plan_options import memory_size
from znni.core.shapes import Vec3
from znni.inference.planning import fastest, search
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.plans.plan import Plan

Limits = Annotated[
    list[int],
    typer.Option(
        "--memory", parser=memory_size, metavar="SIZE", help="Memory of the device; repeatable."
    ),
]

Unets = Annotated[list[str], typer.Option("--unet", help="A U-Net; repeatable.")]


def sweeps_command(
    memory: Limits,
    net: session.Nets = [],  # noqa: B006 - typer reads it
    unet: Unets = [],  # noqa: B006
    machine: Annotated[
        Path | None, typer.Option(help="A machine's file. Default: this one.")
    ] = None,
    device: session.Device = "gpu",
    size: session.Volume = 1024,
    accuracy: session.AccuracyClass = "float32",
    run: Annotated[
        bool, typer.Option("--run", help="Run both plans over random voxels here, twice each.")
    ] = False,
    out: session.Out = None,
) -> None:
    """Plan with and without sweeps under limits of a device's memory."""
    session.check_known("unet", unet, UNETS)
    networks = [*map(load_network, net), *(UNETS[name]() for name in unet)]
    each = product(memory, networks)
    found = (
        list(rows(network, limit, machine, device, size, accuracy, run=run))
        for limit, network in each
    )
    session.report_all("sweeps", found, [], out)


def rows(
    network: Network,
    limit: int,
    machine: Path | None,
    device: str,
    size: int,
    accuracy: Accuracy,
    *,
    run: bool = False,
) -> Iterator[Row]:
    """Yield the row of a network and a limit. With ``run``, both plans are run if they differ."""
    session.progress(f"planning {network.name} within {limit / 2**30:g} GiB")
    limits = {"gpu_memory" if device == "gpu" else "ram": limit}
    options = {"machine": machine, "device": device, "accuracy": accuracy, **limits}
    able = search(network, (size,) * 3, input_itemsize=1, **options)  # type: ignore[arg-type]
    row: Row = {
        "network": network.name,
        "device": able.machine.gpus[0].name if device == "gpu" else able.machine.host.name,
        "memory_gib": limit / 2**30,
        "volume": str(Vec3.of(size)),
        "class": accuracy,
    }
    try:
        plain = fastest(replace(able, sweeps=False))[0]
        chosen = fastest(able)[0]
    except DoesNotFit as error:
        yield row | {"skipped": str(error)}
        return
    row |= _of(plain, "plain") | _of(chosen, "chosen") | {"sweeps": chosen.is_swept}
    if run and chosen.is_swept:
        row |= compare_runs(network, plain, chosen, able.output)
    yield row


def _of(plan: Plan, name: str) -> Row:
    """Return the entries of a plan."""
    return {
        f"{name}_patch": str(plan.patch),
        f"{name}_repeated": plan.wasted_work,
        f"{name}_seconds": plan.seconds,
    }


def compare_runs(network: Network, plain: Plan, chosen: Plan, size: Vec3) -> Row:
    """Run both plans in turn, twice, and return the seconds of the second runs.

    The volume and the outputs are arrays in memory. The first runs compile kernels.
    """
    volume = np.random.default_rng(0).integers(0, 256, (network.in_features, *size), np.uint8)
    row, outputs = Row(), dict[str, np.ndarray[Any, Any]]()
    for name, plan in (("plain", plain), ("chosen", chosen)) * 2:
        session.progress(f"running {network.name} in blocks of {plan.patch}")
        made = outputs.setdefault(name, np.ones((network.out_features, *size), np.float32))
        begun = time.perf_counter()
        report = znni.infer(volume, network, made, plan=plan, border="same", random_seed=1)
        row[f"{name}_measured"] = time.perf_counter() - begun
        memory = plan.gpu_memory or plan.memory
        peak = report.gpu_peak_memory if plan.gpu_memory else report.peak_memory
        row[f"{name}_declared_gib"] = memory.total / 2**30
        row[f"{name}_peak_gib"] = peak / 2**30
    apart = np.abs(outputs["chosen"] - outputs["plain"]).max() / np.abs(outputs["plain"]).max()
    return row | {"apart": float(apart)}
