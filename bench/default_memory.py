"""Whether default plans take the right memory: jobs of many sizes, beside limits given by hand.

Each job runs with the default memory first, so it meets the pages that a first run of its size
meets. Then it runs under each limit. Each run is a process of its own, timed from its start to its
end, with a plan of its own that is searched for anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bench import session
from bench.end_to_end import SMALL, time_run
from bench.many_patches import ZNNI
from bench.noise_volumes import write_noise
from bench.record import Row
from znni.core.errors import RunFailed
from znni.core.shapes import Vec3
from znni.inference.kept_texts import FOLDER_VARIABLE, NONE
from znni.machine.cold_pages import warm_bytes

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
    seconds: Annotated[float, typer.Option(min=1, help="Seconds for all runs.")] = 700,
    out: session.Out = None,
) -> None:
    """Compare the default memory with limits given by hand, and predicted with actual times."""
    until = time.perf_counter() + seconds
    session.report_all("default-memory", _jobs(edge or EDGES, ram or LIMITS, until), [], out)


def _jobs(edges: Sequence[int], limits: Sequence[str], until: float) -> Iterator[list[Row]]:
    """Yield the rows of each job."""
    with TemporaryDirectory(prefix="bench-memory-") as name:
        folder = Path(name)
        net = folder / "small.yaml"
        net.write_text(SMALL)
        for edge in edges:
            session.progress(f"making a volume of {edge}^3")
            write_noise(folder / "volume.h5", Vec3.of(edge))
            yield with_best([_run(folder, net, edge, it, until) for it in (DEFAULT, *limits)])


def _run(folder: Path, net: Path, edge: int, limit: str, until: float) -> Row:
    """Return the row of one run.

    Raises:
        RunFailed: it ended with an error.
    """
    warm, out = warm_bytes(), folder / "out.h5"
    command = [
        *(*ZNNI, "infer", str(folder / "volume.h5"), "--net", str(net), "--out", str(out)),
        *("--dtype", "uint8", "--random-weights", "0", "--device", "cpu"),
        *(() if limit == DEFAULT else ("--ram", limit)),
    ]
    session.progress(f"{edge}^3, {limit}")
    row = time_run(command, out, until - time.perf_counter(), os.environ | {FOLDER_VARIABLE: NONE})
    if "skipped" in row and "failed" in row["skipped"]:
        raise RunFailed(f"{' '.join(command)}: {row['skipped']}")
    about: Row = {"voxels_m": edge**3 / 1e6, "limit": limit, "warm_gib": warm / 2**30}
    if "skipped" not in row:
        off = row["seconds"] / row["predicted_seconds"] - 1
        row |= {"off": off, "within_band": abs(off) <= row["predicted_error"]}
    return about | row


def with_best(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a job, each with its time beside that of the best limit."""
    done = [row["seconds"] for row in rows if row["limit"] != DEFAULT and "skipped" not in row]
    best = min(done, default=None)
    return [
        row if best is None or "skipped" in row else row | {"over_best": row["seconds"] / best - 1}
        for row in rows
    ]
