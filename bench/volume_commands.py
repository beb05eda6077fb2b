"""``python -m bench volumes``, ``end-to-end``: reading and writing, and whole runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, get_args

import typer

from bench import options
from bench.end_to_end import Runs, time_runs
from bench.rounds import Effort
from bench.session import progress, report_all
from bench.volumes import compare_formats
from znni.cli.values import three_extents
from znni.core.options import DeviceChoice, OutputType

Folder = Annotated[
    Path | None,
    typer.Option(file_okay=False, exists=True, help="Where to write. Default: as temporary."),
]


def volumes_command(
    size: Annotated[int, typer.Option(min=1, help="Voxels per axis of a block.")] = 256,
    folder: Folder = None,
    repeats: options.Repeats = 5,
    budget: options.Budget = 60.0,
    out: options.Out = None,
) -> None:
    """Reading and writing blocks in each format and type, beside its library and the floors."""
    where = folder or Path(tempfile.gettempdir())
    effort = Effort(repeats, budget)
    compared = (
        compare_formats(dtype, size, where, effort, progress) for dtype in get_args(OutputType)
    )
    report_all("volumes", compared, [], out)


def end_to_end_command(
    net: options.Nets,
    volume: Annotated[
        str, typer.Option(metavar="Z,Y,X", help="Extents of the volume for one GPU.")
    ] = "1024,1024,1024",
    gpus: Annotated[list[int], typer.Option(min=1, help="How many; repeatable.")] = [1],  # noqa: B006
    scaled: Annotated[
        bool, typer.Option("--scaled", help="For n GPUs, a volume n times as long in z.")
    ] = False,
    device: Annotated[DeviceChoice, typer.Option(help="Where layers run.")] = "gpu",
    plans: Annotated[
        Path | None,
        typer.Option(file_okay=False, exists=True, help="Of plans, NETWORK-GPUS.json."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="One more of znni infer's, as --ram=8GiB; repeatable.")
    ] = None,
    folder: Folder = None,
    seconds: Annotated[float, typer.Option(min=1, help="For all runs together.")] = 3600.0,
    out: options.Out = None,
) -> None:
    """Whole runs of znni infer over volumes of noise: how busy each stage was, and what it gave."""
    runs = Runs(net, three_extents(volume), gpus, scaled, device, plans, option or [])
    where = folder or Path(tempfile.gettempdir())
    report_all("end-to-end", time_runs(runs, where, seconds, progress), [], out)
