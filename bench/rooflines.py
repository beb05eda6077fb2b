"""Where the time of a plan's patch goes, and what bounds each step.

A step's floor is the least time that its declared operations and bytes take at the ceilings that
were measured in the same session: the longer of the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from bench.ceilings import AnyCeilings
from bench.record import Record, Row, load
from bench.table import markdown
from znni.core.errors import InvalidInput
from znni.plans.plan import Plan

Files = Annotated[
    list[Path], typer.Argument(help="Records of bench unets on a GPU, or of bench profile.")
]


class PatchOfSteps(NamedTuple):
    """What was measured of a plan's patch.

    Attributes:
        network: the network's name.
        patch: the output's extents, or those of the window.
        accuracy: the class of accuracy that was allowed, if the record says so.
        seconds: the time of the whole patch.
        steps: rows of ``step_rows``.
    """

    network: str
    patch: str
    accuracy: str | None
    seconds: float
    steps: list[Row]


def rooflines_command(files: Files) -> None:
    """Print what bounds plans and their kernels, by records of their steps."""
    patches = [patch for file in files for patch in patches_of(load(file))]
    if not patches:
        raise InvalidInput("these records have no steps; measure again: bench unets --device gpu")
    for lines in (by_network(patches), by_kernel(patches)):
        typer.echo(f"{markdown(lines)}\n")


def step_rows(plan: Plan, ceilings: AnyCeilings, seconds: Mapping[str, float]) -> list[Row]:
    """Return for each step of a plan its work, the floor under it, and the share that it reaches.

    Args:
        plan: the plan.
        ceilings: those of the device.
        seconds: of all runs of a step in a patch, by the name of its layer.
    """
    rows: list[Row] = []
    for segment, runs in plan.runs():
        for step in segment.steps:
            cost, floor = step.cost, ceilings.floor(step.cost)
            taken = seconds[step.operation.name]
            rows.append(
                {
                    "layer": step.operation.name,
                    "primitive": str(step.primitive),
                    "input": str(step.shape_in),
                    "runs": runs,
                    "seconds": taken,
                    "gflops": runs * cost.flops / taken / 1e9,
                    "gbytes": runs * cost.bytes_moved / taken / 1e9,
                    "floor_seconds": runs * floor.seconds,
                    "bound": floor.bound,
                    "achieved": floor.share(taken / runs),
                }
            )
    return rows


def patches_of(record: Record) -> Iterator[PatchOfSteps]:
    """Yield the patches whose steps a record has."""
    if record.kind == "profile":
        for (network, patch), rows in groupby(
            record.rows, lambda row: (row["network"], row["patch"])
        ):
            *steps, whole = rows
            yield PatchOfSteps(network, patch, None, whole["seconds"], steps)
    for row in record.rows:
        if row.get("steps"):
            about = row["network"], row["window"], row.get("accuracy")
            yield PatchOfSteps(*about, row["seconds"], row["steps"])


def by_network(patches: Iterable[PatchOfSteps]) -> list[dict[str, str]]:
    """Return a line of a table for each patch: its time, and the floors under its steps."""
    lines = []
    for network, patch, accuracy, seconds, steps in patches:
        bounds = _sums(steps, "bound", "floor_seconds")
        floor = sum(bounds.values())
        lines.append(
            {
                "network": network,
                "patch": patch,
                "class": accuracy or "-",
                "takes": _ms(seconds),
                "its steps one by one": _ms(sum(row["seconds"] for row in steps)),
                "floor": _ms(floor),
                "of it by operations": _ms(bounds.get("flops", 0.0)),
                "by bytes": _ms(bounds.get("bytes", 0.0)),
                "achieved": f"{floor / seconds:.0%}",
            }
        )
    return lines


def by_kernel(patches: Iterable[PatchOfSteps]) -> list[dict[str, str]]:
    """Return a line of a table for each primitive of each patch, the slowest first."""
    lines = []
    for network, *_, steps in patches:
        total = sum(row["seconds"] for row in steps)
        taken = _sums(steps, "primitive", "seconds")
        for name in sorted(taken, key=lambda name: -taken[name]):
            own = [row for row in steps if row["primitive"] == name]
            bounds = _sums(own, "bound", "floor_seconds")
            floor = sum(bounds.values())
            lines.append(
                {
                    "network": network,
                    "primitive": f"`{name}`",
                    "steps": str(len(own)),
                    "takes": _ms(taken[name]),
                    "share": f"{taken[name] / total:.0%}",
                    "floor": _ms(floor),
                    "mostly": "operations" if bounds.get("flops", 0.0) > floor / 2 else "bytes",
                    "achieved": f"{floor / taken[name]:.0%}",
                }
            )
    return lines


def _sums(rows: Iterable[Row], key: str, value: str) -> dict[str, float]:
    """Return the sums of a value over rows, by another."""
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row[key]] += row[value]
    return sums


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
