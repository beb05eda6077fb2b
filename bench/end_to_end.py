"""Whole runs of ``znni infer`` over large volumes, and how busy each stage was.

A run is a process of its own, as a user starts it. Its seconds count from there until it has ended,
by phase. The ledger of its output says when blocks are written. The output gets its name when it is
complete. Its attributes say how long the phases took, and how long its stages worked.

Rates after the first blocks count the patches that came after them: once each worker has done its
first patch, nothing is loaded or compiled any more, and all stages are at work.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import h5py
import numpy as np
import typer

from bench import session
from bench.many_patches import ZNNI, blocks_in
from bench.record import Row
from znni.cli.values import three_extents
from znni.core.options import DeviceChoice
from znni.core.shapes import Vec3
from znni.plans.job_seconds import StageSeconds, in_words
from znni.plans.plan import Plan
from znni.volumes.ledger_file import ledger_name
from znni.volumes.partial_file import partial_name

CHUNK = 64
PHASES = ("start", "planning", "opening", "building", "running")  # those that an output notes
LOOK_SECONDS = 0.005  # from one look at the ledger to the next


@dataclass(frozen=True)
class Runs:
    """The runs that are wanted.

    Attributes:
        nets: files of networks; weights are random.
        size: extents of the volume for one GPU.
        gpus: how many compute; repeated for each.
        scaled: True if a volume for several GPUs is as many times as long in z.
        device: where layers run.
        plans: a folder of plans, ``NETWORK-GPUS.json``; without it each run searches.
        options: further ones of ``znni infer``.
    """

    nets: Sequence[Path]
    size: Vec3
    gpus: Sequence[int]
    scaled: bool
    device: DeviceChoice
    plans: Path | None
    options: Sequence[str]


def end_to_end_command(
    net: session.Nets,
    volume: Annotated[
        str, typer.Option(metavar="Z,Y,X", help="Extents of the volume for one GPU.")
    ] = "1024,1024,1024",
    gpus: Annotated[list[int], typer.Option(min=1, help="How many; repeatable.")] = [1],  # noqa: B006
    scaled: Annotated[
        bool, typer.Option("--scaled", help="For n GPUs, make the volume n times as long in z.")
    ] = False,
    device: Annotated[DeviceChoice, typer.Option(help="Where layers run.")] = "gpu",
    plans: Annotated[
        Path | None,
        typer.Option(file_okay=False, exists=True, help="A folder of plans, NETWORK-GPUS.json."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="A further option of znni infer, as --ram=8GiB; repeatable."),
    ] = None,
    folder: session.Folder = None,
    seconds: Annotated[float, typer.Option(min=1, help="For all runs together.")] = 3600.0,
    out: session.Out = None,
) -> None:
    """Time whole runs of ``znni infer``.

    They run over volumes of noise. Rows say how busy each stage was.
    """
    runs = Runs(net, three_extents(volume), gpus, scaled, device, plans, option or [])
    where = folder or Path(tempfile.gettempdir())
    rows = time_runs(runs, where, seconds)
    session.report_all("end-to-end", rows, [], out)


def time_runs(runs: Runs, folder: Path, seconds: float) -> Iterator[list[Row]]:
    """Yield a row for each run, as soon as it is over.

    Args:
        runs: the runs that are wanted.
        folder: where volumes and outputs are made; they are deleted in the end.
        seconds: for all runs. Afterwards a run is ended, or not begun.
    """
    until = time.perf_counter() + seconds
    alone: dict[str, Row] = {}
    with TemporaryDirectory(dir=folder, prefix="bench-end-to-end-") as name:
        place, made = Path(name), Vec3(0, 0, 0)
        for gpus in runs.gpus:
            size = runs.size._replace(z=runs.size.z * (gpus if runs.scaled else 1))
            if size != made:
                session.progress(f"making a volume of {size}")
                write_noise(place / "volume.h5", size)
                made = size
            for net in runs.nets:
                row: Row = {"network": net.stem, "volume": str(size), "gpus": gpus}
                left = until - time.perf_counter()
                session.progress(f"{net.stem}, {gpus} GPUs; {left:.0f} s left")
                command = _command(runs, net, gpus, place)
                row |= time_run(command, place / "out.h5", left)
                yield [with_efficiency(row, alone.setdefault(net.stem, row))]


def write_noise(path: Path, size: Vec3) -> None:
    """Make a volume of uint8 noise in an HDF5 file, in chunks, not compressed.

    Its blocks differ, though they are made from one. That is faster than drawing all.
    """
    chunk = size.minimum(Vec3.of(CHUNK))
    slab = np.random.default_rng(0).integers(0, 256, (chunk.z, size.y, size.x), np.uint8)
    with h5py.File(path, "w") as file:
        volume = file.create_dataset("raw", size, np.uint8, chunks=tuple(chunk))
        for number, z in enumerate(range(0, size.z, chunk.z)):
            depth = min(chunk.z, size.z - z)
            volume[z : z + depth] = slab[:depth] ^ np.uint8(number % 256)


def _command(runs: Runs, net: Path, gpus: int, folder: Path) -> list[str]:
    plan = ["--plan", str(runs.plans / f"{net.stem}-{gpus}.json")] if runs.plans else []
    return [
        *(*ZNNI, "infer", str(folder / "volume.h5"), "--net", str(net)),
        *("--out", str(folder / "out.h5"), "--dtype", "uint8", "--random-weights", "0"),
        *("--device", runs.device, "--gpus", str(gpus), *plan, *runs.options),
    ]


def time_run(
    command: Sequence[str],
    out: Path,
    limit: float,
    environment: Mapping[str, str] | None = None,
) -> Row:
    """Time a run, and delete its output; if it did not end well, the row says how.

    Args:
        command: writes to ``out``.
        out: the HDF5 file.
        limit: seconds after which it is ended.
        environment: its environment; by default this process's.
    """
    if limit <= 0:
        return {"skipped": "no time was left"}
    ledger, written = ledger_name(partial_name(out)), list[float]()
    begun, complete = time.perf_counter(), inf
    with subprocess.Popen(command, env=environment) as run:
        while run.poll() is None:
            now = time.perf_counter() - begun
            written += [now] * (blocks_in(ledger) - len(written))
            if complete > now and out.exists():
                complete = now
            if now > limit:
                run.kill()
            time.sleep(LOOK_SECONDS)
        wall = time.perf_counter() - begun
    try:
        if run.returncode:
            ended = f"was ended after {limit:.0f} s" if wall > limit else "failed"
            return {"skipped": f"the run {ended}", "seconds": wall}
        with h5py.File(out) as file:
            return row_of_run(file["main"].attrs, wall, written, min(complete, wall))
    finally:
        for path in (out, partial_name(out), ledger):
            path.unlink(missing_ok=True)


def row_of_run(
    told: Mapping[str, Any], wall: float, written: Sequence[float], complete: float
) -> Row:
    """Return what a run came to, and its rate after the first blocks if they were seen.

    Args:
        told: attributes of its output.
        wall: seconds of its process.
        written: seconds from its start until each block was written.
        complete: seconds from its start until its output was complete.
    """
    plan = Plan.from_json(told["plan"])
    busy = StageSeconds(**{stage: told[f"{stage}_seconds"] for stage in StageSeconds().by_stage()})
    row: Row = {
        "patch": str(plan.patch),
        "patches": plan.patches,
        "seconds": wall,
        "predicted_seconds": plan.seconds,
        "predicted_error": plan.error,
        **{f"{phase}_seconds": told[f"{phase}_seconds"] for phase in PHASES},
        "finishing_seconds": max(0.0, complete - told["seconds"]),
        "exit_seconds": wall - max(complete, told["seconds"]),
        "bottleneck": in_words(busy.bottleneck),
        "voxels_per_s": plan.output.volume / wall,
        "predicted_voxels_per_s": plan.voxels_per_second,
        "peak_gib": told["peak_memory_bytes"] / 2**30,
        "declared_gib": plan.memory.total / 2**30,
    }
    if plan.gpu_memory:
        row["gpu_peak_gib"] = told["gpu_peak_memory_bytes"] / 2**30
        row["gpu_declared_gib"] = plan.gpu_memory.total / 2**30
    if not written:
        return row
    row["first_seconds"] = written[0]
    row["ending_seconds"] = wall - written[-1]
    later = plan.patches - plan.workers
    span = written[-1] - written[min(plan.workers, len(written)) - 1]
    if span > 0 and len(written) == plan.patches:
        share = later / plan.patches
        row["later_seconds"] = span
        row["later_voxels_per_s"] = share * plan.output.volume / span
        row["busy"] = {stage: share * worked / span for stage, worked in busy.by_stage().items()}
        row["busy_in_words"] = ", ".join(
            f"{in_words(stage)} {part:.0%}"
            for stage, part in row["busy"].items()
            if busy.by_stage()[stage]
        )
    return row


def with_efficiency(row: Row, fewest: Row) -> Row:
    """Add what each GPU gives, relative to a run with the fewest of them."""
    for rate, name in {
        "voxels_per_s": "efficiency",
        "later_voxels_per_s": "later_efficiency",
    }.items():
        if rate in row and rate in fewest and row["gpus"] > fewest["gpus"]:
            row[name] = row[rate] / fewest[rate] * fewest["gpus"] / row["gpus"]
    return row
