"""``znni infer``: run a network over a volume, or report what the run would take."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from znni.cases.set_file import is_whole_case
from znni.cli import options
from znni.cli.exclusions import are_several
from znni.cli.options import (
    WindowOptions,
    hardware_option,
    input_option,
    machines_option,
    network_option,
    output_option,
)
from znni.cli.plan import plan_text
from znni.cli.values import in_windows
from znni.cli.whole_case import check_suits_cases, show_case
from znni.cli.words import echo, lead_to_picture, show_dry_run, show_many
from znni.core.loading import begin
from znni.core.logged import READING
from znni.core.option_types import Bits, Recheck
from znni.core.plan_options import Choices
from znni.core.run_options import (
    ExistingOptions,
    InputOptions,
    Options,
    RegionOptions,
    StorageOptions,
    ValueOptions,
)
from znni.core.trace import tracing
from znni.importing.nnunet_folder import check_holds_no_results

if TYPE_CHECKING:
    from concurrent.futures import Future

    from znni.cli.progress import Advance
    from znni.cluster.run import ClusterReport
    from znni.core.shapes import Vec3
    from znni.engine.report import Report
    from znni.engine.workers.processes import WaitingProcesses
    from znni.inference.request import Request
    from znni.network.network import Network
    from znni.network.weights import Weights


@options.grouped
def infer(
    volumes: Annotated[
        list[str],
        typer.Argument(
            metavar="VOLUME...",
            help="HDF5, Zarr, TIFF, NIfTI, NRRD, MetaImage or .npy file, folder of slices, "
            "FILE:/DATASET, or Zarr URL. Several: an output for each in the folder --out; of a "
            "whole case, the channels of one scan.",
        ),
    ],
    net: options.Net,
    *,
    weights: Annotated[
        Path | None, network_option(help="Weights file. Default: the one the network names.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Output file: .h5, .hdf5, .zarr, .tif, .nii, .nii.gz, .nrrd, .mha, .npy or "
            "the URL of a Zarr. "
            "Default: VOLUME-NETWORK.h5 in this folder; of a whole case, with the ending of its "
            "scans, such as .nii.gz. For several volumes: a folder.",
        ),
    ] = None,
    suffix: Annotated[
        str | None,
        output_option(
            metavar="TEXT",
            help="End of the outputs' names in a folder, after the volume's, as -cells.tif. "
            "Default: -NETWORK.h5.",
        ),
    ] = None,
    read: InputOptions,
    region: RegionOptions,
    limits: Choices,
    plan: Annotated[
        Path | None, hardware_option(help="Run this plan, saved by znni plan --out.")
    ] = None,
    random_weights: Annotated[
        int | None, network_option(metavar="SEED", help="Use random weights, to try a network.")
    ] = None,
    existing: ExistingOptions,
    windows: WindowOptions,
    values: ValueOptions,
    storage: StorageOptions,
    part: Annotated[
        str | None,
        machines_option(
            metavar="I/N",
            help="Compute part I of N, counted from 0; znni finish completes the output, a .zarr.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        machines_option(
            metavar="FILE|local:N",
            help="Compute on the machines of this cluster file, or with N processes here.",
        ),
    ] = None,
    bits: Annotated[
        Bits | None,
        machines_option(
            help="Whether all workers of a cluster compute the same bits, or only the same "
            "accuracy class. Default: as its file says, or else same."
        ),
    ] = None,
    recheck: Annotated[Recheck | None, options.RecheckHelp] = None,
    case: Annotated[
        bool,
        input_option(
            "--case",
            help="The volumes are the channels of a scan: crop, normalize and resample it as the "
            "network file's case: says, and write its labels. Needless with a results folder of "
            "nnU-Net.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan, the blocks that an earlier run finished, and any obstacles; do "
            "not run.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        hardware_option(
            metavar="FILE.json",
            help="Write what each thread worked at, and when, for https://ui.perfetto.dev.",
        ),
    ] = None,
) -> None:
    """Run a network over volumes, and write its dense outputs."""
    if case or is_whole_case(net):
        check_suits_cases(
            read, region, values, storage, plan=plan, random_weights=random_weights, suffix=suffix,
            part=part, bits=bits, recheck=recheck,
            resume=None if existing.resume else False,
        )  # fmt: skip
        with tracing(trace):
            show_case(
                volumes,
                net,
                windows,
                weights,
                out,
                limits,
                cluster=cluster,
                overwrite=existing.overwrite,
                dry_run=dry_run,
            )
        return
    alone = len(volumes) == 1 and not dry_run and not cluster
    waiting, meanwhile = _start_processes(limits, alone=alone, may_use_gpus=not cluster)
    begin(meanwhile)
    network = in_windows(_loaded(net), windows)
    ahead = _weights_ahead(network, weights, random_weights, out) if alone else None
    from znni.cli.progress import show_progress, telling
    from znni.inference.open_run import begin_run
    from znni.inference.request import Request, open_input
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
    volume, *_ = volumes
    out = out or f"{stem(volume)}-{network.name}.h5"
    request = Request(
        volume,
        network,
        out,
        Options(read, region, limits, values, existing, storage),
        weights,
        random_weights,
        load_plan(plan) if plan else None,
        command=shlex.join(["znni", *sys.argv[1:]]),
        part=part,
    )
    if several:
        with tracing(trace):
            _infer_many(volumes, request, suffix, dry_run=dry_run)
        return
    waited = SecondsAround(start=process_age())
    if network.models and plan is None:
        size = open_input(read, volume).size
        formed = _formed(network, size, limits, shared=bool(part or cluster))
        if not cluster:  # workers import a model themselves
            request = replace(request, network=formed)
        waited = SecondsAround(waited.start, importing=process_age() - waited.start)
    if dry_run:
        from znni.inference.dry_run import rehearse

        found = rehearse(request)
        echo("\n".join([plan_text(found.plan, limits.accuracy), *found.lines]))
        if found.obstacles:
            sys.exit(found.obstacles[0].exit_code)  # the exit code that the run would have
        return
    with tracing(trace), show_progress() as progress:
        report: Report | ClusterReport
        if cluster:
            report = _on_cluster(request, cluster, bits, recheck, progress)
        else:
            session = Session(waiting=waiting, weights=ahead)
            report = begin_run(
                request, session, waited=waited, progress=progress,
                reading=partial(_show, progress), on_begin=telling(progress),
            )()  # fmt: skip
    echo(f"{out}{f', part {part}' * bool(part)}: {report}")
    if part:
        echo(f"when all parts are finished: {shlex.join(['znni', 'finish', out])}")
    else:
        lead_to_picture(volume, out)


def _on_cluster(
    request: Request, cluster: str, bits: Bits | None, recheck: Recheck | None, progress: Advance
) -> ClusterReport:
    from znni.cluster.run import compute_on_cluster

    show = partial(_show, progress)
    return compute_on_cluster(request, cluster, bits, show, recheck or "sample")


def _show(progress: Advance, done: int, total: int, beside: str = READING) -> None:
    """Show progress. A rate of reading is not one of the run."""
    progress(done, total, beside, rated=beside != READING)


def _infer_many(volumes: list[str], request: Request, suffix: str | None, *, dry_run: bool) -> None:
    """Compute volumes one after the other, and show what became of each, or what would."""
    from znni.cli.progress import show_progress
    from znni.inference.many import compute_many
    from znni.inference.many_dry_run import rehearse_many

    if dry_run:
        show_dry_run(rehearse_many(volumes, request, suffix))
        return
    with show_progress("volumes") as done:
        many = compute_many(volumes, request, suffix, done)
    show_many(many, str(request.out))


def _loaded(net: Path) -> Network:
    """Return the network in a file, for which few modules are loaded."""
    from znni.network.network_file import load_network

    if net.is_dir():
        check_holds_no_results(net)
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


def _start_processes(
    limits: Choices, *, alone: bool, may_use_gpus: bool
) -> tuple[WaitingProcesses | None, Callable[[], object] | None]:
    """Start processes that take long to start; return them, and what a thread does meanwhile."""
    from znni.inference.prestart import processes_for
    from znni.machine.gpus import detect_gpus, has_driver, look_at_gpus

    device = limits.device
    waiting = processes_for(device, limits.gpus) if alone else None
    if may_use_gpus and device != "cpu" and has_driver():
        # CUDA starts where it computes.
        return waiting, detect_gpus if waiting else look_at_gpus
    return waiting, None


def _formed(network: Network, size: Vec3, limits: Choices, *, shared: bool) -> Network:
    """Return the network in the form that runs, and say why it is this one."""
    from znni.inference.model_choice import chosen, shared_form
    from znni.network.input_scaling import AS_STORED

    choice = shared_form(network) if shared else chosen(network, size, limits)
    if choice.why:
        echo("; ".join(map(str, filter(None, (choice.why, choice.network.window)))))
    if network.scaling == AS_STORED:
        echo(
            "it takes voxels as they are stored, as z,y,x; a network file may say how to scale "
            "them, and znni import --axes xyz is for a network trained on NIfTI files as MONAI "
            "reads them"
        )
    return choice.network
