"""``znni calibrate``: measure a machine, or the layers of one network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from znni.cli import options
from znni.cli.exclusions import check_not_given
from znni.cli.options import only as only_options
from znni.core.option_types import Calibrated
from znni.core.plan_options import Choices
from znni.core.processors import FASTEST
from znni.core.run_options import InputOptions, RegionOptions

# The extents of the volume, and the most seconds, for the layers of a network.
VOLUME = "512,512,512"
SECONDS = 300.0


@options.grouped
def calibrate(
    *,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Take less than a minute; predictions are less accurate."),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Primitive to measure; repeatable. Default: all.")
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="First delete earlier measurements.")
    ] = False,
    device: Annotated[
        Calibrated,
        typer.Option(help="Device to measure; all: the CPU and, if there is one, a GPU."),
    ] = "all",
    gpus: Annotated[
        str,
        typer.Option(
            metavar="N|all|0,2", help="GPUs of one kind that share the measurements of a GPU."
        ),
    ] = "1",
    net: Annotated[
        Path | None,
        typer.Option(
            help="Measure the layers of this network, until its fastest plan is sure: a network "
            "file (YAML), a name that znni networks lists, or a model (.onnx or .pt2).",
            rich_help_panel="One network",
        ),
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(
            help=f"Volume that the network will run over. Default: {VOLUME}.",
            metavar="Z,Y,X|FILE",
            rich_help_panel="One network",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=f"Begin no measurement after so many seconds. Default: {SECONDS:.0f}.",
            rich_help_panel="One network",
        ),
    ] = None,
    region: RegionOptions = only_options("border"),
    limits: Choices = only_options("ram", "threads", "gpu_memory", "accuracy"),
) -> None:
    """Measure the speed of this machine; plans then use it."""
    of_network = {
        "volume": volume,
        "seconds": seconds,
        "border": None if region.border == "valid" else region.border,
        "ram": limits.ram,
        "gpu_memory": limits.gpu_memory,
        "accuracy": None if limits.accuracy == "float32" else limits.accuracy,
    }
    if net is None:
        check_not_given("is for a network; give --net, or leave it out", of_network)
        _calibrate_machine(limits.threads, only or [], device, gpus, quick=quick, forget=forget)
        return
    of_machine = {
        "quick": quick,
        "only": " ".join(only or []) or None,
        "forget": forget,
        "gpus": None if gpus == "1" else gpus,
    }
    check_not_given("is for all primitives; leave out either this or --net", of_machine)
    among = replace(limits, device=FASTEST if device == "all" else device)
    most = SECONDS if seconds is None else seconds
    _calibrate_network(net, volume or VOLUME, most, region, among)


def _calibrate_machine(
    threads: int | None,
    only: list[str],
    device: Calibrated,
    gpus: str,
    *,
    quick: bool,
    forget: bool,
) -> None:
    from znni.calibration.campaign import calibrate_machine
    from znni.calibration.io_rates import calibrate_handling
    from znni.calibration.model import calibration_table
    from znni.cli.progress import show_progress
    from znni.machine.detect import detect_for

    with show_progress("measurements") as progress:
        known = calibrate_machine(
            threads, only, progress, device=device, gpus=gpus, quick=quick, forget=forget
        )
    typer.echo(calibration_table(known))
    if device != "gpu" and not only:
        typer.echo(f"\n{calibrate_handling(detect_for('cpu', threads=threads), forget=forget)}")
    _say_time()


def _calibrate_network(
    net: Path, volume: str, seconds: float, region: RegionOptions, limits: Choices
) -> None:
    from znni.cli.plan import formed, loaded, opened
    from znni.cli.progress import show_progress
    from znni.inference import planning
    from znni.inference.tuning import tune, tuning_text

    read = InputOptions()
    size, stored, given = opened(volume, read)
    network, _ = loaded(net, options.WindowOptions(), given, read)
    if network.models:
        network = formed(network, size, limits, as_json=False)
    search = planning.search(
        network, size, border=region.border, input_dtype=stored, **vars(limits)
    )
    with show_progress("measurements") as progress:
        tuned = tune(search, planning.fastest(search)[0], seconds, progress)
    typer.echo(tuning_text(tuned))
    _say_time()


def _say_time() -> None:
    from znni.core.text import duration
    from znni.machine.process_age import process_age

    typer.echo(f"\ncalibrated in {duration(process_age())}, from the start of the command")
