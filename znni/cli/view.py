"""``znni view``: show an output over its input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from znni.cli import options
from znni.cli.values import parse_roi


def view(
    volume: Annotated[str, typer.Argument(metavar="IN", help="Input volume.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Output computed from it.")],
    page: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PAGE.html",
            help="Page to write. Default: OUT and .html, in this folder.",
        ),
    ] = None,
    dataset: options.Dataset = None,
    voxel_size: options.VoxelSize = None,
    roi: Annotated[
        str | None,
        typer.Option(
            metavar="Z0:Z1,Y0:Y1,X0:X1",
            help="Region of the input to show. Default: all that has output, or its middle if "
            "that is large and has no coarser resolutions.",
        ),
    ] = None,
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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing page.")
    ] = False,
) -> None:
    """Write a page of sections through an output and its input.

    The page is one HTML file that loads nothing from elsewhere. The
    command also prints how to open both volumes in napari and Neuroglancer.
    """
    from znni.inference import viewing

    region = parse_roi(roi) if roi else None
    made = viewing.view(
        volume,
        out,
        page,
        dataset=dataset,
        voxel_size=voxel_size,
        region=region,
        stride=stride,
        labels=labels,
        overwrite=overwrite,
    )
    typer.echo(made)
