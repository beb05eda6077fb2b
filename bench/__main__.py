"""Measure, print a table and save it as JSON; print and draw saved results."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from bench.record import revision
from znni.cli.values import usage_error
from znni.core.errors import ZnniError

# The module of each command. Its function is named after the command.
COMMANDS = {
    "layers": "bench.layers",
    "chips": "bench.chips",
    "network": "bench.network",
    "unets": "bench.unets",
    "seams": "bench.seams",
    "models": "bench.models",
    "gpu-models": "bench.gpu_models",
    "import-families": "bench.import_families",
    "predictors": "bench.predictors",
    "nnunet": "bench.nnunet",
    "cases": "bench.cases",
    "whole-scan": "bench.whole_scan",
    "case-folder": "bench.case_folder",
    "sliding-windows": "bench.sliding_windows",
    "profile": "bench.profile",
    "top-plans": "bench.top_plans",
    "search": "bench.search",
    "search-compared": "bench.search_compared",
    "sweeps": "bench.sweeps",
    "scaling": "bench.scaling",
    "handing-out": "bench.handing_out",
    "exercise": "bench.exercise",
    "volumes": "bench.volumes",
    "zarr-libraries": "bench.zarr_libraries",
    "resampling": "bench.resampling",
    "end-to-end": "bench.end_to_end",
    "fleet": "bench.fleet",
    "phases": "bench.phases",
    "default-memory": "bench.default_memory",
    "many-volumes": "bench.many_volumes",
    "ledger": "bench.ledger",
    "killed-labels": "bench.killed_labels",
    "labels-memory": "bench.labels_memory",
    "cluster-scaling": "bench.cluster_scaling",
    "cluster-simulation": "bench.cluster_simulation",
    "table": "bench.report",
    "report": "bench.report",
    "rooflines": "bench.rooflines",
    "plot": "bench.report",
}
PAPER_COMMANDS = {
    "machine-plans": "bench.paper.strategies",
    "strategies": "bench.paper.strategies",
    "borders": "bench.paper.borders",
    "run-strategies": "bench.paper.strategies",
    "micro-batches": "bench.paper.micro_batches",
    "shares": "bench.paper.shares",
    "pruned-ffts": "bench.paper.pruned_ffts",
    "fft-speedups": "bench.paper.curves",
    "sizes": "bench.paper.curves",
    "subsamplings": "bench.paper.subsamplings",
    "regions": "bench.paper.regions",
    "planes": "bench.paper.planes",
    "lowering": "bench.paper.lowering",
    "batching": "bench.paper.lowering",
    "side-by-side": "bench.paper.side_by_side",
}

PAPER = "paper"


class CommandsByNeed(TyperGroup):
    """Commands whose modules are imported when they are needed: many import large libraries."""

    modules: Mapping[str, str] = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*self.modules, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if there is none of this name."""
        if cmd_name not in self.modules:
            return super().get_command(ctx, cmd_name)
        module = import_module(self.modules[cmd_name])
        alone = _app()
        alone.command(cmd_name)(getattr(module, f"{cmd_name.replace('-', '_')}_command"))
        return typer.main.get_command(alone)


class PaperCommands(CommandsByNeed):
    """Commands that reproduce tables of papers."""

    modules = PAPER_COMMANDS


def _app(cls: type[TyperGroup] | None = None, text: str | None = None) -> typer.Typer:
    made = typer.Typer(
        cls=cls,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich help gives flags a type, as if they took a value
        help=text,
    )
    if cls is not None:
        made.callback()(_group)
    return made


def _group() -> None:
    """Do nothing before a command."""


app = _app(CommandsByNeed, __doc__)
app.add_typer(_app(PaperCommands, "Reproduce tables of papers."), name=PAPER)


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
