"""``python -m bench volumes``: reading and writing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, get_args

import typer

from bench import options
from bench.rounds import Effort
from bench.session import progress, report_all
from bench.volumes import compare_formats
from znni.options import OutputType


def volumes_command(
    size: Annotated[int, typer.Option(min=1, help="Voxels per axis of a block.")] = 256,
    folder: Annotated[
        Path | None,
        typer.Option(file_okay=False, exists=True, help="Where to write. Default: as temporary."),
    ] = None,
    repeats: options.Repeats = 5,
    budget: options.Budget = 60.0,
    out: options.Out = None,
) -> None:
    """Reading and writing blocks in each format and type, beside its library and the floors."""
    where = folder or Path(tempfile.gettempdir())
    effort = Effort(repeats, budget)
    compared = (
        compare_formats(dtype, size, where, effort, progress) for dtype in get_args(OutputType)
    )
    report_all("volumes", compared, [], out)
