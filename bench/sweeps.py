"""The share of work that is done more than once, by the best plans with and without sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

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
    out: session.Out = None,
) -> None:
    """Plan with and without sweeps under limits of a device's memory."""
    session.check_known("unet", unet, UNETS)
    networks = [*map(load_network, net), *(UNETS[name]() for name in unet)]
    each = product(memory, networks)
    found = (list(rows(network, limit, machine, device, size, accuracy)) for limit, network in each)
    session.report_all("sweeps", found, [], out)


def rows(
    network: Network, limit: int, machine: Path | None, device: str, size: int, accuracy: Accuracy
) -> Iterator[Row]:
    """Yield the row of a network and a limit."""
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
    yield row | _of(plain, "plain") | _of(chosen, "chosen") | {"sweeps": chosen.is_swept}


def _of(plan: Plan, name: str) -> Row:
    """Return the entries of a plan."""
    return {
        f"{name}_patch": str(plan.patch),
        f"{name}_repeated": plan.wasted_work,
        f"{name}_seconds": plan.seconds,
    }
