"""``znni infer``: a network over a volume, or what that would take."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from znni.cli import options
from znni.cli.plan import plan_text
from znni.cli.values import parse_roi
from znni.errors import ZnniError
from znni.options import Choices, Pad, PlanOptions, Stored

if TYPE_CHECKING:
    from znni.network import Network


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
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan and what would keep it from being run."),
    ] = False,
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
    out = out or f"{stem(volume)}-{network.name}.h5"
    if dry_run:
        if given:
            stored = Stored(dtype, source.itemsize)
            found = planning.checked_plan(given, network, Choices(**limits), stored)
        else:
            found = planning.plan(
                network,
                source.size,
                border=border,
                roi=region,
                dtype=dtype,
                input_itemsize=source.itemsize,
                **limits,
            )
        typer.echo(plan_text(found, accuracy))
        for obstacle in _obstacles(network, weights, random_weights, out, overwrite=overwrite):
            typer.echo(f"refused now   {obstacle}")
        return
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


def _obstacles(
    network: Network, weights: Path | None, random_seed: int | None, out: str, *, overwrite: bool
) -> Iterator[ZnniError]:
    """What would stop a run with this plan before it begins: its weights, its output's place."""
    from znni.volumes.partial_file import check_free
    from znni.volumes.stored import is_url
    from znni.weights import weights_for

    try:
        weights_for(network, weights, random_seed)
    except ZnniError as error:
        yield error
    try:
        if not is_url(out):
            check_free(Path(out), overwrite=overwrite)
    except ZnniError as error:
        yield error
