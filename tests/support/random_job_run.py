"""Run one random job of ``random_jobs.py`` in a process of its own, which has no other library.

    python random_job_run.py FOLDER

The folder holds the job and its volume. The output is put beside them, and a line of JSON printed.
The process's memory is that of the run: neither PyTorch nor hypothesis is loaded.
"""

from __future__ import annotations

import json
import pickle
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.same_output import difference
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Border, Pad
from znni.core.shapes import Box, Vec3
from znni.engine.report import Report
from znni.engine.tiles import Job, make_job
from znni.inference.api import infer
from znni.inference.planning import search
from znni.network.network import Network
from znni.network.weights import Float32, random_weights
from znni.plans.plan import Plan

Kind: TypeAlias = Literal["plain", "interrupted", "masked"]

JOB, VOLUME, OUTPUT = "job.pickle", "volume.npy", "output.npy"

WEIGHTS_SEED = 7
MOST_PATCHES = 2000


@dataclass(frozen=True)
class RandomJob:
    """A run to be made.

    Attributes:
        network: a tiled network.
        size: extents of the volume.
        border: as for ``infer``.
        pad: as for ``infer``.
        roi: the voxels wanted; None for all.
        patch: the patch; None for the planner's own choice.
        ram: the memory allowed, as a multiple of what the smallest plan takes.
        threads: number of worker threads.
        kind: whether the run is made once more, interrupted and resumed, or with a mask.
        part: the share of the patches before the interruption.
        mask: the voxels of the mask, if there is one.
    """

    network: Network
    size: Vec3
    border: Border
    pad: Pad
    roi: Box | None
    patch: Vec3 | None
    ram: float
    threads: int
    kind: Kind
    part: float
    mask: Box

    @property
    def options(self) -> dict[str, Any]:
        return {"border": self.border, "pad": self.pad, "roi": self.roi}

    @property
    def job(self) -> Job:
        return make_job(self.network, self.size, self.border, self.pad, self.roi)


@dataclass(frozen=True)
class Ran:
    """Result of a run.

    Attributes:
        patch: the patch of its plan.
        patches: number of patches.
        planned_by: ``planner``, or ``patch`` if the job's own patch fitted.
        ram: bytes that the plan was allowed.
        promised: bytes that the plan promised.
        peak: bytes that the process took at its peak, beside the arrays given to it.
        again: what came of the second run: ``same``, or how its output differed; empty without one.
        skipped: blocks that the mask saved.
    """

    patch: Vec3
    patches: int
    planned_by: str
    ram: int
    promised: int
    peak: int
    again: str = ""
    skipped: int = 0


class Interrupted(Exception):
    """Signal that ends a run."""


def plan_for(drawn: RandomJob) -> tuple[Plan, str, int]:
    """Return a plan with few enough patches, who chose its patch, and its memory.

    A plan of the least memory may have millions of patches. More memory is allowed until there are
    few enough.
    """
    asked: dict[str, Any] = {"border": drawn.border, "roi": drawn.roi, "device": "cpu"}
    asked |= {"costs": "built-in", "threads": drawn.threads}
    least = search(drawn.network, drawn.size, **asked).smallest().memory.total
    ram = round(least * drawn.ram)
    while True:
        found = search(drawn.network, drawn.size, ram=ram, **asked)
        chosen = drawn.patch and found.fastest_for(drawn.patch)
        if chosen and chosen.memory.total <= ram:
            return chosen, "patch", ram
        try:
            plan = found.fastest()[0]
        except DoesNotFit:
            plan = None
        if plan and plan.patches <= MOST_PATCHES:
            return plan, "planner", ram
        ram += ram // 5


def run(drawn: RandomJob, folder: Path) -> Ran:
    """Run a job and write its output to the folder."""
    x: Float32 = np.load(folder / VOLUME)
    plan, planned_by, ram = plan_for(drawn)
    out = folder / "whole.h5"
    y = np.empty((drawn.network.out_features, *drawn.job.output), np.float32)
    target = str(out) if drawn.kind == "interrupted" else y
    report = _infer(drawn, x, target, plan)
    given = x.nbytes + (0 if drawn.kind == "interrupted" else y.nbytes)
    again, skipped = "", 0
    if drawn.kind == "interrupted":
        import h5py

        again = _resumed(drawn, x, plan, folder, out)
        with h5py.File(out) as file:
            (dataset,) = (each for each in file.values() if each.shape == y.shape)
            y[...] = dataset[...]
    elif drawn.kind == "masked":
        again, skipped = _masked(drawn, x, plan, y)
    np.save(folder / OUTPUT, y)
    peak = report.peak_memory - given
    return Ran(
        plan.patch, plan.patches, planned_by, ram, plan.memory.total, peak, again, skipped
    )  # fmt: skip


def _infer(drawn: RandomJob, x: Float32, out: Any, plan: Plan, **more: Any) -> Report:
    weights = random_weights(drawn.network, WEIGHTS_SEED)
    return infer(
        x, drawn.network, out, weights=weights, plan=plan, costs="built-in", device="cpu",
        threads=drawn.threads, **drawn.options, **more,
    )  # fmt: skip


def _resumed(drawn: RandomJob, x: Float32, plan: Plan, folder: Path, whole: Path) -> str:
    """Interrupt a run and resume it; return how its output differs from the whole one's."""
    after = max(1, min(plan.patches - 1, round(plan.patches * drawn.part)))
    blocks, out = 0, folder / "resumed.h5"

    def stop(_done: int, _all: int) -> None:
        nonlocal blocks
        blocks += 1
        if blocks == after:
            raise Interrupted

    with suppress(Interrupted):
        _infer(drawn, x, str(out), plan, progress=stop)
    report = _infer(drawn, x, str(out), plan)
    # A small output of one block is on the disk only when it is finished.
    if not report.finished_before and plan.patches > 1:
        return "nothing was resumed"
    return difference(whole, out) or "same"


def _masked(drawn: RandomJob, x: Float32, plan: Plan, whole: Float32) -> tuple[str, int]:
    """Run with a mask; return how the output differs from what it must be, and blocks skipped."""
    mask: NDArray[np.uint8] = np.zeros(drawn.size, np.uint8)
    mask[drawn.mask.slices] = 1
    y = np.empty_like(whole)
    report = _infer(drawn, x, y, plan, mask=mask)
    expected, outside = np.zeros_like(whole), 0
    for tile in drawn.job.tiles(plan.patch):
        box = tile.written
        if mask[box.shifted(drawn.job.center).slices].any():
            expected[:, *box.slices] = whole[:, *box.slices]
        else:
            outside += 1
    skipped = report.skipped.outside_mask
    if skipped != outside:
        return f"{skipped} blocks were outside the mask, not {outside}", skipped
    return "same" if y.tobytes() == expected.tobytes() else "the masked output", skipped


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(json.dumps(asdict(run(pickle.loads((place / JOB).read_bytes()), place))))
