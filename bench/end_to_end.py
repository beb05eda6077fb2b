"""Whole runs of ``znni infer`` over large volumes, and how busy each stage was.

A run is a process of its own, as a user starts it. Its seconds count from there until it has ended,
by phase. The ledger of its output says when blocks are written. The output gets its name when it is
complete. Its attributes say how long the phases took, and how long its stages worked.

Rates after the first blocks count the patches that came after them: once each worker has done its
first patch, nothing is loaded or compiled any more, and all stages are at work.

Rows have the seconds of a run, of its reading and of its writing beside what it predicted: with the
seconds that this machine takes to start and to plan, as its output notes them. The volume was just
written, so the system may hold it in its page cache; `--cold` has the system drop it first.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from bench import session
from bench.many_patches import ZNNI, blocks_in
from bench.noise_volumes import Storing, drop_from_cache, write_noise
from bench.record import Row
from znni.cli.values import three_extents
from znni.core.processors import DeviceChoice
from znni.core.shapes import Vec3
from znni.machine.process_age import process_age
from znni.plans.job_seconds import StageSeconds, in_words
from znni.plans.plan import Plan
from znni.volumes.ledger_file import ledger_name
from znni.volumes.locate import open_volume
from znni.volumes.partial_file import partial_name

PHASES = ("start", "planning", "opening", "building", "running")  # those that an output notes
LOOK_SECONDS = 0.005  # from one look at the ledger to the next

# A pooled network that a few cores compute at some ten million voxels a second.
SMALL = """name: small
in_features: 1
input: {scale: 0.01}
layers:
  - conv: {features: 8, kernel: 2, activation: relu}
  - pool: {window: 2}
  - conv: {features: 8, kernel: 3, activation: relu}
  - conv: {features: 1, kernel: 3, activation: sigmoid}
"""


@dataclass(frozen=True)
class Runs:
    """The runs that are wanted.

    Attributes:
        nets: files of networks; weights are random. Without any, ``SMALL``.
        size: extents of the volume for one GPU.
        gpus: how many compute; repeated for each.
        scaled: True if a volume for several GPUs is as many times as long in z.
        device: where layers run.
        plans: a folder of plans, ``NETWORK-GPUS.json``; without it each run searches.
        options: further ones of ``znni infer``.
        storing: how the volume is stored; repeated for each.
        cold: whether the system first drops the volume from its page cache.
    """

    nets: Sequence[Path]
    size: Vec3
    gpus: Sequence[int]
    scaled: bool
    device: DeviceChoice
    plans: Path | None
    options: Sequence[str]
    storing: Sequence[Storing] = (Storing.HDF5,)
    cold: bool = False


def end_to_end_command(
    net: Annotated[
        list[Path] | None,
        typer.Option(help="Network file; repeatable. Default: a small one, fast to compute."),
    ] = None,
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
    storing: Annotated[
        list[Storing], typer.Option(help="How the volume is stored; repeatable.")
    ] = [Storing.HDF5],  # noqa: B006
    cold: Annotated[
        bool, typer.Option("--cold", help="Drop the volume from the page cache before each run.")
    ] = False,
    folder: session.Folder = None,
    seconds: Annotated[float, typer.Option(min=1, help="For all runs together.")] = 3600.0,
    out: session.Out = None,
) -> None:
    """Time whole runs of ``znni infer``.

    They run over volumes of noise. Rows say how busy each stage was.
    """
    runs = Runs(
        *(net or [], three_extents(volume), gpus, scaled, device, plans, option or []),
        *(storing, cold),
    )
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
        place = Path(name)
        nets = list(runs.nets) or [place / "small.yaml"]
        if not runs.nets:
            nets[0].write_text(SMALL)
        for storing, gpus in product(runs.storing, runs.gpus):
            size = runs.size._replace(z=runs.size.z * (gpus if runs.scaled else 1))
            with TemporaryDirectory(dir=place) as inner:
                volume = Path(inner) / f"volume{storing.ending}"
                session.progress(f"making a volume of {size}, {storing}")
                write_noise(volume, size, storing)
                for net in nets:
                    row: Row = {"network": net.stem, "volume": str(size), "gpus": gpus}
                    row |= {"storing": storing.value, "cold": runs.cold}
                    left = until - time.perf_counter()
                    session.progress(f"{net.stem}, {gpus} GPUs; {left:.0f} s left")
                    if runs.cold:
                        drop_from_cache(volume)
                    out = volume.with_name(f"out{storing.ending}")
                    row |= time_run(_command(runs, net, gpus, volume, out), out, left)
                    alone_as = f"{net.stem}, {storing}"
                    yield [with_efficiency(row, alone.setdefault(alone_as, row))]


def _command(runs: Runs, net: Path, gpus: int, volume: Path, out: Path) -> list[str]:
    plan = ["--plan", str(runs.plans / f"{net.stem}-{gpus}.json")] if runs.plans else []
    return [
        *(*ZNNI, "infer", str(volume), "--net", str(net)),
        *("--out", str(out), "--dtype", "uint8", "--random-weights", "0"),
        *("--device", runs.device, "--gpus", str(gpus), *plan, *runs.options),
    ]


def time_run(
    command: Sequence[str],
    out: Path,
    limit: float,
    environment: Mapping[str, str] | None = None,
    *,
    keep: bool = False,
) -> Row:
    """Time a run; if it did not end well, the row says how.

    Args:
        command: writes to ``out``.
        out: a file or a folder.
        limit: seconds after which it is ended.
        environment: its environment; by default this process's.
        keep: whether its output stays; what an unfinished one left is deleted.
    """
    if limit <= 0:
        return {"skipped": "no time was left"}
    ledger, written = ledger_name(partial_name(out)), list[float]()
    with subprocess.Popen(command, env=environment) as run:
        begun = time.perf_counter() - process_age(run.pid)  # as the run itself counts
        while run.poll() is None:
            now = time.perf_counter() - begun
            written += [now] * (blocks_in(ledger) - len(written))
            if now > limit:
                run.kill()
            time.sleep(LOOK_SECONDS)
        wall = time.perf_counter() - begun
    try:
        if run.returncode:
            ended = f"was ended after {limit:.0f} s" if wall > limit else "failed"
            return {"skipped": f"the run {ended}", "seconds": wall}
        complete = wall - (time.time() - out.stat().st_ctime)  # a new name counts as a change
        return row_of_run(open_volume(out).attributes(), wall, written, complete)
    finally:
        for path in (*([] if keep else [out]), partial_name(out), ledger):
            if path.is_dir():
                shutil.rmtree(path)
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
    told = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in told.items()
    }
    plan = Plan.from_json(told["plan"])
    busy = StageSeconds(**{stage: told[f"{stage}_seconds"] for stage in StageSeconds().by_stage()})
    reading, writing = (told[f"predicted_{stage}_seconds"] for stage in ("reading", "writing"))
    row: Row = {
        "plan": identity(plan),
        "patch": str(plan.patch),
        "patches": plan.patches,
        "seconds": wall,
        "predicted_seconds": told["predicted_seconds"],
        "predicted_error": told["predicted_error"],
        **{f"{phase}_seconds": told[f"{phase}_seconds"] for phase in PHASES},
        "finishing_seconds": max(0.0, complete - told["seconds"]),
        "exit_seconds": wall - max(complete, told["seconds"]),
        "reading_seconds": busy.reading,
        "predicted_reading_seconds": reading,
        "reading_off": _off(busy.reading, reading),
        "writing_seconds": busy.writing,
        "predicted_writing_seconds": writing,
        "writing_off": _off(busy.writing, writing),
        "stage_seconds": busy.by_stage(),
        "bottleneck": in_words(busy.bottleneck),
        "voxels_per_s": plan.output.volume / wall,
        "predicted_voxels_per_s": plan.output.volume / told["predicted_seconds"],
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


def identity(plan: Plan) -> str:
    """Return eight characters that are equal for plans that compute the same in the same way."""
    return sha256(repr(plan.computation).encode()).hexdigest()[:8]


def _off(measured: float, predicted: float) -> float:
    """Return by which share of a prediction the measured time is longer."""
    return measured / predicted - 1 if predicted else inf


def with_efficiency(row: Row, fewest: Row) -> Row:
    """Add what each GPU gives, relative to a run with the fewest of them."""
    for rate, name in {
        "voxels_per_s": "efficiency",
        "later_voxels_per_s": "later_efficiency",
    }.items():
        if rate in row and rate in fewest and row["gpus"] > fewest["gpus"]:
            row[name] = row[rate] / fewest[rate] * fewest["gpus"] / row["gpus"]
    return row
