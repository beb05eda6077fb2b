"""The commands and what they print."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from znni import __version__
from znni.cli import options
from znni.cli.import_network import import_network
from znni.cli.values import parse_roi, three_extents
from znni.cli.verify import verify
from znni.cli.view import view
from znni.options import Accuracy, Calibrated, Choices, Pad, PlanOptions, Stored
from znni.units import counted

if TYPE_CHECKING:
    from znni.network import Network
    from znni.plans import Plan

app = typer.Typer(
    name="znni",
    epilog="Add --debug to any command to see its log, and a traceback where it fails.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help gives flags a type, as if they took a value
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"znni {__version__}")
        raise typer.Exit


@app.callback()
def znni(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and stop."
        ),
    ] = False,
) -> None:
    """Run 3D ConvNets over volumes larger than memory, as fast as this machine can."""


@app.command()
def infer(
    volume: Annotated[
        str,
        typer.Argument(help="HDF5, Zarr, TIFF, NIfTI or .npy file, FILE:/DATASET, or Zarr URL."),
    ],
    net: options.Net,
    weights: Annotated[
        Path | None, typer.Option(help="Weights file. Default: the one the network names.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Output: .h5, .hdf5 or .zarr, or the URL of a Zarr. Default: VOLUME-NETWORK.h5 in "
            "this folder.",
        ),
    ] = None,
    dataset: options.Dataset = None,
    roi: options.Roi = None,
    mask: options.Mask = None,
    border: options.BorderChoice = "valid",
    pad: Annotated[Pad, typer.Option(help="What is seen beyond the edges.")] = "reflect",
    ram: options.Ram = None,
    threads: options.Threads = None,
    device: options.Device = "auto",
    gpu_memory: options.GpuMemory = None,
    gpus: options.Gpus = "1",
    dtype: options.Dtype = "float32",
    accuracy: options.AccuracyChoice = "float32",
    costs: options.CostsChoice = "auto",
    micro_batches: options.MicroBatchesChoice = "power-of-two",
    plan: Annotated[
        Path | None, typer.Option(help="Run this plan, made by znni plan --out.")
    ] = None,
    random_weights: Annotated[
        int | None, typer.Option(metavar="SEED", help="Random weights, to try a network out.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--no-resume",
            help="Go on with what an interrupted run of the same left, or start afresh.",
        ),
    ] = True,
    compression: options.CompressionChoice = None,
    sharded: Annotated[
        bool, typer.Option("--sharded", help="Store many chunks of a Zarr to a file.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and stop.")] = False,
) -> None:
    """Run a network over a volume and write its dense output."""
    from znni import api, planning
    from znni.engine.checks import check_features
    from znni.plan_file import load_plan
    from znni.progress import show_progress
    from znni.volumes.locate import open_volume, stem

    network = api.load_network(net)
    source = open_volume(volume, dataset)
    check_features(source, network)
    limits = PlanOptions(
        ram=ram,
        threads=threads,
        device=device,
        gpu_memory=gpu_memory,
        gpus=gpus,
        accuracy=accuracy,
        costs=costs,
        micro_batches=micro_batches,
    )
    region = parse_roi(roi) if roi else None
    given = load_plan(plan) if plan else None
    if dry_run and given:
        stored = Stored(dtype, source.itemsize)
        checked = planning.checked_plan(given, network, Choices(**limits), stored)
        typer.echo(_table(checked, accuracy))
        return
    if dry_run:
        found = planning.plan(
            network,
            source.size,
            border=border,
            roi=region,
            dtype=dtype,
            input_itemsize=source.itemsize,
            **limits,
        )
        typer.echo(_table(found, accuracy))
        return
    out = out or f"{stem(volume)}-{network.name}.h5"
    with show_progress() as progress:
        report = api.infer(
            volume,
            network,
            out,
            weights=weights,
            random_seed=random_weights,
            dataset=dataset,
            border=border,
            pad=pad,
            roi=region,
            mask=mask,
            dtype=dtype,
            plan=given,
            overwrite=overwrite,
            resume=resume,
            compression=compression,
            sharded=sharded,
            command=shlex.join(["znni", *sys.argv[1:]]),
            progress=progress,
            **limits,
        )
    typer.echo(f"{out}: {report}")


@app.command()
def plan(
    net: options.Net,
    volume: Annotated[
        str, typer.Option(help="Extents Z,Y,X, or a volume's file.", metavar="Z,Y,X|FILE")
    ],
    dataset: options.Dataset = None,
    roi: options.Roi = None,
    border: options.BorderChoice = "valid",
    machine: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plan for the machine of this file. Default: this one."),
    ] = None,
    ram: options.Ram = None,
    threads: options.Threads = None,
    device: options.Device = "auto",
    gpu_memory: options.GpuMemory = None,
    gpus: options.Gpus = "1",
    dtype: options.Dtype = "float32",
    accuracy: options.AccuracyChoice = "float32",
    costs: options.CostsChoice = "auto",
    micro_batches: options.MicroBatchesChoice = "power-of-two",
    explain: Annotated[
        bool, typer.Option("--explain", help="Also print why each layer's primitive won.")
    ] = False,
    alternatives: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Also rank the N fastest plans, one a patch size."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Also draw the plan among its neighbours (.png, .svg or .pdf), which takes some "
            "20 seconds for a large volume."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also save the plan, for znni infer --plan; its alternatives beside it, "
            "as plan-2.json and so on."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a plan that is there.")
    ] = False,
) -> None:
    """Print the fastest plan and what it will take, without running it."""
    from znni import planning
    from znni.plan_file import save_plans
    from znni.plan_plot import check_drawable, plot_plan
    from znni.ranking import ranking
    from znni.volumes.locate import open_volume

    if plot:
        check_drawable(plot)
    if all(part.strip().isdecimal() for part in volume.split(",")):
        size, itemsize = three_extents(volume), 4
    else:
        source = open_volume(volume, dataset)
        size, itemsize = source.size, source.itemsize
    search = planning.search(
        net,
        size,
        border=border,
        roi=parse_roi(roi) if roi else None,
        machine=machine,
        ram=ram,
        threads=threads,
        device=device,
        gpu_memory=gpu_memory,
        gpus=gpus,
        dtype=dtype,
        accuracy=accuracy,
        costs=costs,
        micro_batches=micro_batches,
        input_itemsize=itemsize,
    )
    plans = planning.fastest(search, alternatives or 1)
    found = plans[0]
    if out:
        save_plans(out, plans, overwrite=overwrite)
    typer.echo(found.to_json() if as_json else _table(found, accuracy))
    if alternatives:
        typer.echo(f"\n{ranking(plans)}", err=as_json)
    if explain:
        typer.echo(f"\n{planning.explain(search, found)}", err=as_json)
    if plot:
        plot_plan(planning.look_around(search, found), plot)


@app.command()
def calibrate(
    quick: Annotated[
        bool, typer.Option("--quick", help="Take less than a minute, for larger errors.")
    ] = False,
    threads: options.Threads = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A primitive; repeatable. Default: all.")
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="First delete what was measured before.")
    ] = False,
    device: Annotated[
        Calibrated, typer.Option(help="What is measured; all: the CPU and, if there is one, a GPU.")
    ] = "all",
) -> None:
    """Measure how fast this machine is, for plans to be made from."""
    from znni.calibration.campaign import calibrate_machine
    from znni.calibration.report import calibration_table
    from znni.progress import show_progress

    with show_progress("measurements") as progress:
        known = calibrate_machine(
            threads, only or [], progress, device=device, quick=quick, forget=forget
        )
    typer.echo(calibration_table(known))


@app.command()
def info(
    file: Annotated[str, typer.Argument(help="A network (YAML), or a volume in any format.")],
) -> None:
    """Describe a network or a volume."""
    if Path(file).suffix in (".yaml", ".yml"):
        from znni.network_file import load_network

        typer.echo(_describe(load_network(file)))
    else:
        from znni.volumes.locate import describe_volume

        typer.echo(describe_volume(file))


app.command("import")(import_network)
app.command()(verify)
app.command()(view)


def _table(plan: Plan, allowed: Accuracy) -> str:
    """A plan as a table, with a line on its accuracy where there is something to say."""
    from znni.planning import accuracy_note

    note = accuracy_note(plan, allowed)
    return str(plan) + f"\naccuracy      {note}" * bool(note)


def _describe(network: Network) -> str:
    from znni.network import Conv

    lines = [str(network)]
    for layer in network.layers:
        if isinstance(layer, Conv):
            maps = f"{layer.in_features} -> {counted(layer.out_features, 'map')}"
            what = f"conv {layer.kernel}, {maps}, {layer.activation}"
        else:
            what = f"max-pool {layer.window}"
        lines.append(f"  {layer.name:<8} {what}")
    scaling = network.scaling
    lines.append(f"  input    value * {scaling.scale:g} + {scaling.offset:g}")
    lines.append(f"  weights  {network.weights or 'none named'}")
    return "\n".join(lines)
