"""Several volumes in one ``znni infer``: options that it refuses, and the report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from znni.core.errors import InvalidInput

if TYPE_CHECKING:
    from znni.inference.many import ManyReport


def refuse_for_many(volumes: Sequence[str], out: str | None, alone: Mapping[str, object]) -> None:
    """Refuse options of a single volume.

    Args:
        volumes: the volumes.
        out: where the outputs are to be made.
        alone: the values of options that are for one volume only, by their names.

    Raises:
        InvalidInput: one of them is given, or no folder is.
    """
    from znni.volumes.locate import names_folder, split_dataset
    from znni.volumes.stored import is_url

    for name, value in alone.items():
        if value:
            raise InvalidInput(
                f"{name} is for one volume and one output; give --out FILE, or leave {name} out"
            )
    if not out:
        *_, last = volumes
        if len(volumes) == 2 and not is_url(last) and not Path(split_dataset(last)[0]).exists():
            raise InvalidInput(
                f"{last}: there is no such volume; if it is the output, give --out {last}"
            )
        raise InvalidInput("several volumes need a folder for their outputs; give --out FOLDER/")
    if not names_folder(out, several=True):
        raise InvalidInput(
            f"--out {out} names one file for several volumes; give --out FOLDER/, and the ending "
            f"with --suffix"
        )


def show_many(report: ManyReport, folder: str) -> None:
    """Print how runs over many volumes went. If some failed, list them and exit with a code."""
    typer.echo(f"{folder}: {report}")
    for failure in report.failures:
        typer.echo(f"znni: error: {failure}", err=True)
    if report.failures:
        sys.exit(report.exit_code)
