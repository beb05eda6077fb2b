"""``znni nnunet predict``: whole cases, with the options of ``nnUNetv2_predict``."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from znni.cli.options import (
    hardware_option,
    input_option,
    machines_option,
    network_option,
    output_option,
)
from znni.cli.panels import PanelCommand
from znni.cli.words import show_dry_run, show_many
from znni.core.errors import InvalidInput
from znni.core.processors import DeviceChoice
from znni.core.text import counted

if TYPE_CHECKING:
    from znni.cases.case_folder import Case
    from znni.cases.networks import NetworkSet
    from znni.importing.nnunet_folder import Results
    from znni.network.network import Network

RESULTS = "nnUNet_results"  # the environment variable that names the folder of all results

# PyTorch's and znni's names of devices, as the option takes them.
DEVICES: dict[str | None, DeviceChoice] = {"cuda": "gpu", "gpu": "gpu", "cpu": "cpu", None: "auto"}

nnunet = typer.Typer(help="Networks of nnU-Net, with nnU-Net's own options.")


@nnunet.callback()
def _group() -> None:
    """Networks of nnU-Net, with nnU-Net's own options."""


@nnunet.command("predict", cls=PanelCommand)
def predict(
    more_folds: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    *,
    scans: Annotated[
        Path, typer.Option("-i", metavar="FOLDER", help="Scans: NAME_0000.nii.gz and so on.")
    ],
    out: Annotated[Path, typer.Option("-o", metavar="FOLDER", help="Folder for the labels.")],
    dataset: Annotated[
        str | None, typer.Option("-d", metavar="ID|NAME", help="Data set of the network.")
    ] = None,
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "-m",
            metavar="FOLDER",
            help="Results folder, in place of -d, -p, -tr and -c. Several: -m A -m B; their "
            "labels are joined.",
        ),
    ] = None,
    plans: Annotated[str, network_option("-p", help="Plans of the network.")] = "nnUNetPlans",
    trainer: Annotated[
        str, network_option("-tr", help="Trainer of the network.")
    ] = "nnUNetTrainer",
    configuration: Annotated[
        str | None, typer.Option("-c", help="Configuration, such as 3d_fullres.")
    ] = None,
    folds: Annotated[
        list[str] | None, typer.Option("-f", help="Folds, such as 0 1 2. Default: all of them.")
    ] = None,
    checkpoint: Annotated[
        str, network_option("-chk", help="File of each fold.")
    ] = "checkpoint_final.pth",
    step: Annotated[
        float, network_option("-step_size", help="Step between windows, as a share of their size.")
    ] = 0.5,
    no_mirroring: Annotated[
        bool, network_option("--disable_tta", help="Do not mirror windows: up to 8 times as fast.")
    ] = False,
    go_on: Annotated[
        bool, typer.Option("--continue_prediction", help="Leave labels that exist as they are.")
    ] = False,
    postprocessing: Annotated[
        Path | None,
        output_option(
            "-pp_pkl_file",
            metavar="FILE",
            help="Remove components as postprocessing.pkl, or .json, says. Default: remove none.",
        ),
    ] = None,
    save_probabilities: Annotated[
        bool,
        output_option(
            "--save_probabilities",
            help="Also write NAME.npz and NAME.pkl, which nnUNetv2_ensemble reads.",
        ),
    ] = False,
    before: Annotated[
        Path | None,
        input_option(
            "-prev_stage_predictions",
            metavar="FOLDER",
            help="Labels of the previous stage of a cascade. Default: they are computed.",
        ),
    ] = None,
    verbose: Annotated[
        bool, output_option("--verbose", help="Show the log of what is done, and how long it took.")
    ] = False,
    no_progress: Annotated[
        bool, output_option("--disable_progress_bar", help="Show no progress.")
    ] = False,
    parts: Annotated[int, machines_option("-num_parts", help="Divide the cases into parts.")] = 1,
    part: Annotated[int, machines_option("-part_id", help="The part to compute, from 0.")] = 0,
    preparing: Annotated[
        int,
        hardware_option(
            "-npp",
            min=0,
            envvar="nnUNet_npp",
            help="Most cases to prepare at once; fewer on few cores.",
        ),
    ] = 3,
    writing: Annotated[
        int,
        hardware_option(
            "-nps",
            min=0,
            envvar="nnUNet_nps",
            help="Most cases to write at once; fewer on few cores.",
        ),
    ] = 3,
    dry_run: Annotated[
        bool,
        hardware_option(
            "--dry-run", help="Print the predicted time and memory, and any obstacles; do not run."
        ),
    ] = False,
    _not_on_device: Annotated[
        bool,
        hardware_option(
            "--not_on_device", help="Changes nothing: plans stay within the GPU's memory."
        ),
    ] = False,
    device: Annotated[
        Literal["cuda", "cpu", "gpu"] | None,
        typer.Option("-device", "--device", help="Default: a GPU, if any."),
    ] = None,
    ram: Annotated[
        str | None, typer.Option("--ram", help="Memory for the process, such as 8GiB.")
    ] = None,
    gpus: Annotated[
        str,
        hardware_option(
            "--gpus",
            metavar="N|all|0,2",
            help="GPUs that compute each case together: a number, all, or a list.",
        ),
    ] = "1",
    cluster: Annotated[
        str | None,
        machines_option(
            "--cluster",
            metavar="FILE|local:N",
            help="Compute each case on the machines of this cluster file, or with N processes "
            "here.",
        ),
    ] = None,
) -> None:
    """Compute the labels of a folder of scans, as nnUNetv2_predict does."""
    from znni.cases.concurrency import Concurrency
    from znni.cases.folder import cases_in, predict_cases
    from znni.cases.folder_dry_run import rehearse_cases
    from znni.cases.networks import joined
    from znni.cases.results_folder import network_of_results, previous_network
    from znni.cli.cases_progress import show_cases
    from znni.core.plan_options import Choices
    from znni.core.run_options import Options
    from znni.importing.nnunet_folder import PLANS, Results
    from znni.importing.nnunet_postprocessing import read_postprocessing

    if verbose:
        logging.getLogger("znni").setLevel(logging.INFO)
    if not 0 <= part < parts:
        raise InvalidInput(f"-part_id {part} of -num_parts {parts}: give one from 0 to {parts - 1}")
    if not 0 < step <= 1:
        raise InvalidInput(f"-step_size {step}: give a share of a window, above 0 and up to 1")
    if more_folds and not folds:
        raise InvalidInput(f"{more_folds[0]}: no option takes this; folds follow -f")
    if models and (dataset or configuration):
        raise InvalidInput("-m names the results folder itself; leave out -d and -c")
    removing = read_postprocessing(postprocessing) if postprocessing else ()
    places = models or [_results_folder(dataset, trainer, plans, configuration)]
    if len(places) > 1 and (save_probabilities or before):
        name = "--save_probabilities" if save_probabilities else "-prev_stage_predictions"
        raise InvalidInput(f"{name} is for a single network; give one -m, or leave it out")
    names = (*(folds or ()), *(more_folds or ()))

    def results_in(place: Path) -> Results:
        if names and not (place / PLANS).is_file():
            raise InvalidInput(
                f"{place} is one fold already; leave out -f, or give the folder above"
            )
        return Results(place, names, checkpoint)

    def in_windows(network: Network) -> Network:
        return _in_windows(network, step, no_mirroring=no_mirroring)

    results = list(map(results_in, places))
    networks = joined("nnunet", [in_windows(network_of_results(each)) for each in results])
    cases = cases_in(scans, out, networks.rules)[part::parts]
    if before and not networks.rules.previous_stage:
        raise InvalidInput(f"{places[0]} has no previous stage; leave out -prev_stage_predictions")
    stage = None if before else previous_network(results[0], networks.networks[0], in_windows)
    cases = [replace(case, previous=before / case.out.name if before else stage) for case in cases]
    if save_probabilities:
        ending = networks.rules.file_ending
        cases = [
            replace(case, probabilities=out / f"{case.out.name.removesuffix(ending)}.npz")
            for case in cases
        ]
    limits = Options(limits=Choices(device=DEVICES[device], ram=ram, gpus=gpus))
    most = Concurrency(preparing, writing)
    if dry_run:
        show_dry_run(
            rehearse_cases(
                cases, networks, limits,
                skip_finished=go_on, removing=removing, most=most, cluster=cluster,
            )
        )  # fmt: skip
        return
    _make_output(out, results, networks)
    with show_cases(cases, hidden=no_progress) as shown, _noting_labels(cases):
        report = predict_cases(
            cases,
            networks,
            limits,
            skip_finished=go_on,
            removing=removing,
            progress=shown.step,
            done=shown.done,
            most=most,
            cluster=cluster,
        )
    show_many(report, out)


def _make_output(out: Path, results: Sequence[Results], networks: NetworkSet) -> None:
    """Make the folder for labels, and write the names of labels into it, as nnU-Net does."""
    from znni.importing.nnunet_folder import DATASET, PLANS
    from znni.volumes.output_place import refused_at

    with refused_at(out):
        out.mkdir(parents=True, exist_ok=True)
        if len(results) == 1:  # nnUNetv2_ensemble and nnUNetv2_apply_postprocessing read these
            for name in (PLANS, DATASET):
                with suppress(shutil.SameFileError):
                    shutil.copyfile(results[0].place / name, out / name)
            return
        dataset = {
            "channel_names": dict(enumerate(networks.rules.channels)),
            "labels": networks.labels,
            "file_ending": networks.rules.file_ending,
        }
        (out / DATASET).write_text(json.dumps(dataset, indent=4))


@contextmanager
def _noting_labels(cases: Sequence[Case]) -> Iterator[None]:
    """Say how to keep the labels that exist, if the user stops the run."""
    try:
        yield
    except BaseException as error:
        if finished := sum(case.is_finished for case in cases):
            error.add_note(
                f"{finished} of {counted(len(cases), 'case')} have labels, which "
                f"--continue_prediction keeps"
            )
        raise


def _in_windows(network: Network, step: float, *, no_mirroring: bool) -> Network:
    """Return a network whose windows have another step, or are not mirrored."""
    window = network.window
    if window is None:
        return network
    window = replace(window, overlap=1 - step, mirror="" if no_mirroring else window.mirror)
    return replace(network, window=window)


def _results_folder(
    dataset: str | None, trainer: str, plans: str, configuration: str | None
) -> Path:
    """Return the results folder of a network."""
    if dataset is None or configuration is None:
        raise InvalidInput("give the network by -d and -c, or its results folder by -m")
    if (root := os.environ.get(RESULTS)) is None:
        raise InvalidInput(
            f"the environment variable {RESULTS} is not set; set it to the folder of nnU-Net's "
            f"results, or give a results folder by -m"
        )
    folders = sorted(path.name for path in Path(root).glob("Dataset*") if path.is_dir())
    wanted = [name for name in folders if name == dataset or _is_number(name, dataset)]
    if len(wanted) != 1:
        raise InvalidInput(
            f"-d {dataset}: {root} has {', '.join(folders) or 'no data set'}; give one of them"
        )
    found = Path(root) / wanted[0] / f"{trainer}__{plans}__{configuration}"
    if not found.is_dir():
        there = sorted(path.name for path in found.parent.iterdir() if "__" in path.name)
        raise InvalidInput(
            f"{found}: no such folder; {found.parent} has {', '.join(there) or 'no results'}; "
            f"choose by -tr, -p and -c"
        )
    return found


def _is_number(name: str, dataset: str) -> bool:
    """Return whether a data set has this number, as ``Dataset003_Liver`` has 3."""
    number = name.removeprefix("Dataset").partition("_")[0]
    return dataset.isdecimal() and number.isdecimal() and int(number) == int(dataset)
