"""``python -m bench COMMAND``: measure, print a table, save the JSON; print and draw saved ones."""

from __future__ import annotations

import sys
from itertools import chain, starmap
from pathlib import Path
from typing import Annotated

import typer

from bench import options, scaling
from bench.ceilings import Ceilings
from bench.choices import judge_choices
from bench.gpu_commands import (
    gpu_exercise_command,
    gpu_layers_command,
    gpu_networks_command,
    gpu_profile_command,
)
from bench.joining import join
from bench.layers import Layer, check_primitives, compare_layer, convolution_of
from bench.ledger_commands import kills_command, ledger_command
from bench.micro_batches import compare_divisions
from bench.network_peers import check_peers
from bench.networks import Rivals, compare_network
from bench.planner_commands import (
    machine_command,
    run_strategies_command,
    search_command,
    shares_command,
    strategies_command,
    top_plans_command,
)
from bench.plot import plot
from bench.profile import profile
from bench.record import Row, load, revision, write
from bench.report import report
from bench.rounds import Effort
from bench.session import (
    ceilings_of,
    ceilings_with,
    layers_of,
    plans_of,
    progress,
    report_all,
    save_to,
)
from bench.table import table
from bench.volume_commands import end_to_end_command, volumes_command
from znni.calibration.choice import cost_model
from znni.calibration.database import CostDatabase
from znni.calibration.record import record_steps
from znni.cli.usage import usage_error
from znni.errors import ZnniError
from znni.machine import detect_host
from znni.network_file import load_network
from znni.options import memory_size
from znni.plans import Plan
from znni.primitive import catalogue
from znni.segments import Step
from znni.shapes import Shape5

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help gives flags a type, as if they took a value
    help=__doc__,
)


@app.command("layer")
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
    machine = detect_host(threads=threads)
    check_primitives(only or [], machine)
    model = cost_model(catalogue(machine), costs)
    typer.echo(f"predicted times: {model.source}")
    ceilings = ceilings_with(machine.host.threads)
    effort = Effort(repeats, budget)

    def compared(operation: Layer, shape: Shape5) -> list[Row]:
        progress(f"{operation.name} {convolution_of(operation).kernel} on {shape}")
        return compare_layer(
            machine, operation, shape, only or [], effort, ceilings, peers=peers, model=model
        )

    layers = layers_of(kernel, batch, size, features, out_features, pool)
    report_all("layer", starmap(compared, layers), [ceilings], out)


@app.command("micro-batches")
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
    machine = detect_host(threads=threads)
    check_primitives(only or [], machine)
    model = cost_model(catalogue(machine), costs)
    typer.echo(f"predicted times: {model.source}")
    ceilings = ceilings_with(machine.host.threads)
    effort = Effort(repeats, budget)

    def compared(operation: Layer, shape: Shape5) -> list[Row]:
        progress(f"{operation.name} {convolution_of(operation).kernel} on {shape}")
        return compare_divisions(machine, operation, shape, workspace, only or [], model, effort)

    layers = layers_of(kernel, batch, size, features, out_features)
    report_all("micro-batches", starmap(compared, layers), [ceilings], out)


app.command("machine-plans")(machine_command)
app.command("strategies")(strategies_command)
app.command("run-strategies")(run_strategies_command)
app.command("search")(search_command)
app.command("shares")(shares_command)


@app.command("choices")
def choices_command(
    results: Annotated[list[Path], typer.Argument(help="JSON files of bench layer.")],
) -> None:
    """Whether the planner's model picks the primitive that is fastest."""
    rows = [row for path in results for row in load(path, "layer").rows]
    typer.echo(table("choices", judge_choices(rows)))


@app.command("network")
def network_command(
    net: options.Nets,
    size: options.Volume = 512,
    ram: options.Ram = 16 << 30,
    patch: options.Patch = None,
    plan: options.PlanFile = None,
    accuracy: options.AccuracyClass = "float32",
    peer: Annotated[list[str] | None, typer.Option(help="Repeatable. Default: all.")] = None,
    peer_ram: Annotated[
        int | None,
        typer.Option(
            parser=memory_size, metavar="SIZE", help="Memory for a peer's patch. Default: --ram."
        ),
    ] = None,
    threads: options.Threads = None,
    repeats: options.Repeats = 3,
    budget: options.Budget = 120.0,
    out: options.Out = None,
) -> None:
    """The best plan's patch for whole networks, beside the peers at their best patches."""
    names = check_peers(peer or [])
    rivals, effort = (
        Rivals(tuple(names), ram if peer_ram is None else peer_ram),
        Effort(repeats, budget),
    )
    ceilings: list[Ceilings] = []

    def compared(chosen: Plan) -> list[Row]:
        ceilings_of(chosen, ceilings)
        return compare_network(chosen, rivals, effort, progress)

    plans = plans_of(net, size, ram, threads, patch, accuracy, plan)
    report_all("network", map(compared, plans), ceilings, out)


app.command("top-plans")(top_plans_command)


@app.command("profile")
def profile_command(
    net: options.Nets,
    size: options.Volume = 512,
    ram: options.Ram = 16 << 30,
    patch: options.Patch = None,
    plan: options.PlanFile = None,
    accuracy: options.AccuracyClass = "float32",
    threads: options.Threads = None,
    repeats: options.Repeats = 1,
    record: Annotated[bool, typer.Option("--record", help="Add to the measured costs.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Time each layer alone, too, as a calibration does.")
    ] = False,
    out: options.Out = None,
) -> None:
    """Where a plan's patch spends its time, layer by layer."""
    ceilings: list[Ceilings] = []

    def profiled(chosen: Plan) -> list[Row]:
        timings: list[tuple[Step, float]] = []

        def keep(step: Step, seconds: float) -> None:
            timings.append((step, seconds))

        limits = ceilings_of(chosen, ceilings)
        rows = profile(chosen, limits, repeats, progress, keep, alone=alone)
        if record:
            record_steps(timings, chosen.machine.host.threads, CostDatabase())
        return rows

    plans = plans_of(net, size, ram, threads, patch, accuracy, plan)
    report_all("profile", map(profiled, plans), ceilings, out)


@app.command("scaling")
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


app.command("gpu-exercise")(gpu_exercise_command)
app.command("gpu-layers")(gpu_layers_command)
app.command("gpu-networks")(gpu_networks_command)
app.command("gpu-profile")(gpu_profile_command)
app.command("volumes")(volumes_command)
app.command("end-to-end")(end_to_end_command)
app.command("kills")(kills_command)
app.command("ledger")(ledger_command)


@app.command("join")
def join_command(
    results: Annotated[list[Path], typer.Argument(help="Saved JSON files of one kind, in order.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Save the JSON here.")],
) -> None:
    """Save results of several commands as one."""
    write(out, join([load(path) for path in results]))


@app.command("table")
def table_command(results: Annotated[Path, typer.Argument(help="A saved JSON.")]) -> None:
    """Print saved results as a Markdown table."""
    record = load(results)
    typer.echo(table(record.kind, record.rows))


@app.command("report")
def report_command(
    results: Annotated[list[Path], typer.Argument(help="Saved JSON files.")],
) -> None:
    """Print saved results as a Markdown page, with machines, dates and commands."""
    typer.echo(report({path.name: load(path) for path in results}), nl=False)


@app.command("plot")
def plot_command(
    results: Annotated[list[Path], typer.Argument(help="Saved JSON files.")],
    out: Annotated[Path, typer.Option(help="The picture, such as layers.png.")],
) -> None:
    """Draw saved results of layer, network or scaling."""
    plot([load(path) for path in results], out)
    typer.echo(f"wrote {out}")


def main() -> None:
    """Run a command; an error that a user can mend is one line."""
    arguments = sys.argv[1:] or ["--help"]
    revision()
    try:
        sys.exit(app(arguments, prog_name="python -m bench", standalone_mode=False))
    except ZnniError as error:
        message, code = str(error), error.exit_code
    except typer.TyperException as error:  # an option or argument not understood
        message, code = usage_error(error), error.exit_code
    typer.echo(f"bench: error: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
