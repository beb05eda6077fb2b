"""``znni view``: show an output over its input."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from znni.cli.options import grouped, only
from znni.cli.words import echo
from znni.core import child_process
from znni.core.errors import MissingLibrary
from znni.core.option_types import Viewer
from znni.core.run_options import ExistingOptions, InputOptions, RegionOptions

PACKAGES = {"napari": "'napari[all]'", "neuroglancer": "neuroglancer"}  # as pip knows them


@grouped
def view(
    volume: Annotated[str, typer.Argument(metavar="IN", help="Input volume.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Output computed from it.")],
    page: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="PAGE.html", help="Page to write. Default: OUT and .html, beside OUT."
        ),
    ] = None,
    *,
    read: InputOptions = only("dataset", "voxel_size"),
    region: RegionOptions = only(
        roi="Region of the input to show. Default: all that has output, or its middle if "
        "that is large and has no coarser resolutions."
    ),
    stride: Annotated[
        int | None, typer.Option(min=1, help="Step between shown voxels. Default: chosen to fit.")
    ] = None,
    labels: Annotated[
        bool | None,
        typer.Option(
            "--labels/--values",
            help="Show labels, each in a colour, or values. Default: as outputs say; integers of "
            "32 and 64 bits are labels.",
        ),
    ] = None,
    existing: ExistingOptions = only(overwrite="Replace an existing page."),
    viewer: Annotated[
        Viewer | None,
        typer.Option(help="Open both volumes in this viewer instead. It has to be installed."),
    ] = None,
) -> None:
    """Write a page of sections through an output and its input.

    The page is one HTML file that loads nothing from elsewhere. Or
    open both volumes in napari or Neuroglancer.
    """
    from znni.inference import viewing

    if viewer:
        program = viewing.viewer_program(
            viewer, volume, out, dataset=read.dataset, voxel_size=read.voxel_size, labels=labels
        )
        sys.exit(_run(viewer, program))
    made = viewing.view(
        volume,
        out,
        page,
        dataset=read.dataset,
        voxel_size=read.voxel_size,
        region=region.roi,
        stride=stride,
        labels=labels,
        overwrite=existing.overwrite,
    )
    echo(made)
    again = ["znni", "view", volume, out]
    for name, value in (("--dataset", read.dataset), ("--voxel-size", read.voxel_size)):
        again += [name, value] if value else []
    if labels is not None:
        again.append("--labels" if labels else "--values")
    for name in PACKAGES:
        echo(f"{name}: {shlex.join([*again, '--viewer', name])}")


def _run(viewer: Viewer, program: str) -> int:
    """Run a viewer's program until the viewer is closed, and return its exit code."""
    if find_spec(viewer) is None:
        raise MissingLibrary(
            f"{viewer} is not installed beside znni: pip install {PACKAGES[viewer]}"
        )
    command, variables = child_process.command_of_program(program), child_process.environment()
    return subprocess.run(command, env=variables, check=False).returncode
