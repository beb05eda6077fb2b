"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from znni.core.options import (
    Accuracy,
    Border,
    Compression,
    Costs,
    DeviceChoice,
    Division,
    OutputType,
    PlanOptions,
)

Command = TypeVar("Command", bound=Callable[..., None])

Net = Annotated[Path, typer.Option("--net", help="Network file (YAML).")]
Ram = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory the process may take, such as 8GiB. Default: 9/10 of what is available.",
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of the GPU that the plan may take. Default: 9/10 of what is free.",
    ),
]
Gpus = Annotated[
    str,
    typer.Option(
        metavar="N|all|0,2",
        help="How many GPUs compute patches at the same time, all, or which ones.",
    ),
]
Device = Annotated[
    DeviceChoice,
    typer.Option(help="Where the layers run; auto: wherever that is fastest."),
]
Threads = Annotated[int | None, typer.Option(help="Worker threads. Default: all cores.")]
Roi = Annotated[
    str | None,
    typer.Option(
        metavar="Z0:Z1,Y0:Y1,X0:X1",
        help="Only output for these voxels of the volume; an end left out is that of the output.",
    ),
]
Mask = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Volume of the same extents; blocks in which it is 0 hold 0, and are not computed.",
    ),
]
Dataset = Annotated[str | None, typer.Option(help="Dataset of a file that holds several.")]
BorderChoice = Annotated[
    Border,
    typer.Option(help="valid: voxels with all their context; same: all, padded beyond the edges."),
]
Dtype = Annotated[OutputType, typer.Option(help="Type of the output; uint8 stores 0..1 as 0..255.")]
CompressionChoice = Annotated[
    Compression | None, typer.Option(help="Of the chunks of a Zarr. Default: zstd.")
]
AccuracyChoice = Annotated[
    Accuracy,
    typer.Option(
        help="tf32 allows relative errors of up to 0.002 a layer where it is faster, bfloat16 0.01."
    ),
]
CostsChoice = Annotated[
    Costs,
    typer.Option(help="Predict times from what znni calibrate measured, or the built-in model."),
]
MicroBatchesChoice = Annotated[
    Division,
    typer.Option(
        "--micro-batches",
        help="Sizes of the pieces that a layer's batch may be computed in where memory is short; "
        "all takes many times longer to plan.",
    ),
]


class PlannedOptions(PlanOptions, total=False):
    """What commands that plan hand on as they are given it."""

    dtype: OutputType


@dataclass
class Planned:
    """``PlannedOptions`` as they are on the command line."""

    ram: Ram = None
    threads: Threads = None
    device: Device = "auto"
    gpu_memory: GpuMemory = None
    gpus: Gpus = "1"
    dtype: Dtype = "float32"
    accuracy: AccuracyChoice = "float32"
    costs: CostsChoice = "auto"
    micro_batches: MicroBatchesChoice = "power-of-two"


def planned(before: str) -> Callable[[Command], Command]:
    """Make the options of ``Planned`` those that a command takes as ``**options``.

    They become part of its signature, off which typer reads a command's options.

    Args:
        before: the parameter of the command that they come before.
    """

    def with_them(command: Command) -> Command:
        own = signature(command, eval_str=True)
        parameters = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        place = list(own.parameters).index(before)
        parameters[place:place] = signature(Planned, eval_str=True).parameters.values()
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return with_them
