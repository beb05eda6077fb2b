"""Dry run: predict what a run would do, and what would stop it, without touching its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from znni.core.argument_types import checks_types
from znni.core.array_like import ArrayLike
from znni.core.errors import ZnniError
from znni.core.plan_options import check_keywords
from znni.core.shapes import Box
from znni.core.text import counted
from znni.core.volume import ResumeState, Volume
from znni.engine.mask import outside_mask
from znni.engine.tiles import Job, Remaining
from znni.inference.agreed_plan import Find, plan_of_rest
from znni.inference.model_choice import open_faster
from znni.inference.plan_choice import given_or_found
from znni.inference.planning import as_here
from znni.inference.request import Request, RunArguments, parameters_of, request_for
from znni.inference.resuming import identified
from znni.network.network import Network
from znni.plans.plan import Plan
from znni.volumes.locate import writer_at

MOST_LOOKED_AT = 256  # blocks whose mask is read, because a mask may be as large as the volume


class Prediction(NamedTuple):
    """The time and the memory of a run, if it is one of many.

    Attributes:
        seconds: the time of the run alone.
        memory: the most bytes of the host that it takes.
        computing: the plans that it follows, each with the number of its blocks.
        beside: the seconds that are not those of these plans.
        finished: the share that an earlier run has finished.
    """

    seconds: float
    memory: int
    computing: tuple[tuple[Plan, int], ...]
    beside: float = 0.0
    finished: float = 0.0


@dataclass(frozen=True)
class DryRun:
    """Prediction for a run.

    Attributes:
        plan: the plan that the run would follow.
        voxels: number of voxels in the whole output.
        finished: number of voxels that an earlier run has finished.
        blocks: number of unfinished blocks that the mask wants.
        outside: share of the unfinished blocks that lie outside of the mask; None without one.
        obstacles: errors that would stop the run before it begins.
    """

    plan: Plan
    voxels: int
    finished: int
    blocks: int
    obstacles: tuple[ZnniError, ...]
    outside: float | None = None

    @property
    def seconds(self) -> float:
        """Predicted time for these blocks."""
        return self.plan.time.total(self.blocks)

    @property
    def memory(self) -> int:
        """The most bytes of the host that the run takes."""
        return self.plan.memory.total

    @property
    def prediction(self) -> Prediction:
        """The time and the memory of the run, if it is one of many."""
        share, computing = self.finished / self.voxels, ((self.plan, self.blocks),)
        return Prediction(self.seconds, self.memory, computing, finished=share)

    @property
    def lines(self) -> list[str]:
        """Lines to print beside the plan."""
        share, time = 100 * self.finished / self.voxels, self.plan.time_in_words(self.seconds)
        goes_on = (
            f"finished      {counted(self.finished, 'voxel')} ({share:.0f}%) by an earlier run, "
            f"which this one continues: the rest takes {time}, as predicted"
        )
        masked = f"masked        it reaches into every block ({self.blocks:,}), and skips none"
        if self.outside:
            masked = (
                f"masked        {self.outside:.0%} of the blocks lie outside of the mask: with the "
                f"others, it takes {time}, as predicted"
            )
        refused = [f"refused now   {obstacle}" for obstacle in self.obstacles]
        notes = [goes_on] * bool(self.finished) + [masked] * (self.outside is not None)
        return notes + refused


@checks_types
def dry_run(
    source: str | Path | ArrayLike,
    network: Network | str | Path,
    out: str | Path | Any,
    **options: Unpack[RunArguments],
) -> DryRun:
    """Predict what ``znni.infer`` would do with these arguments, without touching the output.

    The prediction has the plan, the blocks that an earlier run has finished, and the errors that
    would stop the run.

    Args:
        source: as for ``znni.infer``.
        network: as for ``znni.infer``.
        out: as for ``znni.infer``.
        options: as for ``znni.infer``.

    Raises:
        InvalidInput: input, mask, plan or options cannot be used.
        DoesNotFit: no plan stays within the memory allowed.
    """
    check_keywords(dry_run, RunArguments, options)
    return rehearse(request_for(source, network, out, **options))


def rehearse(request: Request, find: Find = given_or_found) -> DryRun:
    """Predict what a run would do.

    Args:
        request: the run.
        find: checks the given plan, or finds one.

    Raises:
        InvalidInput: input, mask, plan or options cannot be used.
        DoesNotFit: no plan stays within the memory allowed.
    """
    asked = open_faster(request)
    obstacles, resume_state = [], ResumeState()
    try:
        wanted = identified(asked, parameters_of(asked))
    except ZnniError as error:
        obstacles.append(error)
        wanted = replace(asked.wanted, resume=False)  # an output cannot be matched to this run
    try:
        resume_state = writer_at(request.out, request.source, asked.region.mask).resume_state(
            wanted
        )
    except ZnniError as error:
        obstacles.append(error)
    plan, _ = plan_of_rest(resume_state, request.plan, asked, find)
    axis = plan.network.swept_along
    left = Remaining(asked.job, resume_state.history, swept=axis)
    blocks = [tile.written for tile in left.tiles(plan.patch, swept=axis)]
    outside = None
    try:
        outside = _share_outside(asked.mask, asked.job, blocks) if asked.mask else None
    except ZnniError as error:
        obstacles.append(error)
    wanted_blocks = ceil((1 - (outside or 0.0)) * len(blocks))
    total = asked.job.output.volume
    rest = total - left.voxels, wanted_blocks, tuple(obstacles), outside
    return DryRun(as_here(plan), total, *rest)


def _share_outside(mask: Volume, job: Job, blocks: Sequence[Box]) -> float:
    """Return the share of blocks outside of a mask: of all blocks, or of a sample of many."""
    some = blocks[:: ceil(len(blocks) / MOST_LOOKED_AT)] if blocks else []
    return sum(outside_mask(mask, job, box) for box in some) / max(1, len(some))
