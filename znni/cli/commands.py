"""All commands as one program."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from znni.cli.calibrate import calibrate
from znni.cli.example import example
from znni.cli.export import export
from znni.cli.finish import finish
from znni.cli.import_network import import_network
from znni.cli.infer import infer
from znni.cli.networks import networks
from znni.cli.nnunet import nnunet
from znni.cli.panels import PanelCommand
from znni.cli.plan import plan
from znni.cli.pyramid import pyramid
from znni.cli.verify import verify
from znni.cli.view import view
from znni.cli.words import echo
from znni.core.errors import InvalidInput
from znni.core.version import __version__

app = typer.Typer(
    name="znni",
    epilog="Add --debug to any command to see its log, and a traceback if it fails.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help gives flags a type, as if they took a value
    context_settings={"help_option_names": ["-h", "--help"]},
)
command = partial(app.command, cls=PanelCommand)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"znni {__version__}")
        raise typer.Exit


@app.callback()
def znni(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Run 3D ConvNets over volumes larger than memory, as fast as this machine can."""


command("infer")(infer)
command("finish")(finish)
command("export")(export)
command("pyramid")(pyramid)
command("plan")(plan)
command("calibrate")(calibrate)


@command("info")
def info(
    file: Annotated[
        str | None,
        typer.Argument(
            help="Network file (YAML, .onnx, .pt2) or name, or volume in any format. Default: "
            "describe this machine."
        ),
    ] = None,
    machine: Annotated[
        Path | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Machine to describe instead of this one, as znni plan --machine takes it.",
        ),
    ] = None,
) -> None:
    """Describe a network or a volume; or this machine, and the primitives that its GPUs have."""
    from znni.core.shipped import NETWORKS
    from znni.importing.bioimageio_files import is_package
    from znni.importing.nnunet_folder import is_results

    if file is None:
        from znni.inference.machine_text import describe_machine
        from znni.machine.machine_choice import machine_for

        echo(describe_machine(machine_for(machine, None, None)))
        return
    if machine is not None:
        raise InvalidInput(
            f"{file} and --machine {machine} are two things to describe; give one of them"
        )
    is_name = not Path(file).exists() and NETWORKS.file(file)
    if is_name or Path(file).suffix in (".yaml", ".yml", ".onnx", ".pt2"):
        from znni.network.description import describe
        from znni.network.network_file import load_network

        network = load_network(file)
        if network.models:
            from znni.inference.model_choice import shared_form

            formed = shared_form(network)
            if formed.network.window is None:  # else a run chooses the engine
                echo(formed.why)
                network = formed.network
        echo(describe(network))
    elif is_results(Path(file)) or (is_package(Path(file)) and Path(file).exists()):
        raise InvalidInput(
            f"{file}: is a network of another library; make a network file of it first: znni "
            f"import {file} --out NET.yaml"
        )
    else:
        from znni.volumes.locate import describe_volume

        echo(describe_volume(file))


command("networks")(networks)
command("example")(example)
command("import")(import_network)
app.add_typer(nnunet, name="nnunet")
command("verify")(verify)
command("view")(view)
