"""``znni verify``: outputs held to input and network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    out: Annotated[str, typer.Argument(help="An output of znni infer.")],
    voxels: Annotated[
        int, typer.Option(min=1, help="How many to compute; each takes one field of view's work.")
    ] = 32,
    blocks: Annotated[
        int | None,
        typer.Option(min=0, help="How many blocks to hold to their checksums. Default: all."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Choose both by this. Default: others each time.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="FILE", help="The input, if it is not where it was.")
    ] = None,
    mask: Annotated[
        str | None, typer.Option(metavar="FILE", help="The mask, if it is not where it was.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="The weights, if they are not where they were.")
    ] = None,
) -> None:
    """Compute random voxels of an output again, in float64, from input and network alone.

    Its blocks are held to their checksums, too. Exits with 5 where anything differs, or a block
    cannot be read, and with 4 where input or output cannot be got at.
    """
    from znni.cli.progress import show_progress
    from znni.core.errors import OutputDiffers, option
    from znni.inference import verification

    with show_progress() as progress:
        found = verification.verify(
            out,
            source=source,
            mask=mask,
            weights=weights,
            voxels=voxels,
            blocks=blocks,
            seed=seed,
            progress=progress,
        )
    if not found.agrees:
        again = option("overwrite", True)
        remedy = f"compute it again by the command that znni info shows, with {again}"
        if found.unreadable or found.blocks.unreadable:
            remedy = f"check the disk, or copy the output again; if that does not help, {remedy}"
        raise OutputDiffers(f"{found}; {remedy}")
    typer.echo(found)
