"""``python -m bench COMMAND``: measure, print a table, save the JSON; print and draw saved ones."""

from __future__ import annotations

import sys
from itertools import chain, product
from pathlib import Path
from typing import Annotated

import typer

from bench import scaling
from bench.ceilings import Ceilings, measure_ceilings
from bench.choices import judge_choices
from bench.layers import (
    Effort,
    Layer,
    check_primitives,
    compare_layer,
    convolution_of,
    layer,
)
from bench.network_peers import check_peers
from bench.networks import Rivals, compare_network, plan_for
from bench.plot import plot
from bench.profile import profile
from bench.record import Kind, Row, load, save
from bench.table import table
from znni.errors import InvalidInput, ZnniError
from znni.machine import detect_machine
from znni.network import Network
from znni.network_file import load_network
from znni.options import Accuracy
from znni.planning import checked_plan
from znni.plans import Plan
from znni.shapes import Shape5, Vec3

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)

Kernels = Annotated[list[int], typer.Option("--kernel", help="Kernel extent; repeatable.")]
Batches = Annotated[list[int], typer.Option("--batch", help="Inputs times fragments; repeatable.")]
Sizes = Annotated[list[int], typer.Option("--size", help="Input voxels per axis; repeatable.")]
Features = Annotated[int, typer.Option(help="Input maps.")]
OutFeatures = Annotated[int, typer.Option(help="Output maps.")]
Window = Annotated[int | None, typer.Option("--pool", help="Pool by so many voxels per axis.")]
Only = Annotated[list[str] | None, typer.Option(help="A primitive; repeatable. Default: all.")]
Nets = Annotated[list[Path], typer.Option("--net", help="Network file; repeatable.")]
Volume = Annotated[int, typer.Option("--size", help="Voxels per axis of the volume planned for.")]
Ram = Annotated[float, typer.Option(help="GiB that a plan may take.")]
Patch = Annotated[int | None, typer.Option(help="Plan for an output of so many voxels per axis.")]
PlanFile = Annotated[Path | None, typer.Option(help="Run this plan, made by znni plan --out.")]
AccuracyClass = Annotated[Accuracy, typer.Option("--accuracy", help="Of the primitives planned.")]
Threads = Annotated[int | None, typer.Option(help="Worker threads. Default: all cores.")]
Repeats = Annotated[int, typer.Option(help="Counted rounds.")]
Budget = Annotated[float, typer.Option(help="Seconds for the counted rounds of one contestant.")]
Out = Annotated[Path | None, typer.Option(help="Save the JSON here.")]


@app.command("layer")
def layer_command(
    kernel: Kernels,
    batch: Batches = [1],  # noqa: B006
    size: Sizes = [64],  # noqa: B006
    features: Features = 80,
    out_features: OutFeatures = 80,
    pool: Window = None,
    only: Only = None,
    peers: Annotated[bool, typer.Option(help="PyTorch, too.")] = True,
    threads: Threads = None,
    repeats: Repeats = 5,
    budget: Budget = 60.0,
    out: Out = None,
) -> None:
    """Every primitive on one convolution, beside PyTorch's."""
    machine = detect_machine(threads=threads)
    check_primitives(only or [], machine)
    ceilings = _ceilings(machine.host.threads)
    rows: list[Row] = []
    for operation, shape in _layers(kernel, batch, size, features, out_features, pool):
        _progress(f"{operation.name} {convolution_of(operation).kernel} on {shape}")
        effort = Effort(repeats, budget)
        found = compare_layer(machine, operation, shape, only or [], effort, ceilings, peers=peers)
        typer.echo(table("layer", found))
        rows += found
        _save(out, "layer", rows, [ceilings])


@app.command("choices")
def choices_command(
    results: Annotated[list[Path], typer.Argument(help="JSON files of bench layer.")],
) -> None:
    """Whether the planner's model picks the primitive that is fastest."""
    rows = [row for path in results for row in load(path, "layer").rows]
    typer.echo(table("choices", judge_choices(rows)))


@app.command("network")
def network_command(
    net: Nets,
    size: Volume = 512,
    ram: Ram = 16.0,
    patch: Patch = None,
    plan: PlanFile = None,
    accuracy: AccuracyClass = "float32",
    peer: Annotated[list[str] | None, typer.Option(help="Repeatable. Default: all.")] = None,
    peer_ram: Annotated[
        float | None, typer.Option(help="GiB for a peer's patch. Default: --ram.")
    ] = None,
    threads: Threads = None,
    repeats: Repeats = 3,
    budget: Budget = 120.0,
    out: Out = None,
) -> None:
    """The best plan's patch for whole networks, beside the peers at their best patches."""
    names = check_peers(peer or [])
    ceilings = _ceilings(detect_machine(threads=threads).host.threads)
    rivals = Rivals(tuple(names), _bytes(peer_ram or ram))
    rows: list[Row] = []
    for network in map(load_network, net):
        chosen = _plan(network, size, ram, threads, patch, accuracy, plan)
        found = compare_network(chosen, rivals, Effort(repeats, budget), _progress)
        typer.echo(table("network", found))
        rows += found
        _save(out, "network", rows, [ceilings])


@app.command("profile")
def profile_command(
    net: Nets,
    size: Volume = 512,
    ram: Ram = 16.0,
    patch: Patch = None,
    plan: PlanFile = None,
    accuracy: AccuracyClass = "float32",
    threads: Threads = None,
    repeats: Repeats = 1,
    out: Out = None,
) -> None:
    """Where a plan's patch spends its time, layer by layer."""
    ceilings = _ceilings(detect_machine(threads=threads).host.threads)
    rows: list[Row] = []
    for network in map(load_network, net):
        chosen = _plan(network, size, ram, threads, patch, accuracy, plan)
        found = profile(chosen, ceilings, repeats, _progress)
        typer.echo(table("profile", found))
        rows += found
        _save(out, "profile", rows, [ceilings])


@app.command("scaling")
def scaling_command(
    threads: Annotated[list[int], typer.Option(help="Worker threads; repeatable.")],
    kernel: Kernels = [],  # noqa: B006
    batch: Batches = [8],  # noqa: B006
    size: Sizes = [48],  # noqa: B006
    features: Features = 80,
    out_features: OutFeatures = 80,
    only: Only = None,
    net: Annotated[list[Path] | None, typer.Option(help="Network file; repeatable.")] = None,
    patch: Annotated[int, typer.Option(help="Output voxels per axis of a network's patch.")] = 64,
    ram: Ram = 16.0,
    repeats: Repeats = 5,
    budget: Budget = 60.0,
    out: Out = None,
) -> None:
    """Layers and networks with more and more threads."""
    check_primitives(only or [], detect_machine())
    effort = Effort(repeats, budget)
    layers = list(_layers(kernel, batch, size, features, out_features))
    networks = [load_network(path) for path in net or []]
    ceilings = [_ceilings(count) for count in threads]
    found = chain(
        scaling.layer_rows(ceilings, layers, only or [], effort, _progress),
        *(
            scaling.network_rows(threads, network, patch, _bytes(ram), effort, _progress)
            for network in networks
        ),
    )
    rows: list[Row] = []
    for row in found:
        rows.append(row)
        _save(out, "scaling", scaling.with_efficiency(rows), ceilings)
    typer.echo(table("scaling", rows))


@app.command("table")
def table_command(results: Annotated[Path, typer.Argument(help="A saved JSON.")]) -> None:
    """Print saved results as a Markdown table."""
    record = load(results)
    typer.echo(table(record.kind, record.rows))


@app.command("plot")
def plot_command(
    results: Annotated[Path, typer.Argument(help="A saved JSON.")],
    out: Annotated[Path, typer.Option(help="The picture, such as layers.png.")],
) -> None:
    """Draw saved results of layer, network or scaling."""
    plot(load(results), out)


def _layers(
    kernels: list[int],
    batches: list[int],
    sizes: list[int],
    features: int,
    out_features: int,
    window: int | None = None,
) -> list[tuple[Layer, Shape5]]:
    """Every combination, as layers and the shapes of their inputs."""
    return [
        (
            layer(Vec3.of(kernel), features, out_features, window),
            Shape5.of(batch, features, Vec3.of(size)),
        )
        for kernel, batch, size in product(kernels, batches, sizes)
    ]


def _plan(
    network: Network,
    size: int,
    ram: float,
    threads: int | None,
    patch: int | None,
    accuracy: Accuracy,
    given: Path | None,
) -> Plan:
    if given is None:
        _progress(f"planning {network.name}")
        return plan_for(network, size, _bytes(ram), threads, patch, accuracy)
    try:
        text = given.read_text()
    except OSError as error:
        raise InvalidInput(f"{given}: cannot be read: {error.strerror}") from None
    return checked_plan(Plan.from_json(text), network, _bytes(ram), threads)


def _bytes(gib: float) -> int:
    return int(gib * 2**30)


def _ceilings(threads: int) -> Ceilings:
    ceilings = measure_ceilings(threads)
    typer.echo(ceilings)
    return ceilings


def _progress(what: str) -> None:
    typer.echo(f"... {what}", err=True)


def _save(out: Path | None, kind: Kind, rows: list[Row], ceilings: list[Ceilings]) -> None:
    if out:
        save(out, kind, rows, ceilings)


def main() -> None:
    """Run a command; an error that a user can mend is one line."""
    try:
        app()
    except ZnniError as error:
        typer.echo(f"bench: error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
