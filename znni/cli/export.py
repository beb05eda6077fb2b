"""``znni export``: copy a volume to another format."""

from __future__ import annotations

from typing import Annotated

import typer

from znni.cli.options import grouped, helped, only
from znni.cli.words import echo
from znni.core.plan_options import Choices
from znni.core.run_options import (
    ExistingOptions,
    InputOptions,
    RegionOptions,
    StorageOptions,
    ValueOptions,
)


@grouped
def export(
    volume: Annotated[str, typer.Argument(metavar="IN", help="Volume or output, in any format.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="File to make: .h5, .zarr, .tif, .nii, .nii.gz, .nrrd, .mha or .npy.",
        ),
    ],
    *,
    read: InputOptions = only("dataset", "channel", "time", "voxel_size"),
    region: RegionOptions = only(roi="Voxels to copy. Default: all."),
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the copy, such as uint8, which stores floats of 0..1 as 0..255. Default: "
            "the same.",
        ),
    ] = None,
    values: ValueOptions = only("labels", "threshold"),
    storage: StorageOptions = helped(
        compression="Compression of Zarr or TIFF. Default: zstd for Zarr, gzip for labels."
    ),
    existing: ExistingOptions = only(overwrite="Replace an existing file."),
    limits: Choices = only(ram="Memory that the process may use. Default: about 1 GiB."),
) -> None:
    """Copy a volume or an output to another format, with spacing, units, place and channel names.

    It is copied in blocks, never as a whole.
    """
    from znni.cli.progress import show_progress
    from znni.inference import exporting

    with show_progress() as progress:
        made = exporting.export(
            volume,
            target,
            dataset=read.dataset,
            channel=read.channel,
            time=read.time,
            voxel_size=read.voxel_size,
            roi=region.roi,
            dtype=dtype,
            labels=values.labels,
            threshold=values.threshold,
            overwrite=existing.overwrite,
            ram=limits.ram,
            progress=progress,
            **vars(storage),
        )
    echo(made)
