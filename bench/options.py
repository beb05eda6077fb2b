"""The options that several commands of ``python -m bench`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from znni.core.options import Accuracy, Costs, OutputType, memory_size

LEAST_BUDGET = 1e-3  # seconds: more than none

Kernels = Annotated[list[int], typer.Option("--kernel", min=1, help="Kernel extent; repeatable.")]
Batches = Annotated[
    list[int], typer.Option("--batch", min=1, help="Inputs times fragments; repeatable.")
]
Sizes = Annotated[
    list[int], typer.Option("--size", min=1, help="Input voxels per axis; repeatable.")
]
Features = Annotated[int, typer.Option(min=1, help="Input maps.")]
OutFeatures = Annotated[int, typer.Option(min=1, help="Output maps.")]
Only = Annotated[list[str] | None, typer.Option(help="A primitive; repeatable. Default: all.")]
Nets = Annotated[list[Path], typer.Option("--net", help="Network file; repeatable.")]
Volume = Annotated[
    int, typer.Option("--size", min=1, help="Voxels per axis of the volume planned for.")
]
Ram = Annotated[
    int,
    typer.Option(
        parser=memory_size,
        metavar="SIZE",
        show_default="16GiB",
        help="Memory that a plan may take.",
    ),
]
Patch = Annotated[
    int | None, typer.Option(min=1, help="Plan for an output of so many voxels per axis.")
]
PlanFile = Annotated[Path | None, typer.Option(help="Run this plan, made by znni plan --out.")]
AccuracyClass = Annotated[Accuracy, typer.Option("--accuracy", help="Of the primitives planned.")]
Written = Annotated[OutputType, typer.Option("--dtype", help="Of the output that is planned for.")]
CostsChoice = Annotated[Costs, typer.Option("--costs", help="Of the model that predicts times.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Worker threads. Default: all cores.")]
Repeats = Annotated[int, typer.Option(min=1, help="Counted rounds.")]
Budget = Annotated[
    float, typer.Option(min=LEAST_BUDGET, help="Seconds for the counted rounds of one contestant.")
]
Out = Annotated[Path | None, typer.Option(dir_okay=False, help="Save the JSON here.")]
