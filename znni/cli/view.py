"""``znni view``: show an output over its input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from znni.cli.options import grouped, only
from znni.core.run_options import ExistingOptions, InputOptions, RegionOptions


@grouped
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
) -> None:
    """Write a page of sections through an output and its input.

    The page is one HTML file that loads nothing from elsewhere. The
    command also prints how to open both volumes in napari and Neuroglancer.
    """
    from znni.inference import viewing

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
    typer.echo(made)
