"""``znni example``: write a volume to try networks on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from znni.cli.values import EXTENTS, are_extents, three_extents
from znni.core.errors import InvalidInput

SEED = 2007
SIZE = "192,256,256"
SEEN_BY_N537 = 163  # voxels along each axis


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

    It looks like microscopy of packed cells with dark membranes. The trained networks that come
    with znni are for such volumes. They have not seen the volume of the default seed.
    """
    from znni.core.logged import telling_if_long
    from znni.core.text import duration
    from znni.machine.process_age import process_age
    from znni.volumes.example import write_example

    if not are_extents(size):
        raise InvalidInput(f"--size {size} has no extents; give {EXTENTS}")
    extents = three_extents(size, "--size")
    with telling_if_long(f"making {path}"):
        write_example(path, seed, extents, overwrite=overwrite)
    typer.echo(f"{path}: {extents} voxels of uint8, made in {duration(process_age())}")
    net = "n537.yaml" if min(extents) >= SEEN_BY_N537 else "cells-unet.yaml"
    command = shlex.join(["znni", "infer", str(path), "--net", net])
    typer.echo(f"run a network over it: {command}")
