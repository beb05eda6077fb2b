"""Whether default plans take the right memory: jobs of many sizes, beside limits given by hand.

Each run is a process of its own, timed from its start to its end, with a plan of its own that is
searched for anew. A first run of each size is not counted. Then the default and the limits take
turns. Often several of them get the same plan, and then only the noise of the machine sets their
runs apart. So the runs of one plan are judged together. Small jobs are cheap, so they run more
often.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bench import session
from bench.end_to_end import SMALL, time_run
from bench.many_patches import ZNNI
from bench.noise_volumes import write_noise
from bench.record import Row
from bench.rounds import Effort, run_rounds
from znni.core.errors import RunFailed
from znni.core.shapes import Vec3
from znni.inference.text_cache import FOLDER_VARIABLE, NONE
from znni.machine.cold_pages import warm_bytes
from znni.machine.timing import Timing

# The edges of cubes of 10 to 500 million voxels.
EDGES = (216, 252, 288, 340, 400, 464, 536, 608, 696, 794)
LIMITS = ("1GiB", "2GiB", "4GiB", "8GiB")
DEFAULT = "default"


def default_memory_command(
    edge: Annotated[
        list[int] | None,
        typer.Option(min=32, help="Edge of a cubic volume; repeatable. Default: ten edges."),
    ] = None,
    ram: Annotated[
        list[str] | None,
        typer.Option(help="A limit to compare with; repeatable. Default: 1, 2, 4 and 8 GiB."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each limit runs at most.")] = 9,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds for all runs.")] = 700,
    out: session.Out = None,
) -> None:
    """Compare the default memory with limits given by hand, and predicted with actual times."""
    jobs = _jobs(edge or EDGES, ram or LIMITS, rounds, time.perf_counter() + seconds)
    session.report_all("default-memory", jobs, [], out)


def _jobs(
    edges: Sequence[int], limits: Sequence[str], rounds: int, until: float
) -> Iterator[list[Row]]:
    """Yield the rows of each job: a row for each plan.

    A job's share of the seconds grows as the root of its voxels. So large jobs get more seconds,
    and small ones more runs.
    """
    with TemporaryDirectory(prefix="bench-memory-") as name:
        folder = Path(name)
        net = folder / "small.yaml"
        net.write_text(SMALL)
        for index, edge in enumerate(edges):
            session.progress(f"making a volume of {edge}^3")
            write_noise(folder / "volume.h5", Vec3.of(edge))
            share = sqrt(edge**3) / sum(sqrt(each**3) for each in edges[index:])
            budget = share * (until - time.perf_counter()) / (1 + len(limits))
            done: list[Row] = []
            contestants = {
                it: partial(_run, folder, net, edge, it, until, done) for it in (DEFAULT, *limits)
            }
            run_rounds(contestants, Effort(rounds, budget), warm=limits, progress=session.progress)
            yield by_plan(done[1:])


def _run(
    folder: Path, net: Path, edge: int, limit: str, until: float, done: list[Row]
) -> float | None:
    """Run a job, and add its row to those that are done.

    Returns:
        Its seconds; None if no time was left.

    Raises:
        RunFailed: it ended with an error.
    """
    warm, out = warm_bytes(), folder / "out.h5"
    command = [
        *(*ZNNI, "infer", str(folder / "volume.h5"), "--net", str(net), "--out", str(out)),
        *("--dtype", "uint8", "--random-weights", "0", "--device", "cpu"),
        *(() if limit == DEFAULT else ("--ram", limit)),
    ]
    row = time_run(command, out, until - time.perf_counter(), os.environ | {FOLDER_VARIABLE: NONE})
    if "skipped" in row and "failed" in row["skipped"]:
        raise RunFailed(f"{' '.join(command)}: {row['skipped']}")
    done.append({"voxels_m": edge**3 / 1e6, "limit": limit, "warm_gib": warm / 2**30} | row)
    return None if "skipped" in row else float(row["seconds"])


def by_plan(runs: Sequence[Row]) -> list[Row]:
    """Return a row for each plan of a job, with its time beside that of the limits' best plan.

    Its numbers are medians over all runs of the plan. Its limits are those that led to the plan.
    Limits without any complete run are in a row of their own.
    """
    plans: dict[str, list[Row]] = {}
    for run in runs:
        if "skipped" not in run:
            plans.setdefault(run["plan"], []).append(run)
    rows = [_row_of_plan(found) for found in plans.values()]
    limited = (row["seconds"] for row in rows if row["limit"] != DEFAULT)
    if best := min(limited, default=None):
        rows = [row | {"over_best": row["seconds"] / best - 1} for row in rows]
    ran = {run["limit"] for found in plans.values() for run in found}
    if missing := [run for run in runs if run["limit"] not in ran]:
        rows.append(missing[0] | {"limit": _limits(missing)})
    return rows


def _row_of_plan(runs: Sequence[Row]) -> Row:
    timing = Timing(tuple(run["seconds"] for run in runs))
    row = {name: _common([run.get(name) for run in runs]) for name in runs[0]}
    off = [run["seconds"] / run["predicted_seconds"] - 1 for run in runs]
    within = [abs(each) <= run["predicted_error"] for each, run in zip(off, runs, strict=True)]
    return row | {
        "limit": _limits(runs),
        "rounds": len(runs),
        "spread": timing.spread,
        "all_seconds": timing.seconds,
        "off": statistics.median(off),
        "within_band": sum(within) / len(within),
        "peak_gib": max(run["peak_gib"] for run in runs),
    }


def _limits(runs: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(run["limit"] for run in runs))


def _common(values: Sequence[object]) -> object:
    """Return the median of numbers, what equal values are, or None."""
    numbers = [value for value in values if isinstance(value, float | int)]
    if len(numbers) == len(values):
        return statistics.median(numbers)
    return values[0] if all(value == values[0] for value in values) else None
