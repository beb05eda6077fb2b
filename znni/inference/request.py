"""Request for a run: input, mask and options, opened and checked before an output exists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import DTypeLike

from znni.core.errors import InvalidInput, option
from znni.core.logged import warn_once
from znni.core.options import (
    Border,
    Channel,
    Choices,
    Compression,
    OutputType,
    Pad,
    PlanOptions,
    PointInTime,
    Stored,
)
from znni.core.shapes import FLOAT_BYTES, Box
from znni.core.volume import NewOutput, Volume
from znni.engine.blocks import check_mask
from znni.engine.checks import check_features
from znni.engine.labels import Labels, labels_for
from znni.engine.scaling import scaled_on_gpu
from znni.engine.tiles import Job, Region, for_job, make_job
from znni.inference.value_range import warn_of_range
from znni.network.network import Network
from znni.plans.plan import Plan
from znni.volumes.array import ArrayLike, ArrayVolume
from znni.volumes.locate import open_volume, packing_at
from znni.volumes.same_place import lie_apart
from znni.volumes.selection import map_number
from znni.volumes.voxel_size import voxel_size as parsed_voxel_size


@dataclass(frozen=True)
class Requirements:
    """Requirements that a plan must meet.

    Attributes:
        network: the network to compute.
        job: the output that is wanted.
        choices: limits and choices for the plan.
        stored: how input and output values are stored.
    """

    network: Network
    job: Job
    choices: Choices
    stored: Stored


@dataclass(frozen=True)
class Request(Requirements):
    """Everything that a run is asked for, including the requirements of its plan.

    Attributes:
        source: file, URL or array that the volume was opened from.
        chosen: what of that file is the input, and how it is read.
        volume: the input.
        border: ``valid`` or ``same``.
        mask_source: file, URL or array that the mask was opened from.
        mask: mask over the input; None if there is none.
        wanted: the output to make, without the marks of its inputs (``NewOutput.identity``).
        labels: how values become labels; None: they are stored as they are.
    """

    source: str | Path | ArrayLike
    chosen: ChosenInput
    volume: Volume
    border: Border
    mask_source: str | Path | ArrayLike | None
    mask: Volume | None
    wanted: NewOutput
    labels: Labels | None


@dataclass(frozen=True)
class ChosenInput:
    """The part of a file that is a run's input, and how it is read.

    Attributes:
        dataset: dataset of a file that has several.
        channel: the only map to read, by its number or its name.
        time: number of the point in time; ``all``: the points in time are the maps.
        invert: whether light and dark are exchanged.
        voxel_size: extents of a voxel, instead of what the file says.
    """

    dataset: str | None = None
    channel: Channel | None = None
    time: PointInTime | None = None
    invert: bool = False
    voxel_size: str | None = None

    def of(self, source: str | Path | ArrayLike) -> ArrayVolume:
        """Open this part of a file, and warn if the place of its voxels is partly assumed.

        Raises:
            InvalidInput: there is no such volume.
        """
        volume = open_volume(
            source,
            self.dataset,
            channel=self.channel,
            time=self.time,
            invert=self.invert,
            voxel_size=self.voxel_size,
        )
        if volume.assumed:
            warn_once(f"{volume.name}: {volume.assumed}")
        return volume

    def numbered(self, source: str | Path | ArrayLike) -> ChosenInput:
        """Return this choice with the number of its map in place of the map's name.

        Raises:
            InvalidInput: there is no such volume, or no map has this name.
        """
        if not isinstance(self.channel, str):
            return self
        volume = open_volume(source, self.dataset, time=0 if self.time == "all" else self.time)
        return replace(self, channel=map_number(volume, self.channel))

    @property
    def marks(self) -> dict[str, str]:
        """The entries for this choice in a ledger. The dataset needs none: values tell it."""
        given = {
            "the channel": self.channel,
            "the point in time": self.time,
            "the inversion": self.invert or None,
            "the voxel size": self.voxel_size and parsed_voxel_size(self.voxel_size),
        }
        return {name: str(value) for name, value in given.items() if value is not None}


class RunOptions(PlanOptions, total=False):
    """Keyword arguments of a run, as ``znni.infer`` takes them."""

    dataset: str | None
    channel: Channel | None
    time: PointInTime | None
    invert: bool
    voxel_size: str | None
    border: Border
    pad: Pad | None
    roi: Region | None
    mask: str | Path | ArrayLike | None
    dtype: OutputType
    labels: bool
    threshold: float | None
    overwrite: bool
    resume: bool
    compression: Compression | None
    sharded: bool
    pyramid: bool | None


class WeightedRunOptions(RunOptions, total=False):
    """Options of a run, with the weights to use and the plan to follow."""

    weights: str | Path | None
    random_seed: int | None
    plan: Plan | None


def request(
    source: str | Path | ArrayLike,
    network: Network,
    out: object,
    *,
    dataset: str | None = None,
    channel: Channel | None = None,
    time: PointInTime | None = None,
    invert: bool = False,
    voxel_size: str | None = None,
    border: Border = "valid",
    pad: Pad | None = None,
    roi: Region | None = None,
    mask: str | Path | ArrayLike | None = None,
    dtype: OutputType = "float32",
    labels: bool = False,
    threshold: float | None = None,
    overwrite: bool = False,
    resume: bool = True,
    compression: Compression | None = None,
    sharded: bool = False,
    pyramid: bool | None = None,
    **options: Unpack[PlanOptions],
) -> Request:
    """Open everything that a run reads, and return the request for it.

    The arguments are those of ``znni.infer``. Nothing is made at ``out``: its name tells how values
    are compressed.

    Raises:
        InvalidInput: input, mask or options cannot be used.
    """
    chosen = ChosenInput(dataset, channel, time, invert, voxel_size).numbered(source)
    volume = chosen.of(source)
    check_features(volume, network)
    choices = Choices(**options)
    if network.window and border == "valid" and pad == "reflect":
        raise InvalidInput(
            f"pad is {pad!r}, and windows see zeros beyond the edges; give "
            f"{option('border', 'same')} to mirror the volume there, or leave out pad"
        )
    job = make_job(network, volume.size, border, pad, roi)
    warn_of_range(volume, network, Box(job.center, job.center + job.output))
    masked = None if mask is None else open_volume(mask)
    if masked:
        check_mask(masked, volume)
        if voxel_size is None and lie_apart(masked.grid, volume.grid):
            raise InvalidInput(
                f"the mask lies elsewhere than the volume: {_place(masked)}, and the volume has "
                f"{_place(volume)}; give a mask over the volume's own voxels, or take the wrong "
                f"place out of its file"
            )
    labelled = labels_for(network, labels, threshold)
    if labelled and dtype != "float32":
        raise InvalidInput(
            f"labels are stored as {labelled.dtype}; leave out {option('dtype', dtype)}"
        )
    wanted = NewOutput(
        labelled.features(network.out_features) if labelled else network.out_features,
        job.output,
        labelled.dtype if labelled else dtype,
        volume.grid.starting_at(job.center),
        overwrite=overwrite,
        compression=compression,
        sharded=sharded,
        pyramid=pyramid,
        labels=labelled is not None,
        resume=resume,
    )
    packing, in_zarr = packing_at(out, wanted), _in_zarr(out)
    stored = replace(
        stored_as(network, labelled, dtype, volume.dtype),
        compression=_compression_in(out, compression),
        input_chunks=volume.chunks,
        chunk_files=not sharded and in_zarr,
        input_chunk_bytes=volume.chunk_bytes,
        loads_zarr=in_zarr or bool(volume.chunks and volume.chunks.form == "zarr"),
        packing=packing,
        coarser=in_zarr and packing is None and bool(wanted.coarsening),
    )
    return Request(
        for_job(network, job), job, choices, stored, source, chosen, volume, border,
        mask, masked, wanted, labelled,
    )  # fmt: skip


def _place(volume: ArrayVolume) -> str:
    """Return where a volume's voxels lie, in words."""
    if volume.grid.affine is None:
        return str(volume.grid)
    return f"the affine {[float(f'{number:.6g}') for number in volume.grid.affine.rows]}"


def stored_as(
    network: Network, labels: Labels | None, dtype: OutputType, given: np.dtype[Any]
) -> Stored:
    """Return how the values at both ends of a run are stored.

    Args:
        network: gives the maps of the output.
        labels: how values become labels; None: they are stored as they are.
        dtype: the type of values.
        given: the type of the stored input values.
    """
    stored = Stored(dtype, given.itemsize, scaled_on_gpu(network, given))
    if labels is None:
        return stored
    maps = labels.features(network.out_features)
    return replace(stored, label_maps=maps, label_itemsize=np.dtype(labels.dtype).itemsize)


def input_type(dtype: DTypeLike | None, itemsize: int | None = None) -> np.dtype[Any]:
    """Return the type of stored input values that a caller gives.

    Args:
        dtype: the type; None: the usual one of so many bytes.
        itemsize: the bytes of a value, if no type is given; None: those of float32. One or two are
            those of integers.

    Raises:
        InvalidInput: both are given, the type does not hold real numbers, or a value has no bytes.
    """
    if dtype is None:
        each = FLOAT_BYTES if itemsize is None else itemsize
        if each < 1:
            raise InvalidInput(f"input_itemsize={each}: a value has 1 byte or more")
        return np.dtype({1: np.uint8, 2: np.uint16}.get(each, f"V{each}"))
    if itemsize is not None:
        raise InvalidInput(
            f"input_itemsize={itemsize} and input_dtype={dtype!r} are both given; leave out "
            f"input_itemsize"
        )
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # NumPy reads some texts as code
        found = None
    if found is None or found.kind not in "biuf":
        raise InvalidInput(
            f"input_dtype={dtype!r} is not a type of real numbers; give a NumPy type, such as "
            f"'uint8'"
        )
    return found


def _compression_in(out: object, wanted: Compression | None) -> Compression:
    """Return how the blocks of an output are compressed.

    Args:
        out: the output's name, or an array.
        wanted: how the chunks of a Zarr should be compressed; None: as its format does.
    """
    if not _in_zarr(out):
        return "none"
    return (wanted or "zstd") if str(out).rstrip("/").endswith(".zarr") else "zstd"


def _in_zarr(out: object) -> bool:
    """Return whether the blocks of an output go to a Zarr, maybe to wait there for the end.

    Args:
        out: the output's name, or an array.
    """
    name = str(out).rstrip("/") if isinstance(out, str | Path) else ""
    return bool(name) and not name.endswith((".h5", ".hdf5"))
