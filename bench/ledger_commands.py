"""The commands about the ledger of an output: what it withstands, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from bench import options
from bench.kills import compare_kills
from bench.ledger_overhead import compare_ledger
from bench.many_patches import OUTPUTS, ManyPatches, many_patches
from bench.rounds import Effort
from bench.session import progress, report_all
from znni.core.errors import InvalidInput

Output = Annotated[
    list[str], typer.Option(help=f"Of {', '.join(OUTPUTS)}; repeatable. Default: all.")
]
Patch = Annotated[int, typer.Option(min=1, help="Most output voxels per axis of a patch.")]
Patches = Annotated[int, typer.Option(min=1, help="Patches per axis.")]


def kills_command(
    net: options.Nets,
    output: Output = [],  # noqa: B006
    patch: Patch = 16,
    patches: Patches = 4,
    times: Annotated[int, typer.Option(min=1, help="Kills of each kind of output.")] = 50,
    out: options.Out = None,
) -> None:
    """Kill runs at random moments, and compare what the same command then ends with."""
    cases = _cases(net, output, patch, patches)
    rows = ([compare_kills(case, times, progress)] for case in cases)
    report_all("kills", rows, [], out)


def ledger_command(
    net: options.Nets,
    output: Output = [],  # noqa: B006
    patch: Patch = 32,
    patches: Patches = 3,
    repeats: options.Repeats = 7,
    budget: options.Budget = 60.0,
    out: options.Out = None,
) -> None:
    """Runs with the ledger of their output and without."""
    effort = Effort(repeats, budget)
    cases = _cases(net, output, patch, patches)
    rows = ([compare_ledger(case, effort, progress)] for case in cases)
    report_all("ledger", rows, [], out)


def _cases(nets: list[Path], outputs: list[str], patch: int, patches: int) -> Iterator[ManyPatches]:
    """Every network with every kind of output; each is there until the next is asked for."""
    for name in outputs:
        if name not in OUTPUTS:
            raise InvalidInput(f"there is no output {name!r}; choose of {', '.join(OUTPUTS)}")
    for net, output in product(nets, outputs or OUTPUTS):
        with many_patches(net, output, patch, patches) as case:
            yield case
