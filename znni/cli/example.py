"""``znni example``: write a volume to try networks on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from znni.cli.values import EXTENTS, are_extents, three_extents
from znni.core.errors import InvalidInput

SEED = 2007
SIZE = "192,256,256"  # n537 sees 163 voxels along each axis


def example(
    path: Annotated[Path, typer.Argument(help="HDF5 file to write.")] = Path("volume.h5"),
    size: Annotated[
        str, typer.Option(metavar="Z,Y,X", help="Extents of the volume in voxels.")
    ] = SIZE,
    seed: Annotated[int, typer.Option(help="Another seed gives other cells.")] = SEED,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
) -> None:
    """Write a volume of synthetic cells, to try networks on.

    It looks like microscopy of packed cells with dark membranes. The networks that come with znni
    are trained for such volumes, but have not seen this one.
    """
    from znni.core.text import duration
    from znni.machine.process_age import process_age
    from znni.volumes.example import write_example

    if not are_extents(size):
        raise InvalidInput(f"--size {size} has no extents; give {EXTENTS}")
    extents = three_extents(size, "--size")
    write_example(path, seed, extents, overwrite=overwrite)
    typer.echo(f"{path}: {extents} voxels of uint8, made in {duration(process_age())}")
    typer.echo(
        f"run a network over it: {shlex.join(['znni', 'infer', str(path), '--net', 'n537.yaml'])}"
    )
