"""Measure, print a table and save it as JSON; print and draw saved results."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from bench.chips import chips_command
from bench.cluster_scaling import cluster_scaling_command
from bench.cluster_simulation import cluster_simulation_command
from bench.default_memory import default_memory_command
from bench.end_to_end import end_to_end_command
from bench.exercise import exercise_command
from bench.handing_out import handing_out_command
from bench.killed_labels import killed_labels_command
from bench.labels_memory import labels_memory_command
from bench.layers import layers_command
from bench.ledger import ledger_command
from bench.many_volumes import many_volumes_command
from bench.models import models_command
from bench.network import network_command
from bench.nnunet import nnunet_command
from bench.paper.micro_batches import micro_batches_command
from bench.paper.shares import shares_command
from bench.paper.strategies import (
    machine_plans_command,
    run_strategies_command,
    strategies_command,
)
from bench.phases import phases_command
from bench.predictors import predictors_command
from bench.profile import profile_command
from bench.record import revision
from bench.report import plot_command, report_command, table_command
from bench.scaling import scaling_command
from bench.seams import seams_command
from bench.search import search_command
from bench.search_compared import search_compared_command
from bench.sliding_windows import sliding_windows_command
from bench.top_plans import top_plans_command
from bench.unets import unets_command
from bench.volumes import volumes_command
from znni.cli.values import usage_error
from znni.core.errors import ZnniError

COMMANDS: dict[str, Callable[..., None]] = {
    "layers": layers_command,
    "chips": chips_command,
    "network": network_command,
    "unets": unets_command,
    "seams": seams_command,
    "models": models_command,
    "predictors": predictors_command,
    "nnunet": nnunet_command,
    "sliding-windows": sliding_windows_command,
    "profile": profile_command,
    "top-plans": top_plans_command,
    "search": search_command,
    "search-compared": search_compared_command,
    "scaling": scaling_command,
    "handing-out": handing_out_command,
    "exercise": exercise_command,
    "volumes": volumes_command,
    "end-to-end": end_to_end_command,
    "phases": phases_command,
    "default-memory": default_memory_command,
    "many-volumes": many_volumes_command,
    "ledger": ledger_command,
    "killed-labels": killed_labels_command,
    "labels-memory": labels_memory_command,
    "cluster-scaling": cluster_scaling_command,
    "cluster-simulation": cluster_simulation_command,
    "table": table_command,
    "report": report_command,
    "plot": plot_command,
}
PAPER_COMMANDS: dict[str, Callable[..., None]] = {
    "machine-plans": machine_plans_command,
    "strategies": strategies_command,
    "run-strategies": run_strategies_command,
    "micro-batches": micro_batches_command,
    "shares": shares_command,
}


def group(commands: dict[str, Callable[..., None]], text: str | None) -> typer.Typer:
    """Return an app with these commands."""
    made = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich help gives flags a type, as if they took a value
        help=text,
    )
    for name, command in commands.items():
        made.command(name)(command)
    return made


app = group(COMMANDS, __doc__)
app.add_typer(group(PAPER_COMMANDS, "Reproduce tables of papers."), name="paper")


def main() -> None:
    """Run a command; an error that a user can fix is one line."""
    arguments = sys.argv[1:] or ["--help"]
    revision()
    try:
        sys.exit(app(arguments, prog_name="python -m bench", standalone_mode=False))
    except ZnniError as error:
        message, code = str(error), error.exit_code
    except typer.TyperException as error:  # an option or argument not understood
        message, code = usage_error(error), error.exit_code
    typer.echo(f"bench: error: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
