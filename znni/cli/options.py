"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from znni.core.options import (
    Accuracy,
    Blend,
    Border,
    Compression,
    Costs,
    DeviceChoice,
    Division,
    OutputType,
    PlanOptions,
)

Command = TypeVar("Command", bound=Callable[..., None])

Net = Annotated[
    Path,
    typer.Option(
        "--net",
        help="Network file (YAML), a name that znni networks lists, or a model: .onnx or .pt2.",
    ),
]
Ram = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory that the process may use, such as 8GiB. Default: 9/10 of what is available.",
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="GPU memory that the plan may use. Default: 9/10 of what is free.",
    ),
]
Gpus = Annotated[
    str,
    typer.Option(
        metavar="N|all|0,2",
        help="GPUs that compute patches at the same time: a number, all, or a list.",
    ),
]
Device = Annotated[
    DeviceChoice,
    typer.Option(help="Device that runs the layers; auto: the fastest choice."),
]
Threads = Annotated[int | None, typer.Option(help="Worker threads. Default: all cores.")]
Roi = Annotated[
    str | None,
    typer.Option(
        metavar="Z0:Z1,Y0:Y1,X0:X1",
        help="Compute output only for these voxels. A missing end means the output's own end.",
    ),
]
Mask = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Volume of the same extents; blocks where it is all 0 are skipped and filled with 0.",
    ),
]
Dataset = Annotated[str | None, typer.Option(help="Dataset to read, if a file has several.")]
Channel = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="The only map to read, counted from 0, or its name if the file has names."
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        metavar="T|all",
        help="Point in time to read, counted from 0; all: the points in time are the maps, "
        "those of --channel if each has several maps.",
    ),
]
VoxelSize = Annotated[
    str | None,
    typer.Option(
        metavar="Z,Y,X[UNIT]",
        help="Extents of a voxel, as 0.5,0.1,0.1um or 40nm, if the file has none or wrong "
        "ones. Without a unit: in the file's.",
    ),
]
Invert = Annotated[
    bool,
    typer.Option(
        "--invert", help="Exchange light and dark: 255 less the value for uint8, 1 less for floats."
    ),
]
Pyramid = Annotated[
    bool | None,
    typer.Option(
        "--pyramid/--no-pyramid",
        help="Also store coarser resolutions of an OME-Zarr or OME-TIFF, or do not. Default: if it "
        "is larger than 256 voxels along each axis, by volume.",
    ),
]
Sharded = Annotated[
    bool, typer.Option("--sharded", help="Store many chunks of a Zarr in one file.")
]
BorderChoice = Annotated[
    Border,
    typer.Option(
        help="valid: only voxels with their whole context; same: all voxels, with padded edges."
    ),
]
Dtype = Annotated[OutputType, typer.Option(help="Output type; uint8 stores 0..1 as 0..255.")]
LabelsChoice = Annotated[
    bool, typer.Option("--labels", help="Store the label of the largest map, instead of values.")
]
Threshold = Annotated[
    float | None,
    typer.Option(help="Store 1 where a value is above this number, else 0, instead of values."),
]
CompressionChoice = Annotated[
    Compression | None, typer.Option(help="Compression of Zarr chunks. Default: zstd.")
]
RecheckHelp = typer.Option(
    help="Finished blocks that are compared with their checksums at the end; sample: 100 at random."
)
AccuracyChoice = Annotated[
    Accuracy,
    typer.Option(
        help="tf32 and bfloat16 may be faster; they allow relative errors up to 0.002 and 0.01 per "
        "layer."
    ),
]
CostsChoice = Annotated[
    Costs,
    typer.Option(
        help="Source of predicted times: measurements of znni calibrate, or the built-in model."
    ),
]
MicroBatchesChoice = Annotated[
    Division,
    typer.Option(
        "--micro-batches",
        help="Sizes of the pieces into which a layer's batch may be cut if memory is short. "
        "Planning with all takes several times as long.",
    ),
]


WindowChoice = Annotated[
    str | None,
    typer.Option(
        metavar="Z,Y,X",
        help="Compute the network in windows of these extents, and blend them. Default: as its "
        "file says.",
    ),
]
Overlap = Annotated[
    float | None,
    typer.Option(
        help="Share of a window that the next one covers again. Default: as its file says, or 0.5."
    ),
]
BlendChoice = Annotated[
    Blend | None,
    typer.Option(
        help="How much the voxels of a window count. Default: as its file says, or gaussian."
    ),
]
Mirror = Annotated[
    str | None,
    typer.Option(
        metavar="z,y,x|none",
        help="Also compute windows mirrored along these axes, and take the mean; none switches "
        "mirroring off. Default: as its file says, or none.",
    ),
]


class PlannedOptions(PlanOptions, total=False):
    """The options of a planning command, as it passes them on."""

    dtype: OutputType


@dataclass
class Planned:
    """``PlannedOptions`` as they are declared on the command line."""

    ram: Ram = None
    threads: Threads = None
    device: Device = "auto"
    gpu_memory: GpuMemory = None
    gpus: Gpus = "1"
    dtype: Dtype = "float32"
    accuracy: AccuracyChoice = "float32"
    costs: CostsChoice = "auto"
    micro_batches: MicroBatchesChoice = "power-of-two"


def planned(before: str, declared: type = Planned) -> Callable[[Command], Command]:
    """Return a decorator that replaces a command's ``**options`` by the options of a dataclass.

    They become part of the command's signature, from which typer reads its options.

    Args:
        before: the command's parameter that they are placed before.
        declared: the dataclass, whose fields are declared as options.
    """

    def with_them(command: Command) -> Command:
        own = signature(command, eval_str=True)
        parameters = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        place = list(own.parameters).index(before)
        parameters[place:place] = signature(declared, eval_str=True).parameters.values()
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return with_them
