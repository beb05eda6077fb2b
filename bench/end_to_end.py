"""Whole runs of ``znni infer`` over large volumes: how busy what computes was, and what it gave.

A run is a process of its own, as a user starts it. When its blocks are written is read off the
ledger of its output while it grows, and what its stages worked off the attributes of the output.
What is told of the time after the first blocks is of the patches that came after them: with each
worker's first patch done, nothing is loaded or compiled any more, and all stages are at work.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np

from bench.record import Row
from znni.core.options import DeviceChoice
from znni.core.shapes import Vec3
from znni.plans.job_seconds import StageSeconds, in_words
from znni.plans.plan import Plan
from znni.volumes.ledger import parse
from znni.volumes.ledger_file import ledger_name
from znni.volumes.partial_file import partial_name

ZNNI = (sys.executable, "-c", "from znni.cli import main; main()")
CHUNK = 64
LOOK_SECONDS = 0.005  # from one look at the ledger to the next


@dataclass(frozen=True)
class Runs:
    """What is run.

    Attributes:
        nets: files of networks, whose weights are random.
        size: extents of the volume for one GPU.
        gpus: how many compute; repeated for each.
        scaled: whether a volume for several GPUs is as many times as long in z.
        device: where layers run.
        plans: a folder of plans, ``NETWORK-GPUS.json``; without, each run searches.
        options: further ones of ``znni infer``.
    """

    nets: Sequence[Path]
    size: Vec3
    gpus: Sequence[int]
    scaled: bool
    device: DeviceChoice
    plans: Path | None
    options: Sequence[str]


def time_runs(
    runs: Runs, folder: Path, seconds: float, progress: Callable[[str], None]
) -> Iterator[list[Row]]:
    """A row for each run, as soon as it is over.

    Args:
        runs: which.
        folder: where volumes and outputs are made, for as long as they are needed.
        seconds: that all may take; what is not done by then is ended, or not begun.
        progress: told what is done next.
    """
    until = time.perf_counter() + seconds
    alone: dict[str, Row] = {}
    with TemporaryDirectory(dir=folder, prefix="bench-end-to-end-") as name:
        place, made = Path(name), Vec3(0, 0, 0)
        for gpus in runs.gpus:
            size = runs.size._replace(z=runs.size.z * (gpus if runs.scaled else 1))
            if size != made:
                progress(f"making a volume of {size}")
                write_noise(place / "volume.h5", size)
                made = size
            for net in runs.nets:
                row: Row = {"network": net.stem, "volume": str(size), "gpus": gpus}
                left = until - time.perf_counter()
                progress(f"{net.stem}, {gpus} GPUs; {left:.0f} s left")
                command = _command(runs, net, gpus, place)
                row |= time_run(command, place / "out.h5", left)
                yield [with_efficiency(row, alone.setdefault(net.stem, row))]


def write_noise(path: Path, size: Vec3) -> None:
    """Make a volume of uint8 noise in an HDF5 file, in chunks as they lie, not compressed.

    Blocks of it differ, though they are made of one, which is faster than drawing all.
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


def time_run(command: Sequence[str], out: Path, limit: float) -> Row:
    """A run, whose output is deleted; where it did not end well the row says how.

    Args:
        command: which writes to ``out``.
        out: an HDF5 file to be.
        limit: seconds after which it is ended.
    """
    if limit <= 0:
        return {"skipped": "no time was left"}
    ledger, written = ledger_name(partial_name(out)), list[float]()
    begun = time.perf_counter()
    with subprocess.Popen(command) as run:
        while run.poll() is None:
            now = time.perf_counter() - begun
            written += [now] * (_blocks_in(ledger) - len(written))
            if now > limit:
                run.kill()
            time.sleep(LOOK_SECONDS)
        wall = time.perf_counter() - begun
    try:
        if run.returncode:
            ended = f"was ended after {limit:.0f} s" if wall > limit else "failed"
            return {"skipped": f"the run {ended}", "seconds": wall}
        with h5py.File(out) as file:
            return row_of_run(file["main"].attrs, wall, written)
    finally:
        for path in (out, partial_name(out), ledger):
            path.unlink(missing_ok=True)


def _blocks_in(ledger: Path) -> int:
    try:
        found, _ = parse(ledger.read_bytes())
    except FileNotFoundError:  # not yet, or no more
        return 0
    return len(found.checksums) if found else 0


def row_of_run(told: Mapping[str, Any], wall: float, written: Sequence[float]) -> Row:
    """What a run came to; of the time after the first blocks, if it was seen how long that was.

    Args:
        told: the attributes of its output.
        wall: seconds of its process.
        written: when each block was, in seconds from its start.
    """
    plan = Plan.from_json(told["plan"])
    busy = StageSeconds(**{stage: told[f"{stage}_seconds"] for stage in StageSeconds().by_stage()})
    row: Row = {
        "patch": str(plan.patch),
        "patches": plan.patches,
        "seconds": wall,
        "building_seconds": told["building_seconds"],
        "running_seconds": told["running_seconds"],
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
    """A row with what each GPU gives, relative to a run with the fewest of them."""
    for rate, name in {
        "voxels_per_s": "efficiency",
        "later_voxels_per_s": "later_efficiency",
    }.items():
        if rate in row and rate in fewest and row["gpus"] > fewest["gpus"]:
            row[name] = row[rate] / fewest[rate] * fewest["gpus"] / row["gpus"]
    return row
