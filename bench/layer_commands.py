"""The commands about single layers: primitives beside PyTorch, batches in pieces, more threads."""

from __future__ import annotations

from itertools import chain, product, starmap
from pathlib import Path
from typing import Annotated

import typer

from bench import options, scaling
from bench.ceilings import Ceilings
from bench.handing_out import handing_out
from bench.layers import Layer, check_primitives, compare_layer, convolution_of
from bench.micro_batches import compare_divisions
from bench.record import Row
from bench.rounds import Effort
from bench.session import (
    ceilings_with,
    layers_of,
    progress,
    report_all,
    save_to,
)
from bench.table import table
from planner.cost_model import CostModel
from znni.calibration.choice import cost_model
from znni.core.options import Costs, memory_size
from znni.core.shapes import Shape5
from znni.machine.detect import detect_host
from znni.machine.machine import Machine
from znni.network.network_file import load_network
from znni.primitives.catalogue import catalogue


def host_with(
    only: list[str], costs: Costs, threads: int | None
) -> tuple[Machine, CostModel, Ceilings]:
    """This machine, which has the primitives named, with the model of their times and its ceilings.

    Raises:
        InvalidInput: no primitive has such a name, or there are no measured costs.
    """
    machine = detect_host(threads=threads)
    check_primitives(only, machine)
    model = cost_model(catalogue(machine), costs)
    typer.echo(f"predicted times: {model.source}")
    return machine, model, ceilings_with(machine.host.threads)


def layer_command(
    kernel: options.Kernels,
    batch: options.Batches = [1],  # noqa: B006
    size: options.Sizes = [64],  # noqa: B006
    features: options.Features = 80,
    out_features: options.OutFeatures = 80,
    pool: Annotated[
        int | None, typer.Option(min=1, help="Pool by so many voxels per axis.")
    ] = None,
    only: options.Only = None,
    peers: Annotated[bool, typer.Option(help="PyTorch, too.")] = True,
    costs: options.CostsChoice = "auto",
    threads: options.Threads = None,
    repeats: options.Repeats = 5,
    budget: options.Budget = 60.0,
    out: options.Out = None,
) -> None:
    """Every primitive on one convolution, beside PyTorch's."""
    machine, model, ceilings = host_with(only or [], costs, threads)
    effort = Effort(repeats, budget)

    def compared(operation: Layer, shape: Shape5) -> list[Row]:
        progress(f"{operation.name} {convolution_of(operation).kernel} on {shape}")
        return compare_layer(
            machine, operation, shape, only or [], effort, ceilings, peers=peers, model=model
        )

    layers = layers_of(kernel, batch, size, features, out_features, pool)
    report_all("layer", starmap(compared, layers), [ceilings], out)


def micro_batches_command(
    kernel: options.Kernels,
    workspace: Annotated[
        list[int],
        typer.Option(parser=memory_size, metavar="SIZE", help="Limit; repeatable."),
    ],
    batch: options.Batches = [64],  # noqa: B006
    size: options.Sizes = [32],  # noqa: B006
    features: options.Features = 80,
    out_features: options.OutFeatures = 80,
    only: options.Only = None,
    costs: options.CostsChoice = "auto",
    threads: options.Threads = None,
    repeats: options.Repeats = 5,
    budget: options.Budget = 60.0,
    out: options.Out = None,
) -> None:
    """What cutting a layer's batch gains within limits of workspace."""
    machine, model, ceilings = host_with(only or [], costs, threads)
    effort = Effort(repeats, budget)

    def compared(operation: Layer, shape: Shape5) -> list[Row]:
        progress(f"{operation.name} {convolution_of(operation).kernel} on {shape}")
        return compare_divisions(machine, operation, shape, workspace, only or [], model, effort)

    layers = layers_of(kernel, batch, size, features, out_features)
    report_all("micro-batches", starmap(compared, layers), [ceilings], out)


def scaling_command(
    threads: Annotated[list[int], typer.Option(min=1, help="Worker threads; repeatable.")],
    kernel: options.Kernels = [],  # noqa: B006
    batch: options.Batches = [8],  # noqa: B006
    size: options.Sizes = [48],  # noqa: B006
    features: options.Features = 80,
    out_features: options.OutFeatures = 80,
    only: options.Only = None,
    net: Annotated[list[Path] | None, typer.Option(help="Network file; repeatable.")] = None,
    patch: Annotated[
        int, typer.Option(min=1, help="Output voxels per axis of a network's patch.")
    ] = 64,
    ram: options.Ram = 16 << 30,
    repeats: options.Repeats = 5,
    budget: options.Budget = 60.0,
    out: options.Out = None,
) -> None:
    """Layers and networks with more and more threads."""
    check_primitives(only or [], detect_host())
    effort = Effort(repeats, budget)
    layers = list(layers_of(kernel, batch, size, features, out_features))
    networks = [load_network(path) for path in net or []]
    ceilings = [ceilings_with(count) for count in threads]
    found = chain(
        scaling.layer_rows(ceilings, layers, only or [], effort, progress),
        *(
            scaling.network_rows(threads, network, patch, ram, effort, progress)
            for network in networks
        ),
    )
    rows: list[Row] = []
    for row in found:
        rows.append(row)
        save_to(out, "scaling", scaling.with_efficiency(rows), ceilings)
    typer.echo(table("scaling", rows))


def handing_out_command(
    batch: options.Batches = [4, 16],  # noqa: B006
    threads: Annotated[list[int], typer.Option(min=1, help="Worker threads; repeatable.")] = [1, 2],  # noqa: B006
    only: options.Only = None,
    repeats: options.Repeats = 200,
    budget: options.Budget = 5.0,
    out: options.Out = None,
) -> None:
    """What Python takes to hand out work, by images so small that it is most of the time."""
    check_primitives(only or [], detect_host())
    effort = Effort(repeats, budget)

    def measured(count: int, images: int) -> list[Row]:
        progress(f"{images} images, {count} threads")
        return handing_out(images, count, only or [], effort)

    report_all("handing-out", starmap(measured, product(threads, batch)), [], out)
