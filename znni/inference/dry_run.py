"""Dry run: predict what a run would do, and what would stop it, without touching its output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from znni.core.errors import ZnniError
from znni.core.text import counted, duration
from znni.core.volume import Begun
from znni.engine.tiles import Remaining
from znni.inference.model_choice import by_the_faster
from znni.inference.request import RunOptions, request
from znni.inference.resuming import identified, plan_of_rest
from znni.network.network import Network
from znni.network.weights import Weights, weights_for
from znni.plans.plan import Plan
from znni.volumes.locate import begun_output


@dataclass(frozen=True)
class DryRun:
    """Prediction for a run.

    Attributes:
        plan: the plan that the run would follow.
        voxels: number of voxels in the whole output.
        finished: number of voxels that an earlier run has finished.
        seconds: predicted time for the unfinished voxels.
        obstacles: errors that would stop the run before it begins.
    """

    plan: Plan
    voxels: int
    finished: int
    seconds: float
    obstacles: tuple[ZnniError, ...]

    @property
    def lines(self) -> list[str]:
        """Lines to print beside the plan."""
        share = 100 * self.finished / self.voxels
        goes_on = (
            f"finished      {counted(self.finished, 'voxel')} ({share:.0f}%) by an earlier run, "
            f"which this one continues: the rest takes {duration(self.seconds)}, as predicted"
        )
        refused = [f"refused now   {obstacle}" for obstacle in self.obstacles]
        return [goes_on] * bool(self.finished) + refused


def rehearse(
    source: str,
    network: Network,
    out: str,
    *,
    weights: Weights | str | Path | None = None,
    random_seed: int | None = None,
    plan: Plan | None = None,
    **options: Unpack[RunOptions],
) -> DryRun:
    """Predict what ``znni.infer`` would do with the same arguments.

    Raises:
        InvalidInput: input, mask, plan or options cannot be used.
        DoesNotFit: no plan stays within the memory allowed.
    """
    asked = by_the_faster(request(source, network, **options), plan)
    obstacles, begun = [], Begun()
    try:
        wanted = identified(asked, weights_for(asked.network, weights, random_seed))
    except ZnniError as error:
        obstacles.append(error)
        wanted = replace(asked.wanted, resume=False)  # an output cannot be matched to this run
    try:
        begun = begun_output(out, source, wanted, asked.mask_source)
    except ZnniError as error:
        obstacles.append(error)
    found, _ = plan_of_rest(begun, plan, asked)
    left = Remaining(asked.job, begun.history)
    seconds = found.time.total(sum(1 for _ in left.tiles(found.patch)))
    total = asked.job.output.volume
    return DryRun(found, total, total - left.voxels, seconds, tuple(obstacles))
