"""The commands about saved results: joined, judged, printed and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.choices import judge_choices
from bench.joining import join
from bench.plot import plot
from bench.record import load, write
from bench.report import report
from bench.table import table


def join_command(
    results: Annotated[list[Path], typer.Argument(help="Saved JSON files of one kind, in order.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Save the JSON here.")],
) -> None:
    """Save results of several commands as one."""
    write(out, join([load(path) for path in results]))


def choices_command(
    results: Annotated[list[Path], typer.Argument(help="JSON files of bench layer.")],
) -> None:
    """Whether the planner's model picks the primitive that is fastest."""
    rows = [row for path in results for row in load(path, "layer").rows]
    typer.echo(table("choices", judge_choices(rows)))


def table_command(results: Annotated[Path, typer.Argument(help="A saved JSON.")]) -> None:
    """Print saved results as a Markdown table."""
    record = load(results)
    typer.echo(table(record.kind, record.rows))


def report_command(
    results: Annotated[list[Path], typer.Argument(help="Saved JSON files.")],
) -> None:
    """Print saved results as a Markdown page, with machines, dates and commands."""
    typer.echo(report({path.name: load(path) for path in results}), nl=False)


def plot_command(
    results: Annotated[list[Path], typer.Argument(help="Saved JSON files.")],
    out: Annotated[Path, typer.Option(help="The picture, such as layers.png.")],
) -> None:
    """Draw saved results of layer, network or scaling."""
    plot([load(path) for path in results], out)
    typer.echo(f"wrote {out}")
