"""``znni import``: networks of other libraries as network files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_network(
    source: Annotated[
        Path,
        typer.Argument(
            help="A PyTorch exported program (.pt2), an ONNX model (.onnx), a state dict (.pt, "
            ".safetensors; needs --like) or a network of ZNN (.h5)."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="NET.yaml", help="Network file; the weights go beside it."),
    ],
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="NET.yaml",
            help="Network file with the layers of a state dict, which has only its tensors.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a network that is there.")
    ] = False,
) -> None:
    """Turn a network of PyTorch, ONNX or ZNN into a network file and weights."""
    from znni.inference.network_import import import_network

    typer.echo(import_network(source, out, like=like, overwrite=overwrite))
