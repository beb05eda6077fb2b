"""One voxel of an output, computed again by definition, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import Pad
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.volume import Volume
from znni.engine.tiles import Job, for_job, make_job
from znni.inference.brute_force import AtVoxel, at_voxel, tiled_at
from znni.inference.provenance import Origin
from znni.network.input_scaling import InputScaling
from znni.network.weights import Weights


def whole_job(volume: Volume, origin: Origin) -> Job:
    """Return the job of the whole volume's output."""
    recorded = origin.attributes
    return make_job(origin.network, volume.size, recorded.border, recorded.pad, None)


def voxel_at(volume: Volume, origin: Origin, weights: Weights, at: Vec3) -> AtVoxel:
    """Compute one voxel of an output from its input."""
    voxel = at + Vec3(*origin.attributes.voxel_offset)
    if not origin.network.is_tiled:
        view = origin.network.field_of_view
        start = voxel - (view - 1) // 2
        return at_voxel(origin.network, weights, seen_in(volume, origin, Box(start, start + view)))
    job = whole_job(volume, origin)
    network = for_job(origin.network, job)

    def seen(box: Box) -> NDArray[np.float32]:
        return seen_in(volume, origin, box.shifted(job.origin))

    return tiled_at(network, weights, seen, voxel - job.center)


def seen_in(volume: Volume, origin: Origin, box: Box) -> NDArray[np.float32]:
    """Return what the network sees in a box (f, z, y, x), padded beyond the volume's edges."""
    scaling, pad = origin.network.scaling, origin.attributes.pad
    axes = [range(a, b) for a, b in zip(*box, strict=True)]
    seen = [
        [_seen_from(position, extent, pad) for position in axis]
        for axis, extent in zip(axes, volume.size, strict=True)
    ]
    low, high = Vec3(*map(min, seen)), Vec3(*map(max, seen))
    read = volume.read(Box(low, high + 1)).astype(np.float32)
    for axis, voxels in enumerate(seen):
        read = read.take([voxel - low[axis] for voxel in voxels], axis=axis + 1)
    values = _scaled(read, scaling)
    if pad == "constant" or scaling.box:
        known = scaling.box or Box(ZERO, volume.size)
        for axis, (positions, *ends) in enumerate(zip(axes, *known, strict=True), start=1):
            beyond = [i not in range(*ends) for i in positions]
            np.moveaxis(values, axis, 0)[beyond] = 0
    return values


def _scaled(read: NDArray[np.float32], scaling: InputScaling) -> NDArray[np.float32]:
    """Return stored values (f, z, y, x) as the network's input."""
    if not scaling.normalize:
        return read * np.float32(scaling.scale) + np.float32(scaling.offset)
    scaled = np.zeros_like(read)
    for one, given, values in zip(scaling.fixed(len(read)), read, scaled, strict=True):
        clipped = given if one.clip is None else given.clip(*one.clip)
        values[:] = (clipped.astype(np.float64) - one.mean) / one.std
    if scaling.within == "nonzero":
        scaled *= read.any(axis=0)
    return scaled


def _seen_from(position: int, extent: int, pad: Pad) -> int:
    """Return the voxel of an axis that is seen at a position, which may lie beyond the edges."""
    if pad != "reflect" or extent == 1:
        return min(max(position, 0), extent - 1)
    while not 0 <= position < extent:
        position = -position if position < 0 else 2 * (extent - 1) - position
    return position


def has_output(mask: Volume | None, origin: Origin, at: Vec3) -> bool:
    """Return whether a voxel lies in the mask, and in the box that the input is cropped to."""
    start = at + Vec3(*origin.attributes.voxel_offset)
    voxel, cropped = Box(start, start + 1), origin.network.scaling.box
    if cropped and not voxel.within(cropped):
        return False
    return mask is None or bool(mask.read(voxel).any())
