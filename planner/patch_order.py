"""The order in which patches are tried: by a lower bound on the time of the job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import isfinite
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.overhead import FLOAT_BYTES, Counts, voxels_decoded
from planner.partition import CutPoint
from planner.patch_candidate import HOST_PROCESSORS, PatchCandidate
from planner.space import Space
from znni.core.options import PackedInput
from znni.core.shapes import Vec3
from znni.machine.machine import DeviceKind
from znni.network.geometry import extents_read, shapes
from znni.network.layers import Conv
from znni.network.network import INPUT, Network
from znni.plans.block_storage import MOST_GROWTH, joined_sizes
from znni.plans.totals import Numbers, seconds_after_first

Bools: TypeAlias = "NDArray[np.bool_]"
Key = TypeVar("Key")

# Sums in another order differ in their last digits. The quick bounds are smaller by this factor.
ROUNDED = 1 - 1e-9


def by_least_time(
    space: Space, patches: Collection[Vec3], bound: Callable[[PatchCandidate], float]
) -> Iterator[tuple[float, PatchCandidate]]:
    """Yield patches, each after the lower bound on its job's time, least first.

    The bounds of thousands of patches would take longer than the search among the best of them. So
    quick bounds of all patches come first, and a patch gets its bound when its turn comes.

    Args:
        space: the space of plans.
        patches: the patches, none of them twice.
        bound: the function that returns the bound of a patch.
    """
    listed = list(patches)
    if not listed:
        return
    quick = quick_bounds(space, listed)
    waiting: list[tuple[float, Vec3, PatchCandidate | None]] = [
        (seconds, patch, None)
        for seconds, patch in zip(quick, listed, strict=True)
        if isfinite(seconds)
    ]
    heapify(waiting)
    while waiting:
        least, patch, found = heappop(waiting)
        if found is None:
            candidate = space.patch_candidate(patch)
            heappush(waiting, (bound(candidate), patch, candidate))
        else:
            yield least, found


def quick_bounds(space: Space, patches: list[Vec3]) -> list[float]:
    """Return lower bounds on the seconds of the job in patches of each size.

    They count no memory of the layers. They are infinite for patches that cannot fit.
    """
    network, processors = space.network, space.bounds
    voxels, copied = _voxels(network, patches), _copied(network, patches)
    least = {processor: it.of_layers(voxels, copied) for processor, it in processors.items()}
    zero = np.zeros(len(patches))
    on_gpu = list(accumulate(reversed(least["gpu"].values()), initial=zero))[::-1]
    on_host = {
        uses_gpu: list(accumulate(least[processor].values(), initial=zero))
        for uses_gpu, processor in HOST_PROCESSORS.items()
        if processor in least
    }
    sizes = np.array(patches)
    counts = _counts(network, patches, space.overhead.input_packed)
    number = np.prod(-(-np.array(space.output) // sizes), axis=1).astype(float)

    def seconds_of(cut_point: CutPoint) -> Numbers:
        layers_on_host, host_uses_gpu = cut_point
        (passed,) = network.alive[layers_on_host]
        layers: dict[DeviceKind, Numbers] = {}
        brought = zero
        if layers_on_host > 0:
            layers["cpu"] = on_host[host_uses_gpu][layers_on_host]
        if layers_on_host < len(network.nodes):
            layers["gpu"] = on_gpu[layers_on_host]
            brought = FLOAT_BYTES * network.maps[passed] * voxels[passed]
        able = np.isfinite(sum(layers.values()))  # or no primitive computes a layer
        layers = {kind: np.where(able, seconds, 0.0) for kind, seconds in layers.items()}
        jobs = _seconds_of_jobs(space, counts, number, layers, brought, in_turn=host_uses_gpu)
        return np.where(able, jobs, np.inf)

    fastest = np.minimum.reduce([seconds_of(cut_point) for cut_point in space.cut_points])
    bounds = np.where(_may_fit(space, voxels, sizes), ROUNDED * fastest, np.inf)
    return [float(seconds) for seconds in bounds]


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
        counts: the counts of what is in a patch.
        number: the numbers of patches.
        layers: the seconds of the layers on each device that runs some.
        brought: the bytes of a patch that are copied to the GPU.
        in_turn: whether layers on the host compute on the GPU, so that host and GPU take turns.
    """
    network, overhead = space.network, space.overhead
    each = overhead.handling
    once = np.full(len(number), each.around.total + each.building + each.warming)
    if "cpu" in layers:
        blocks = counts.values_in * overhead.voxel_in
        blocks += network.out_features * counts.voxels * overhead.voxel_out
        blocks += FLOAT_BYTES * network.parameters
        once += np.maximum(0.0, blocks - overhead.warm) * each.cold
    uses_gpu = "gpu" in layers or in_turn
    once += each.cuda if uses_gpu else 0.0
    stages = overhead.stages(network, counts, layers, brought)
    workers = overhead.workers if uses_gpu else 1
    further = seconds_after_first(stages, number, workers, in_turn=in_turn)
    found: Numbers = once + sum(stages.values()) + np.maximum.reduce(list(further.values()))
    return found


def _counts(network: Network, patches: list[Vec3], packed: PackedInput | None) -> Counts[Numbers]:
    """Return the counts of what is in each patch, if the input is compressed like this."""
    read = _by_axis(patches, lambda patch: {"read": extents_read(network, patch)})["read"]
    window = network.window
    unpacked = 0.0 * read[:, 0]
    if packed:
        unpacked = network.in_features * voxels_decoded(read, packed)
    return Counts(
        network.in_features * np.prod(read, axis=1, dtype=float),
        np.prod(np.array(patches), axis=1, dtype=float),
        np.array([window.a_block(patch) if window else 1.0 for patch in patches]),
        unpacked,
    )


def _may_fit(space: Space, voxels: Mapping[str, Numbers], sizes: NDArray[np.int64]) -> Bools:
    """Return which patches of an exact network leave memory for each convolution's arrays.

    Dense networks are computed in fragments, a few at a time, so nothing is known of them. Nor is
    it of networks that may be computed on a GPU.
    """
    network, overhead = space.network, space.overhead
    fits = np.ones(len(sizes), bool)
    if not network.is_exact or any(not it.layers_on_host for it in space.cut_points):
        return fits
    values = {name: network.maps[name] * voxels[name] for name in voxels}
    beside: Numbers = np.full(
        len(sizes), float(overhead.process + FLOAT_BYTES * network.parameters)
    )
    beside += overhead.voxel_in * values[INPUT]
    beside += overhead.least_bytes_out(network) * np.prod(sizes.astype(float), axis=1)
    for node in network.nodes:
        if isinstance(node.layer, Conv):
            arrays = FLOAT_BYTES * (values[node.name] + sum(values[it] for it in node.inputs))
            fits &= beside + arrays <= space.machine.host.memory
    return fits


def _voxels(network: Network, patches: list[Vec3]) -> dict[str, Numbers]:
    """Return the voxels of each value's map for each patch, of all its fragments together."""
    items = {name: shape.n for name, shape in shapes(network, patches[0]).items()}
    sizes = _by_axis(
        patches, lambda patch: {name: it.size for name, it in shapes(network, patch).items()}
    )
    return {name: n * np.prod(sizes[name], axis=1, dtype=float) for name, n in items.items()}


def _copied(network: Network, patches: list[Vec3]) -> dict[str, Bools]:
    """Return the patches for which each concatenation certainly copies its inputs.

    It copies if its array would grow too much to hold an input.
    """
    if not network.is_exact:
        return {}
    sizes = _by_axis(patches, lambda patch: joined_sizes(network, patch))
    volumes = {key: np.prod(found, axis=1, dtype=float) for key, found in sizes.items()}
    copied: dict[str, Bools] = {}
    for (join, _), volume in volumes.items():
        grows = volume > MOST_GROWTH * volumes[join, join]
        copied[join] = copied.get(join, False) | grows
    return copied


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
    found = {key: np.empty((len(patches), 3), np.int64) for key in sizes(first)}
    for axis in range(3):
        extents, places = np.unique([patch[axis] for patch in patches], return_inverse=True)
        along: dict[Key, list[int]] = {key: [] for key in found}
        for extent in extents:
            patch = Vec3(*(int(extent) if axis == other else first[other] for other in range(3)))
            for key, size in sizes(patch).items():
                along[key].append(size[axis])
        for key, listed in along.items():
            found[key][:, axis] = np.array(listed)[places]
    return found
