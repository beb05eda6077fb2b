"""``znni export``: copy a volume to another format."""

from __future__ import annotations

from typing import Annotated

import typer

from znni.cli import options
from znni.cli.values import parse_channel, parse_roi
from znni.core.options import Compression, parse_time


def export(
    volume: Annotated[str, typer.Argument(metavar="IN", help="Volume or output, in any format.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="OUT", help="File to make: .h5, .zarr, .tif, .nii, .nii.gz or .npy."
        ),
    ],
    dataset: options.Dataset = None,
    channel: options.Channel = None,
    time: options.Time = None,
    voxel_size: options.VoxelSize = None,
    roi: Annotated[
        str | None,
        typer.Option(metavar="Z0:Z1,Y0:Y1,X0:X1", help="Voxels to copy. Default: all."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the copy, such as uint8, which stores floats of 0..1 as 0..255. Default: "
            "the same.",
        ),
    ] = None,
    labels: options.LabelsChoice = False,
    threshold: options.Threshold = None,
    compression: Annotated[
        Compression | None,
        typer.Option(help="Compression of Zarr or TIFF. Default: zstd for Zarr, gzip for labels."),
    ] = None,
    sharded: options.Sharded = False,
    pyramid: options.Pyramid = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    ram: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory that the process may use. Default: about 1 GiB."),
    ] = None,
) -> None:
    """Copy a volume or an output to another format, with spacing, units, place and channel names.

    It is copied in blocks, never as a whole.
    """
    from znni.cli.progress import show_progress
    from znni.inference import exporting

    point = None if time is None else parse_time(time)
    with show_progress() as progress:
        made = exporting.export(
            volume,
            target,
            dataset=dataset,
            channel=parse_channel(channel),
            time=point,
            voxel_size=voxel_size,
            roi=parse_roi(roi) if roi else None,
            dtype=dtype,
            labels=labels,
            threshold=threshold,
            compression=compression,
            sharded=sharded,
            pyramid=pyramid,
            overwrite=overwrite,
            ram=ram,
            progress=progress,
        )
    typer.echo(made)
