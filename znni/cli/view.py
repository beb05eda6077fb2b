"""``znni view``: outputs over their inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from znni.cli import options
from znni.cli.values import parse_roi


def view(
    volume: Annotated[str, typer.Argument(metavar="IN", help="The input.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Its output.")],
    page: Annotated[
        Path | None,
        typer.Option("--out", metavar="PAGE.html", help="Default: OUT.html in this folder."),
    ] = None,
    dataset: options.Dataset = None,
    roi: Annotated[
        str | None,
        typer.Option(
            metavar="Z0:Z1,Y0:Y1,X0:X1",
            help="Input voxels to show. Default: all that have output, or the middle of many.",
        ),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Show every so many voxels. Default: as fits.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page.")] = False,
) -> None:
    """Write a page of sections through an output and its input, and say how to open them elsewhere.

    It is one HTML file, without anything from elsewhere.
    """
    from znni.inference import viewing

    region = parse_roi(roi) if roi else None
    made = viewing.view(
        volume,
        out,
        page,
        dataset=dataset,
        region=region,
        stride=stride,
        overwrite=overwrite,
    )
    typer.echo(made)
