"""``znni infer``: run a network over a volume, or report what the run would take."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from znni.cli import options
from znni.cli.exclusions import are_several
from znni.cli.many import show_dry_run, show_many
from znni.cli.plan import plan_text
from znni.cli.values import in_windows, parse_channel, parse_roi
from znni.core.loading import loading, nothing
from znni.core.options import Bits, Choices, Pad, Recheck, parse_time

if TYPE_CHECKING:
    from concurrent.futures import Future

    from znni.core.shapes import Vec3
    from znni.engine.report import Report
    from znni.engine.workers.processes import WaitingProcesses
    from znni.inference.request import WeightedRunOptions
    from znni.inference.session import Session
    from znni.network.network import Network
    from znni.network.weights import Weights


@options.planned(before="plan")
def infer(
    volumes: Annotated[
        list[str],
        typer.Argument(
            metavar="VOLUME...",
            help="HDF5, Zarr, TIFF, NIfTI or .npy file, FILE:/DATASET, or Zarr URL. Several: an "
            "output for each in the folder --out.",
        ),
    ],
    net: options.Net,
    weights: Annotated[
        Path | None, typer.Option(help="Weights file. Default: the one the network names.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Output file: .h5, .hdf5, .zarr, .tif, .nii, .nii.gz, .npy or the URL of a Zarr. "
            "Default: VOLUME-NETWORK.h5 in this folder. For several volumes: a folder.",
        ),
    ] = None,
    suffix: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="End of the outputs' names in a folder, after the volume's, as -cells.tif. "
            "Default: -NETWORK.h5.",
        ),
    ] = None,
    dataset: options.Dataset = None,
    channel: options.Channel = None,
    time: options.Time = None,
    invert: options.Invert = False,
    voxel_size: options.VoxelSize = None,
    roi: options.Roi = None,
    mask: options.Mask = None,
    border: options.BorderChoice = "valid",
    pad: Annotated[
        Pad | None,
        typer.Option(
            help="How --border same fills the space beyond the edges. Default: reflect; constant "
            "(zeros) for windows."
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Run this plan, saved by znni plan --out.")
    ] = None,
    random_weights: Annotated[
        int | None, typer.Option(metavar="SEED", help="Use random weights, to try a network.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing output.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--no-resume",
            help="Continue an interrupted run of the same command, or start afresh.",
        ),
    ] = True,
    window: options.WindowChoice = None,
    overlap: options.Overlap = None,
    blend: options.BlendChoice = None,
    mirror: options.Mirror = None,
    labels: options.LabelsChoice = False,
    threshold: options.Threshold = None,
    compression: options.CompressionChoice = None,
    sharded: options.Sharded = False,
    pyramid: options.Pyramid = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Compute part I of N, counted from 0; znni finish completes the output, a .zarr.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|local:N",
            help="Compute on the machines of this cluster file, or with N processes here.",
        ),
    ] = None,
    bits: Annotated[
        Bits | None,
        typer.Option(
            help="Whether all workers of a cluster compute the same bits, or only the same "
            "accuracy class. Default: as its file says, or else same.",
        ),
    ] = None,
    recheck: Annotated[Recheck | None, options.RecheckHelp] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan, the blocks that an earlier run finished, and any obstacles; do "
            "not run.",
        ),
    ] = False,
    **planned: Unpack[options.PlannedOptions],
) -> None:
    """Run a network over volumes, and write its dense outputs."""
    alone = len(volumes) == 1 and not dry_run and not cluster
    waiting, begin = _begun(planned, alone=alone, looks=not cluster)
    with loading(begin=begin):
        network = in_windows(_loaded(net), window, overlap, blend, mirror)
        begun = _weights_ahead(network, weights, random_weights, out) if alone else None
        from znni.cli.progress import show_progress
        from znni.inference import api
        from znni.inference.request import ChosenInput, WeightedRunOptions
        from znni.inference.session import Session
        from znni.machine.process_age import process_age
        from znni.plans.job_seconds import SecondsAround
        from znni.plans.plan_file import load_plan
        from znni.volumes.locate import stem

    several = are_several(
        volumes,
        out,
        suffix,
        part=part,
        cluster=cluster,
        bits=bits,
        recheck=recheck,
        dry_run=dry_run,
    )
    point = None if time is None else parse_time(time)
    asked = parse_channel(channel)
    given = WeightedRunOptions(
        weights=weights,
        random_seed=random_weights,
        plan=load_plan(plan) if plan else None,
        dataset=dataset,
        channel=asked,
        time=point,
        invert=invert,
        voxel_size=voxel_size,
        border=border,
        pad=pad,
        roi=parse_roi(roi) if roi else None,
        mask=mask,
        overwrite=overwrite,
        resume=resume,
        labels=labels,
        threshold=threshold,
        compression=compression,
        sharded=sharded,
        pyramid=pyramid,
        **planned,
    )
    command = shlex.join(["znni", *sys.argv[1:]])
    if several:
        _infer_many(volumes, network, str(out), given, suffix, command, dry_run=dry_run)
        return
    (volume,) = volumes
    out = out or f"{stem(volume)}-{network.name}.h5"
    waited = SecondsAround(start=process_age())
    if network.models and plan is None:
        size = ChosenInput(dataset, asked, point, invert).of(volume).size
        formed = _formed(network, size, planned, shared=bool(part or cluster))
        network = network if cluster else formed  # workers import a model themselves
        waited = SecondsAround(waited.start, importing=process_age() - waited.start)
    if dry_run:
        from znni.inference.dry_run import rehearse

        found = rehearse(volume, network, out, **given)
        typer.echo("\n".join([plan_text(found.plan, planned["accuracy"]), *found.lines]))
        if found.obstacles:
            sys.exit(found.obstacles[0].exit_code)  # the exit code that the run would have
        return
    if cluster:
        from znni.cluster.run import infer_on_cluster

        with show_progress() as progress:
            computed = infer_on_cluster(
                volume,
                network,
                out,
                cluster=cluster,
                bits=bits,
                recheck=recheck or "sample",
                command=command,
                progress=progress,
                **given,
            )
        typer.echo(f"{out}: {computed}")
        _lead_to_picture(volume, out)
        return
    ready = Session(waiting, begun)
    more = {"command": command, "waited": waited, "part": part}
    report = _run(api.compute, volume, network, out, ready, given, **more)
    typer.echo(f"{out}{f', part {part}' * bool(part)}: {report}")
    if part:
        typer.echo(f"when all parts are finished: {shlex.join(['znni', 'finish', out])}")
    else:
        _lead_to_picture(volume, out)


def _lead_to_picture(volume: str, out: str) -> None:
    """Tell a person at a terminal how to look at an output."""
    if sys.stdout.isatty():
        typer.echo(f"look at it: {shlex.join(['znni', 'view', volume, out])}")


def _infer_many(
    volumes: list[str],
    network: Network,
    folder: str,
    given: WeightedRunOptions,
    suffix: str | None,
    command: str,
    *,
    dry_run: bool,
) -> None:
    """Compute volumes one after the other, and show what became of each, or what would."""
    from znni.cli.progress import show_progress
    from znni.inference.many import infer_many
    from znni.inference.many_dry_run import rehearse_many

    if dry_run:
        show_dry_run(rehearse_many(volumes, network, folder, suffix=suffix, **given))
        return
    with show_progress("volumes") as done:
        many = infer_many(
            volumes, network, folder, suffix=suffix, command=command, progress=done, **given
        )
    show_many(many, folder)


def _run(
    compute: Callable[..., Callable[[], Report]],
    volume: str,
    network: Network,
    out: str,
    ready: Session,
    given: WeightedRunOptions,
    **more: Any,
) -> Report:
    """Compute a volume in this process, and in those of its GPUs that have started."""
    from znni.cli.progress import show_progress

    options: dict[str, Any] = {**given, **more}
    plan = options.pop("plan")
    with show_progress() as progress:
        return compute(volume, network, out, ready, made=plan, progress=progress, **options)()


def _loaded(net: Path) -> Network:
    """Return the network in a file, for which few modules are loaded."""
    from znni.network.network_file import load_network

    return load_network(net)


def _weights_ahead(
    network: Network, weights: Path | None, random_seed: int | None, out: str | None
) -> Future[Weights] | None:
    """Begin to read or draw the weights of a run.

    None are begun of a model, whose file has them. An output in a folder is made as one of several.
    """
    from znni.inference.prestart import weights_ahead

    with suppress(OSError):  # as of a name that is too long, which is refused later
        if out is not None and (out.endswith("/") or Path(out).is_dir()):
            return None
    if network.models:
        return None
    return weights_ahead(network, weights, random_seed)


def _begun(
    planned: options.PlannedOptions, *, alone: bool, looks: bool
) -> tuple[WaitingProcesses | None, Callable[[], object]]:
    """Start processes that take long to start; return them, and what a thread does meanwhile.

    Args:
        planned: limits and choices for plans.
        alone: whether a single volume is computed, in this process and those of its GPUs.
        looks: whether this machine's GPUs may be used.
    """
    from znni.inference.prestart import processes_for
    from znni.machine.gpus import detect_gpus, has_driver, look_at_gpus

    device = planned["device"]
    waiting = processes_for(device, planned["gpus"]) if alone else None
    if looks and device != "cpu" and has_driver():
        # CUDA starts where it computes.
        return waiting, detect_gpus if waiting else look_at_gpus
    return waiting, nothing


def _formed(
    network: Network, size: Vec3, planned: Mapping[str, object], *, shared: bool
) -> Network:
    """Return the network in the form that runs, and say why it is this one."""
    from znni.inference.model_choice import chosen, shared_form
    from znni.network.input_scaling import AS_STORED

    given: Any = {name: value for name, value in planned.items() if name != "dtype"}
    choice = shared_form(network) if shared else chosen(network, size, Choices(**given))
    if choice.why:
        typer.echo("; ".join(map(str, filter(None, (choice.why, choice.network.window)))))
    if network.scaling == AS_STORED:
        typer.echo("it takes voxels as they are stored; a network file may say how to scale them")
    return choice.network
