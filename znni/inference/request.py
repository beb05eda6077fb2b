"""Request for a run: what its caller asks for, and the same opened and checked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import DTypeLike

from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput, option
from znni.core.logged import warn_once
from znni.core.option_types import DEFAULT_COMPRESSION, Compression, OutputType
from znni.core.plan_options import Choices
from znni.core.run_options import InputOptions, Options, RegionOptions, RunKeywords
from znni.core.shapes import FLOAT_BYTES, Box
from znni.core.volume import NewOutput, Volume
from znni.core.voxel_size import voxel_size as parsed_voxel_size
from znni.engine.checks import check_features
from znni.engine.labels import Labels, labels_for
from znni.engine.mask import check_mask
from znni.engine.scaling import scaled_on_gpu
from znni.engine.tiles import Job, for_job, make_job
from znni.inference.spacing import check_spacing
from znni.inference.value_range import warn_of_range
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Weights, weights_for
from znni.plans.plan import Plan
from znni.plans.plan_file import load_plan
from znni.plans.stored_values import Stored
from znni.volumes.array import ArrayVolume
from znni.volumes.chosen_volume import map_number
from znni.volumes.locate import open_volume, packing_at
from znni.volumes.same_place import lie_apart


@dataclass(frozen=True)
class Request:
    """A run as its caller asks for it. It holds names and values, and nothing that is open.

    One process may compute it, or one for each part, or the workers of a cluster.

    Attributes:
        source: file, URL or array of the volume.
        network: a network, or its file.
        out: name of the output, or an array. For many volumes, their folder.
        weights: parameters or their file; None: the file that the network names.
        random_seed: seed of random parameters; None: there is none.
        plan: the plan to follow; None: the fastest.
        command: the command line, which is noted in the output; empty if there was none.
        part: the part of the output to compute, as ``I/N``; None: all of it.
        afresh: what starts a stopped run afresh, for a message.
    """

    source: str | Path | ArrayLike
    network: Network | str | Path
    out: str | Path | Any
    options: Options = Options()
    weights: Weights | str | Path | None = None
    random_seed: int | None = None
    plan: Plan | None = None
    command: str = ""
    part: str | None = None
    afresh: str = f"{option('resume', False)} starts afresh"

    @property
    def loaded(self) -> Network:
        """The network, read from its file if need be."""
        network = self.network
        return network if isinstance(network, Network) else load_network(network)


class RunArguments(RunKeywords, total=False):
    """The keyword arguments of each function that runs a network over volumes.

    They are the options, and the attributes of a request that have the same names.
    """

    weights: Weights | str | Path | None
    random_seed: int | None
    plan: Plan | str | Path | None
    command: str


def request_for(
    source: str | Path | ArrayLike,
    network: Network | str | Path,
    out: str | Path | Any,
    part: str | None = None,
    **keywords: Unpack[RunArguments],
) -> Request:
    """Return the request that arguments make, as ``znni.infer`` takes them.

    Raises:
        InvalidInput: an option has no such value, or the plan cannot be read.
    """
    plan = keywords.pop("plan", None)
    return Request(
        source,
        network,
        out,
        Options.from_keywords(keywords),
        keywords.get("weights"),
        keywords.get("random_seed"),
        plan if plan is None or isinstance(plan, Plan) else load_plan(plan),
        keywords.get("command", ""),
        part,
    )


@dataclass(frozen=True)
class Requirements:
    """Requirements that a plan must meet.

    Attributes:
        network: the network to compute.
        job: the output that is wanted.
        choices: limits and choices for the plan.
        stored: how input and output values are stored.
        followed: whether another run begins before this one has ended.
    """

    network: Network
    job: Job
    choices: Choices
    stored: Stored
    followed: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class OpenRequest(Requirements):
    """A request with everything that it reads, opened and checked before an output exists.

    Attributes:
        request: the request. A map that it names has its number here.
        volume: the input.
        mask: mask over the input; None if there is none.
        wanted: the output to make, without the marks of its inputs (``NewOutput.identity``).
        labels: how values become labels; None: they are stored as they are.
    """

    request: Request
    volume: Volume
    mask: Volume | None
    wanted: NewOutput
    labels: Labels | None

    @property
    def region(self) -> RegionOptions:
        """The options for the voxels that get output."""
        return self.request.options.region


def parameters_of(asked: OpenRequest) -> Weights:
    """Return the weights of a run, from what its caller gives.

    Raises:
        InvalidInput: they cannot be read, or do not suit the network.
    """
    return weights_for(asked.network, asked.request.weights, asked.request.random_seed)


def open_input(read: InputOptions, source: str | Path | ArrayLike) -> ArrayVolume:
    """Open the part of a file that is read, and warn if the place of its voxels is partly assumed.

    Raises:
        InvalidInput: there is no such volume.
    """
    options = dict(vars(read))
    del options["any_spacing"]  # it concerns the network
    volume = open_volume(source, **options)
    if volume.assumed:
        warn_once(f"{volume.name}: {volume.assumed}")
    return volume


def numbered(read: InputOptions, source: str | Path | ArrayLike) -> InputOptions:
    """Return options with the number of a map in place of the map's name.

    Raises:
        InvalidInput: there is no such volume, or no map has this name.
    """
    if not isinstance(read.channel, str):
        return read
    volume = open_volume(source, read.dataset, time=0 if read.time == "all" else read.time)
    return replace(read, channel=map_number(volume, read.channel))


def marks_of(read: InputOptions) -> dict[str, str]:
    """Return the entries for what is read in a ledger. The dataset needs none: values tell it."""
    marks = {
        "the channel": read.channel,
        "the point in time": read.time,
        "the inversion": read.invert or None,
        "the voxel size": read.voxel_size and parsed_voxel_size(read.voxel_size),
    }
    return {name: str(value) for name, value in marks.items() if value is not None}


def open_request(request: Request) -> OpenRequest:
    """Open everything that a run reads, and check that its options go together.

    Nothing is made at its output, whose name tells how values are compressed.

    Raises:
        InvalidInput: input, mask or options cannot be used.
    """
    network, options, source = request.loaded, request.options, request.source
    read, region = numbered(options.read, source), options.region
    border, pad, dtype = region.border, region.pad, options.values.dtype
    volume = open_input(read, source)
    check_features(volume, network)
    check_spacing(network, volume, read)
    if network.window and border == "valid" and pad == "reflect":
        raise InvalidInput(
            f"{option('pad', pad)}: windows see zeros beyond the edges; give "
            f"{option('border', 'same')} to mirror the volume there, or leave out pad"
        )
    job = make_job(network, volume.size, border, pad, region.roi)
    warn_of_range(volume, network, Box(job.center, job.center + job.output))
    mask = _open_mask(options, volume)
    labels = labels_for(network, options.values.labels, options.values.threshold)
    if labels and dtype != "float32":
        raise InvalidInput(
            f"labels are stored as {labels.dtype}; leave out {option('dtype', dtype)}"
        )
    wanted = NewOutput(
        labels.features(network.out_features) if labels else network.out_features,
        job.output,
        labels.dtype if labels else dtype,
        volume.grid.starting_at(job.center),
        labels=labels is not None,
        **vars(options.existing),
        **vars(options.storage),
    )
    packing, in_zarr = packing_at(request.out, wanted), _in_zarr(request.out)
    stored = replace(
        stored_as(network, labels, dtype, volume.dtype),
        compression=_compression_in(request.out, wanted.compression),
        input_chunks=volume.chunks,
        chunk_files=not wanted.sharded and in_zarr,
        input_chunk_bytes=volume.chunk_bytes,
        loads_zarr=in_zarr or bool(volume.chunks and volume.chunks.form == "zarr"),
        packing=packing,
        coarser=in_zarr and packing is None and bool(wanted.coarsening),
    )
    request = replace(request, network=network, options=replace(options, read=read))
    formed = for_job(network, job)
    return OpenRequest(formed, job, options.limits, stored, request, volume, mask, wanted, labels)


def _open_mask(options: Options, volume: ArrayVolume) -> ArrayVolume | None:
    """Open the mask of a run, and check that it lies over its volume; return None without one."""
    if options.region.mask is None:
        return None
    mask = open_volume(options.region.mask)
    check_mask(mask, volume)
    if options.read.voxel_size is None and lie_apart(mask.grid, volume.grid):
        raise InvalidInput(
            f"the mask lies elsewhere than the volume: {_place(mask)}, and the volume has "
            f"{_place(volume)}; give a mask over the volume's own voxels, or take the wrong "
            f"place out of its file"
        )
    return mask


def _place(volume: ArrayVolume) -> str:
    """Return where a volume's voxels lie, in words."""
    if volume.grid.affine is None:
        return str(volume.grid)
    return f"the affine {[float(f'{number:.6g}') for number in volume.grid.affine.rows]}"


def stored_as(
    network: Network, labels: Labels | None, dtype: OutputType, dtype_in: np.dtype[Any]
) -> Stored:
    """Return how the values at both ends of a run are stored.

    Args:
        network: gives the maps of the output.
        labels: how values become labels; None: they are stored as they are.
        dtype: the type of values.
        dtype_in: the type of the stored input values.
    """
    stored = Stored(dtype, dtype_in.itemsize, scaled_on_gpu(network, dtype_in))
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
        stored_type = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # NumPy reads some texts as code
        stored_type = None
    if stored_type is None or stored_type.kind not in "biuf":
        raise InvalidInput(
            f"input_dtype={dtype!r} is not a type of real numbers; give a NumPy type, such as "
            f"'uint8'"
        )
    return stored_type


def _compression_in(out: object, wanted: Compression | None) -> Compression:
    """Return how the blocks of an output are compressed.

    Args:
        out: the output's name, or an array.
        wanted: how the chunks of a Zarr should be compressed; None: as its format does.
    """
    if not _in_zarr(out):
        return "none"
    is_zarr = str(out).rstrip("/").endswith(".zarr")
    return (wanted if is_zarr else None) or DEFAULT_COMPRESSION


def _in_zarr(out: object) -> bool:
    """Return whether the blocks of an output go to a Zarr, maybe to wait there for the end.

    Args:
        out: the output's name, or an array.
    """
    name = str(out).rstrip("/") if isinstance(out, str | Path) else ""
    return bool(name) and not name.endswith((".h5", ".hdf5"))
