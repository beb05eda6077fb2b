"""Outputs in parts: which blocks a part has, and completing the output when all are computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from znni.core.errors import InvalidInput, RunFailed, option
from znni.core.option_types import ACCURACIES, Recheck, check_names
from znni.core.processors import DeviceKind, has_own_memory
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.text import counted, duration, in_units
from znni.engine.tile_grid import TileGrid
from znni.inference.request import OpenRequest
from znni.plans.plan import Plan
from znni.volumes.locate import writer_at
from znni.volumes.writer import Share

# What the parts measured that is not added up: of the largest, and of the longest part.
LARGEST = ("peak_memory_bytes", "gpu_peak_memory_bytes")
OF_LONGEST = ("bottleneck",)


@dataclass(frozen=True)
class Finished:
    """An output that is complete.

    Attributes:
        blocks: number of its blocks.
        checked: number of blocks that were compared with their checksums.
        parts: number of runs that computed it to the end of their part.
        seconds: the time that these runs took together.
        peak_memory: the peak resident bytes of the largest of them.
    """

    blocks: int
    checked: int
    parts: int
    seconds: float
    peak_memory: int

    def __str__(self) -> str:
        """Return this in words."""
        return (
            f"complete: {counted(self.blocks, 'block')} by {counted(self.parts, 'part')}, which "
            f"took {duration(self.seconds)} together and {in_units(self.peak_memory)} at most; "
            f"{self.checked:,} of the blocks compared with their checksums"
        )


def finish(out: str | Path, *, recheck: Recheck = "sample") -> Finished:
    """Complete an output whose parts ``znni.infer`` has computed.

    Blocks that several runs wrote are read again and compared with their checksums.

    Args:
        out: the output, as it was given to ``znni.infer``.
        recheck: which of the other blocks are read again: ``none``, ``sample`` (100 of them at
            random), or ``all``.

    Raises:
        InvalidInput: no part of such an output was computed, or it is complete already.
        RunFailed: blocks are missing or damaged; run their parts again.
    """
    check_names(recheck=recheck)
    found = writer_at(out).gather(recheck, _summed)
    summed = _summed("", found.runs)
    return Finished(
        found.blocks,
        found.checked,
        len(found.runs),
        summed.get("seconds", 0.0),
        summed.get("peak_memory_bytes", 0),
    )


def share_of(asked: OpenRequest, plan_of_all: Callable[[], Plan]) -> Share | None:
    """Return the function that gives the boxes of a run's part for a patch; None for all.

    Args:
        asked: the run's output, and its part.
        plan_of_all: returns the plan that all parts follow, as soon as there is a patch.

    Raises:
        InvalidInput: there is no such part, or the run cannot be done in parts.
    """
    job, part = asked.job, asked.request.part
    if part is None:
        return None
    index, parts = _numbers(part)
    check_sharing(asked)

    def share(patch: Vec3) -> list[Box]:
        grid = TileGrid(job, patch, plan_of_all().network.swept_along)
        return grid.share(index, parts)

    return share


def why_no_blocks(asked: OpenRequest, plan: Plan) -> str:
    """Return why a part has no blocks under the plan of all parts; empty if it has some."""
    share, part = share_of(asked, lambda: plan), asked.request.part
    if share is None or part is None or share(plan.patch):
        return ""
    _, parts = _numbers(part)
    return (
        f"this part has no blocks, because the output has {counted(plan.patches, 'block')} and is "
        f"shared out to {counted(parts, 'part')}; the other parts compute it"
    )


def check_sharing(asked: OpenRequest) -> None:
    """Refuse a run whose output cannot be written by several processes.

    Raises:
        InvalidInput: it would delete what others have computed, or blocks would share files.
    """
    job = asked.job
    if asked.wanted.overwrite or not asked.wanted.resume:
        choice = option("overwrite", True) if asked.wanted.overwrite else option("resume", False)
        raise InvalidInput(
            f"{choice} would delete what other parts have computed; leave it out, and delete the "
            f"output yourself to start afresh"
        )
    if job.first % job.alignment != ZERO:
        start = job.center - job.first % job.alignment
        raise InvalidInput(
            f"roi begins at voxel {tuple(job.center)}, and blocks of the output at multiples of "
            f"{job.alignment}; to compute it in parts, let roi begin at {tuple(start)}"
        )


def memory_ran_out(failed: Plan, short: DeviceKind) -> RunFailed:
    """Return the error of a part whose plan takes more memory than there is."""
    limit = option("gpu_memory" if has_own_memory(short) else "ram", "SIZE")
    return RunFailed(
        f"memory ran out under the plan that all parts follow, of "
        f"{in_units(failed.memory_on(short).total)}; end other programs and run this part again, "
        f"or delete the output and begin it with a smaller {limit}"
    )


def _numbers(part: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", part)
    if not found:
        raise InvalidInput(f"part is {part!r}; give I/N, as 0/8 for the first of eight")
    index, parts = map(int, found.groups())
    if index >= parts:
        raise InvalidInput(
            f"part is {part!r}, and parts are counted from 0: the last of {parts} is "
            f"{max(parts, 1) - 1}/{max(parts, 1)}"
        )
    return index, parts


def _summed(plan: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attributes of a whole run, given its plan and what its parts measured."""
    summed: dict[str, Any] = {"plan": plan} if plan else {}
    if not runs:
        return summed
    longest = max(runs, key=lambda run: run["seconds"])
    for name, value in longest.items():
        values = [run[name] for run in runs if name in run]
        if name == "accuracy":
            summed[name] = max(values, key=list(ACCURACIES).index)
        elif name in OF_LONGEST:
            summed[name] = value
        else:
            summed[name] = max(values) if name in LARGEST else sum(values)
    return summed
