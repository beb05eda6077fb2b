"""``znni import``: convert networks of other libraries to network files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from znni.cli.words import echo


def import_network(
    source: Annotated[
        Path,
        typer.Argument(
            help="PyTorch exported program (.pt2), ONNX model (.onnx), state dict (.pt, "
            ".safetensors; needs --like), checkpoint of pytorch-3dunet (.pytorch), ZNN network "
            "(.h5), package of bioimage.io (.zip, folder or rdf.yaml), folder of nnU-Net's "
            "results, or bundle of MONAI."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="NET.yaml", help="Network file to write; its weights go beside it."),
    ],
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="NET.yaml",
            help="Network file that lists the layers; a state dict has tensors only.",
        ),
    ] = None,
    axes: Annotated[
        str,
        typer.Option(
            metavar="ZYX",
            help="Order of the axes that the network takes: xyz if MONAI read its NIfTI files.",
        ),
    ] = "zyx",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing network.")
    ] = False,
) -> None:
    """Convert a network of PyTorch, ONNX, nnU-Net, MONAI, bioimage.io or ZNN to a network file."""
    from znni.inference.network_import import import_network

    echo(import_network(source, out, like=like, axes=axes, overwrite=overwrite))
