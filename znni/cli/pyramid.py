"""``znni pyramid``: give an OME-Zarr coarser resolutions."""

from __future__ import annotations

from typing import Annotated

import typer

from znni.cli.words import echo


def pyramid(
    image: Annotated[str, typer.Argument(metavar="OUT.zarr", help="OME-Zarr, a folder or a URL.")],
    labels: Annotated[
        bool | None,
        typer.Option(
            "--labels/--values",
            help="Take the most frequent label, or the mean of values. Default: as outputs say; "
            "integers of 32 and 64 bits are labels.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace coarser resolutions that there are.")
    ] = False,
) -> None:
    """Give an OME-Zarr coarser resolutions, so that viewers show all of it at once."""
    from znni.inference.pyramids import build_pyramid

    echo(build_pyramid(image, labels=labels, overwrite=overwrite))
