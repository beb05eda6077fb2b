"""What the commands share: what is measured, how far it has come, and where it goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

import typer

from bench.ceilings import Ceilings, measure_ceilings
from bench.layers import Layer, layer
from bench.networks import plan_for, volume_for
from bench.record import Kind, Limits, Row, save
from bench.table import table
from znni.core.errors import InvalidInput
from znni.core.options import Accuracy, Choices, Costs
from znni.core.shapes import Shape5, Vec3
from znni.inference.planning import checked_plan, fastest, search
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.plans.plan import Plan
from znni.plans.plan_file import load_plan


def layers_of(
    kernels: list[int],
    batches: list[int],
    sizes: list[int],
    features: int,
    out_features: int,
    window: int | None = None,
) -> list[tuple[Layer, Shape5]]:
    """Every combination, as layers and the shapes of their inputs.

    Raises:
        InvalidInput: a kernel with its pooling sees more than there is.
    """
    seen = max(kernels, default=1) + (window or 1) - 1
    if seen > min(sizes):
        raise InvalidInput(
            f"--kernel {max(kernels)} needs {seen} voxels per axis: --size {min(sizes)} is less"
        )
    return [
        (
            layer(Vec3.of(kernel), features, out_features, window),
            Shape5.of(batch, features, Vec3.of(size)),
        )
        for kernel, batch, size in product(kernels, batches, sizes)
    ]


def plans_of(
    nets: list[Path],
    size: int,
    ram: int,
    threads: int | None,
    patch: int | None,
    accuracy: Accuracy,
    given: Path | None,
) -> Iterator[Plan]:
    """Each network's plan: the given one if there is one, or the best."""
    choices = Choices(ram, threads, accuracy=accuracy)
    for network in map(load_network, nets):
        if given is None:
            progress(f"planning {network.name}")
            yield plan_for(network, size, ram, threads, patch, accuracy)
        else:
            yield checked_plan(load_plan(given), network, choices)


def top_plans(
    network: Network,
    size: int,
    ram: int,
    threads: int | None,
    patch: int | None,
    costs: Costs,
    accuracy: Accuracy,
    count: int,
) -> list[Plan]:
    """The plans with the least predicted time for a volume as ``volume_for`` has it."""
    progress(f"planning {network.name}")
    volume = volume_for(network, size, patch)
    found = search(
        network,
        volume,
        ram=ram,
        threads=threads,
        costs=costs,
        accuracy=accuracy,
        device="cpu",
    )
    return fastest(found, count)


def ceilings_with(threads: int) -> Ceilings:
    """Measured, and printed."""
    ceilings = measure_ceilings(threads)
    typer.echo(ceilings)
    return ceilings


def ceilings_of(plan: Plan, known: list[Ceilings]) -> Ceilings:
    """The ceilings with a plan's threads; measured, and added, if they are not yet known."""
    threads = plan.machine.host.threads
    for ceilings in known:
        if ceilings.threads == threads:
            return ceilings
    known.append(ceilings_with(threads))
    return known[-1]


def progress(what: str) -> None:
    """Tell what is done next."""
    typer.echo(f"... {what}", err=True)


def report_all(
    kind: Kind, measured: Iterable[list[Row]], ceilings: Sequence[Limits], out: Path | None
) -> None:
    """Print the table of each that is measured, and save it with those before it."""
    rows: list[Row] = []
    for found in measured:
        typer.echo(table(kind, found))
        rows += found
        save_to(out, kind, rows, ceilings)


def save_to(out: Path | None, kind: Kind, rows: list[Row], ceilings: Sequence[Limits]) -> None:
    """Save rows, if they are to be."""
    if out:
        save(out, kind, rows, ceilings)
