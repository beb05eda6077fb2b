"""``python -m bench COMMAND``: measure, print a table, save the JSON; print and draw saved ones."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from bench.gpu_commands import (
    gpu_exercise_command,
    gpu_layers_command,
    gpu_memory_command,
    gpu_networks_command,
    gpu_profile_command,
)
from bench.layer_commands import (
    handing_out_command,
    layer_command,
    micro_batches_command,
    scaling_command,
)
from bench.ledger_commands import kills_command, ledger_command
from bench.network_commands import network_command, profile_command
from bench.planner_commands import (
    machine_command,
    run_strategies_command,
    search_command,
    shares_command,
    strategies_command,
    top_plans_command,
)
from bench.record import revision
from bench.result_commands import (
    choices_command,
    join_command,
    plot_command,
    report_command,
    table_command,
)
from bench.volume_commands import end_to_end_command, volumes_command
from znni.cli.values import usage_error
from znni.core.errors import ZnniError

COMMANDS: dict[str, Callable[..., None]] = {
    "layer": layer_command,
    "micro-batches": micro_batches_command,
    "scaling": scaling_command,
    "handing-out": handing_out_command,
    "network": network_command,
    "top-plans": top_plans_command,
    "profile": profile_command,
    "machine-plans": machine_command,
    "strategies": strategies_command,
    "run-strategies": run_strategies_command,
    "search": search_command,
    "shares": shares_command,
    "gpu-exercise": gpu_exercise_command,
    "gpu-layers": gpu_layers_command,
    "gpu-memory": gpu_memory_command,
    "gpu-networks": gpu_networks_command,
    "gpu-profile": gpu_profile_command,
    "volumes": volumes_command,
    "end-to-end": end_to_end_command,
    "kills": kills_command,
    "ledger": ledger_command,
    "join": join_command,
    "choices": choices_command,
    "table": table_command,
    "report": report_command,
    "plot": plot_command,
}

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help gives flags a type, as if they took a value
    help=__doc__,
)
for name, command in COMMANDS.items():
    app.command(name)(command)


def main() -> None:
    """Run a command; an error that a user can mend is one line."""
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
