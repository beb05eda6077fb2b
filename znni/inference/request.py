"""A request: what a run must do, opened and checked before there is an output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from znni.core.options import Border, Choices, Compression, OutputType, Pad, PlanOptions, Stored
from znni.core.volume import NewOutput, Volume
from znni.engine.checks import check_features
from znni.engine.skipping import check_mask
from znni.engine.tiles import Job, Region, make_job
from znni.network.network import Network
from znni.volumes.array import ArrayLike
from znni.volumes.locate import open_volume


@dataclass(frozen=True)
class Requirements:
    """What a plan is to meet.

    Attributes:
        network: what is computed.
        job: which output is wanted.
        choices: what the plan may use.
        stored: how the values at both ends are stored.
    """

    network: Network
    job: Job
    choices: Choices
    stored: Stored


@dataclass(frozen=True)
class Request(Requirements):
    """What a run is asked for, its plan's requirements among it.

    Attributes:
        source: what the volume was opened from.
        dataset: which of its datasets that is, if one was named.
        volume: the input.
        border: ``valid`` or ``same``.
        mask_source: what the mask was opened from.
        mask: over the input; None where there is none.
        wanted: the output, but for what its values depend on (``NewOutput.identity``).
    """

    source: str | Path | ArrayLike
    dataset: str | None
    volume: Volume
    border: Border
    mask_source: str | Path | ArrayLike | None
    mask: Volume | None
    wanted: NewOutput


class RunOptions(PlanOptions, total=False):
    """What a run is asked for as keyword arguments, as ``znni.infer`` takes them."""

    dataset: str | None
    border: Border
    pad: Pad
    roi: Region | None
    mask: str | Path | ArrayLike | None
    dtype: OutputType
    overwrite: bool
    resume: bool
    compression: Compression | None
    sharded: bool


def request(
    source: str | Path | ArrayLike,
    network: Network,
    *,
    dataset: str | None = None,
    border: Border = "valid",
    pad: Pad = "reflect",
    roi: Region | None = None,
    mask: str | Path | ArrayLike | None = None,
    dtype: OutputType = "float32",
    overwrite: bool = False,
    resume: bool = True,
    compression: Compression | None = None,
    sharded: bool = False,
    **options: Unpack[PlanOptions],
) -> Request:
    """Open what a run reads, and find which output it is to make, given what ``znni.infer`` is.

    Raises:
        InvalidInput: input, mask or options cannot be used.
    """
    volume = open_volume(source, dataset)
    check_features(volume, network)
    choices, stored = Choices(**options), Stored(dtype, volume.itemsize)
    job = make_job(network, volume.size, border, pad, roi)
    masked = None if mask is None else open_volume(mask)
    if masked:
        check_mask(masked, volume)
    wanted = NewOutput(
        network.out_features,
        job.output,
        dtype,
        volume.grid.starting_at(job.center),
        overwrite=overwrite,
        compression=compression,
        sharded=sharded,
        resume=resume,
    )
    return Request(
        network, job, choices, stored, source, dataset, volume, border, mask, masked, wanted
    )
