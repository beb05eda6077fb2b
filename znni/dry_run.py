"""What a run would do and what would keep it from beginning, found without touching its output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from znni.engine.checks import check_features
from znni.engine.remaining import Remaining
from znni.engine.skipping import check_mask
from znni.engine.tiles import Region, make_job
from znni.errors import ZnniError
from znni.network import Network
from znni.options import Border, Choices, Compression, OutputType, Pad, PlanOptions, Stored
from znni.plans import Plan
from znni.resuming import identity, plan_of_rest
from znni.units import counted
from znni.volume import Begun, NewOutput
from znni.volumes.locate import begun_output, open_volume
from znni.volumes.partial_file import check_free
from znni.volumes.stored import is_url
from znni.weights import Weights, weights_for


@dataclass(frozen=True)
class DryRun:
    """What a run would do.

    Attributes:
        plan: that it would go by.
        voxels: of the whole output.
        finished: how many of them an earlier run has finished.
        obstacles: what would keep it from beginning.
    """

    plan: Plan
    voxels: int
    finished: int
    obstacles: tuple[ZnniError, ...]

    @property
    def lines(self) -> list[str]:
        """For people, beside the plan."""
        share = 100 * self.finished / self.voxels
        goes_on = (
            f"finished      {counted(self.finished, 'voxel')} ({share:.0f}%) by an earlier run, "
            f"with which this one goes on"
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
    dataset: str | None = None,
    border: Border = "valid",
    pad: Pad = "reflect",
    roi: Region | None = None,
    mask: str | None = None,
    dtype: OutputType = "float32",
    plan: Plan | None = None,
    overwrite: bool = False,
    resume: bool = True,
    compression: Compression | None = None,
    sharded: bool = False,
    **options: Unpack[PlanOptions],
) -> DryRun:
    """Find what ``znni.infer`` would do, given the same.

    Raises:
        InvalidInput: input, mask, plan or options cannot be used.
        DoesNotFit: no plan stays within the memory allowed.
    """
    volume = open_volume(source, dataset)
    check_features(volume, network)
    choices, stored = Choices(**options), Stored(dtype, volume.itemsize)
    job = make_job(network, volume.size, border, pad, roi)
    masked = None if mask is None else open_volume(mask)
    if masked:
        check_mask(masked, volume)
    grid = volume.grid.starting_at(job.center)
    wanted = NewOutput(
        network.out_features, job.output, dtype, grid, overwrite, compression, sharded
    )
    obstacles, begun = [], Begun()
    try:
        known = weights_for(network, weights, random_seed)
        marks = identity(source, volume, network, known, job, wanted, mask, masked)
        begun = begun_output(out, replace(wanted, identity=marks, resume=resume))
    except ZnniError as error:
        obstacles.append(error)
    try:
        if not is_url(out):
            check_free(Path(out), overwrite=overwrite)
    except ZnniError as error:
        obstacles.append(error)
    found, _ = plan_of_rest(begun, plan, network, job, choices, stored)
    left = Remaining(job.output, begun.history).voxels
    total = job.output.volume
    return DryRun(found, total, total - left, tuple(obstacles))
