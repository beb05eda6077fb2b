"""The order in which patches are tried: by a lower bound on the time of the job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from math import isfinite
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.job_places import box_read
from planner.memory_bounds import Bools, least_bytes_of_arrays, most_for_arrays, slowed_poolings
from planner.overhead import Overhead
from planner.partition import CutPoint, Processor, device_of, sums_at_cuts
from planner.patch_candidate import HOST_PROCESSORS
from planner.space import Space
from planner.sweep_bound import least_bytes_kept, least_runs
from znni.core.processors import GPU, HOST, DeviceKind
from znni.core.shapes import AXES, FLOAT_BYTES, Vec3
from znni.network.geometry import input_box, shapes
from znni.network.network import Network
from znni.plans.stage import Counts
from znni.plans.swept import first_planes
from znni.plans.totals import Numbers, seconds_by_group

Key = TypeVar("Key")

# Sums in another order differ in their last digits. The quick bounds are smaller by this factor.
ROUNDED = 1 - 1e-9


class Waiting(NamedTuple):
    """A patch that waits to be tried, after a lower bound on its job's time.

    Attributes:
        seconds: the lower bound.
        patch: the output voxels of the patch.
        cut_point: the cut point that the bound is for. If it is None, the bound is for all.
    """

    seconds: float
    patch: Vec3
    cut_point: CutPoint | None = None


def waiting_patches(space: Space, patches: Collection[Vec3]) -> list[Waiting]:
    """Return patches with their quick bounds, without those that cannot fit.

    Args:
        space: the space of plans.
        patches: the patches, none of them twice.
    """
    listed = list(patches)
    bounds = quick_bounds(space, listed) if listed else []
    return [
        Waiting(seconds, patch)
        for seconds, patch in zip(bounds, listed, strict=True)
        if isfinite(seconds)
    ]


def quick_bounds(space: Space, patches: list[Vec3]) -> list[float]:
    """Return lower bounds on the seconds of the job in patches of each size.

    They count no memory of the layers. They are infinite for patches that cannot fit.
    """
    network = space.network
    voxels = _voxels(network, patches)
    sizes, zero = np.array(patches), np.zeros(len(patches))
    counts = _counts(network, patches, space.overhead)
    extents = list(sizes.T.astype(float))
    counts = counts._replace(kept=least_bytes_kept(network, voxels, extents))
    runs = least_runs(network, extents, space.output)
    computed = {name: runs[name] * each for name, each in voxels.items()}
    least: dict[Processor, list[Numbers]] = {}

    @cache
    def most_on(device: DeviceKind) -> Numbers:
        """Return the most bytes of the layers' arrays on a device."""
        return most_for_arrays(space.machine, space.overhead, device, network, counts)

    def fits(device: DeviceKind) -> Bools:
        """Return which patches may fit.

        Sliding networks are computed in fragments, a few at a time, so nothing is known of them but
        what a sweep keeps.
        """
        if not network.is_tiled:
            fitting: Bools = counts.kept <= most_on(device)
            return fitting
        value_bytes = space.value_bytes_on(device)
        return least_bytes_of_arrays(network, voxels, value_bytes) <= most_on(device)

    def least_of(processor: Processor) -> list[Numbers]:
        """Return the seconds of the layers before each cut point, or after it on a GPU."""
        if processor not in least:
            device = device_of(processor)
            slowed = slowed_poolings(network, device, voxels, most_on(device))
            each = list(space.bounds_on(processor).of_layers(computed, slowed).values())
            least[processor] = sums_at_cuts(processor, each, zero)
        return least[processor]

    number = np.prod(-(-np.array(space.output) // sizes), axis=1).astype(float)

    def seconds_of(cut_point: CutPoint) -> Numbers:
        layers_on_host, host_uses_gpu = cut_point
        (passed,) = network.alive[layers_on_host]
        layers: dict[DeviceKind, Numbers] = {}
        brought = zero
        if layers_on_host > 0:
            layers[HOST] = least_of(HOST_PROCESSORS[host_uses_gpu])[layers_on_host]
        if layers_on_host < len(network.nodes):
            layers[GPU] = least_of(GPU)[layers_on_host]
            brought = FLOAT_BYTES * network.maps[passed] * voxels[passed] * _taken(network, patches)
        able = np.isfinite(sum(layers.values()))  # or no primitive computes a layer
        layers = {kind: np.where(able, seconds, 0.0) for kind, seconds in layers.items()}
        jobs = _seconds_of_jobs(space, counts, number, layers, brought, in_turn=host_uses_gpu)
        return np.where(able & fits(HOST if layers_on_host else GPU), jobs, np.inf)

    fastest = np.minimum.reduce([seconds_of(cut_point) for cut_point in space.cut_points])
    return [float(seconds) for seconds in ROUNDED * fastest]


def _seconds_of_jobs(
    space: Space,
    counts: Counts[Numbers],
    number: Numbers,
    layers: Mapping[DeviceKind, Numbers],
    brought: Numbers,
    *,
    in_turn: bool,
) -> Numbers:
    """Return the seconds of jobs whose layers take no memory, as ``PlanTime.total`` adds them up.

    Args:
        space: the space of plans.
        counts: the numbers that describe a patch.
        number: the numbers of patches.
        layers: the seconds of the layers on each device that runs some.
        brought: the bytes of a patch that are copied to the GPU.
        in_turn: whether layers on the host compute on the GPU, so that host and GPU take turns.
    """
    overhead = space.overhead
    run = overhead.setting(space.network, layers, host_uses_gpu=in_turn)
    nothing = 0.0 * number
    each = counts._replace(
        brought=brought,
        handed=brought if run.on_host else nothing,
        host_seconds=layers.get(HOST, nothing),
        gpu_seconds=layers.get(GPU, nothing),
    )
    start = overhead.once.around.total + sum(overhead.seconds_once(run, each))
    groups = seconds_by_group(
        overhead.seconds(run, each),
        number,
        max(1, run.workers),
        in_turn=in_turn,
        idle=counts.idle,
        followed=overhead.followed,
    )
    total: Numbers = start + np.maximum.reduce(list(groups.values()))
    return total


def _counts(network: Network, patches: list[Vec3], overhead: Overhead) -> Counts[Numbers]:
    """Return the counts of what is in each patch."""
    boxes = _by_axis(patches, lambda patch: box_read(network, patch)._asdict())
    window = network.window
    read, chunks, files = np.ones((3, len(patches)))
    for axis, sizes in enumerate(np.array(patches).T):
        extents, first, places = np.unique(sizes, return_index=True, return_inverse=True)
        ends = (boxes[end][first, axis].tolist() for end in ("start", "stop"))
        blocks = list(zip(extents.tolist(), *ends, strict=True))
        read *= np.array([overhead.read_along(axis, *each) for each in blocks])[places]
        chunks *= np.array([overhead.chunks_along(axis, *each) for each in blocks])[places]
        files *= np.array([float(overhead.files_along(it)) for it in extents.tolist()])[places]
    sizes_of = _by_axis(
        patches,
        lambda patch: {
            "seen": input_box(network, patch).size,
            "blended": network.blended_extents(patch),
        },
    )
    blended = sizes_of["blended"].astype(float)
    z, y, row = np.array(patches, float).T
    ones, nothing = np.ones(len(patches)), np.zeros(len(patches))
    voxels_in = np.prod(boxes["stop"] - boxes["start"], axis=1, dtype=float)
    return Counts(
        values_in=network.in_features * voxels_in,
        voxels=z * y * row,
        row=row,
        blended=blended.prod(axis=1),
        at_once=network.together * network.in_features * sizes_of["seen"].prod(axis=1, dtype=float),
        tail=(
            np.array([window.tail(patch) for patch in patches]) * blended[:, 0] * blended[:, 1]
            if window
            else nothing
        ),
        runs=np.array([window.a_block(patch) for patch in patches]) if window else ones,
        idle=np.array(
            [float(window.last_without_windows(it)) if window else 0.0 for it in patches]
        ),
        read=network.in_features * read,
        chunks=chunks,
        files=files,
        first_input=nothing,
        handed=nothing,
        brought=nothing,
        host_seconds=nothing,
        gpu_seconds=nothing,
        kept=nothing,
    )


def _voxels(network: Network, patches: list[Vec3]) -> dict[str, Numbers]:
    """Return the voxels of each value's map for each patch, of all its fragments together."""
    items = {name: shape.n for name, shape in shapes(network, patches[0]).items()}
    sizes = _by_axis(
        patches, lambda patch: {name: it.size for name, it in shapes(network, patch).items()}
    )
    return {name: n * np.prod(sizes[name], axis=1, dtype=float) for name, n in items.items()}


def _taken(network: Network, patches: list[Vec3]) -> Numbers:
    """Return the share of a block's input that a pass of a sweep takes; 1 without a sweep."""
    if (axis := network.swept_along) is None:
        return np.ones(len(patches))
    along = AXES.index(axis)
    planes = np.array([float(input_box(network, patch).size[along]) for patch in patches])
    taken = np.array([float(patch[along] + first_planes(network, patch)) for patch in patches])
    share: Numbers = taken / planes
    return share


def _by_axis(
    patches: list[Vec3], sizes: Callable[[Vec3], Mapping[Key, Vec3]]
) -> dict[Key, NDArray[np.int64]]:
    """Return sizes for each patch, as an array of (patch, axis).

    Args:
        patches: the patches.
        sizes: the function that returns the sizes for a patch, by key. Each axis of a size depends
            on the same axis of the patch alone.
    """
    first = patches[0]
    by_key = {key: np.empty((len(patches), 3), np.int64) for key in sizes(first)}
    for axis in range(3):
        extents, places = np.unique([patch[axis] for patch in patches], return_inverse=True)
        along: dict[Key, list[int]] = {key: [] for key in by_key}
        for extent in extents:
            patch = Vec3(*(int(extent) if axis == other else first[other] for other in range(3)))
            for key, size in sizes(patch).items():
                along[key].append(size[axis])
        for key, listed in along.items():
            by_key[key][:, axis] = np.array(listed)[places]
    return by_key
