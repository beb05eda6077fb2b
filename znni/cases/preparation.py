"""The network's input from a scan: normalized, cropped, and resampled to the voxels of training.

The scan passes slab by slab. So memory does not grow with its depth.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.cases.scan import Scan
from znni.components.nonzero import nonzero_mask
from znni.components.slabs import slab_boxes
from znni.core.errors import InvalidInput
from znni.core.resampling import Resampling
from znni.core.shapes import FLOAT_BYTES, Box, Vec3
from znni.core.volume import Point
from znni.engine.reading import read_input
from znni.engine.run_state import Progress, no_progress
from znni.engine.statistics import Moments, normalized
from znni.engine.tiles import ZERO, Job
from znni.network.case_rules import CaseRules, ResampleRule
from znni.network.input_scaling import Fixed, InputScaling, ZScore
from znni.network.network import Network
from znni.network.weights import Float32
from znni.resampling.nnunet_rule import nnunet_resampling, resampled_extents
from znni.resampling.spline import bounds_of, resample, resample_bytes

MASK = "mask.npy"

MASK_VOXELS = 2**22  # whose holes are found at a time
SLAB_BYTES = 2**27  # of a slab of the scan and of the network's input, if its rows allow it


@dataclass(frozen=True)
class Preparation:
    """The way from a scan to the network's input, and back.

    Attributes:
        network: the network, whose scaling of the scan is known.
        crop: the voxels of the scan that count.
        mask: which voxels of the crop (z, y, x) are normalized, and not 0. None: all.
        image: the resampling of these voxels to the network's input.
        output: the resampling of the network's output to these voxels.
    """

    network: Network
    crop: Box
    mask: NDArray[np.bool_] | None
    image: Resampling
    output: Resampling


def preparation_for(
    scan: Scan, network: Network, folder: Path, progress: Progress = no_progress
) -> Preparation:
    """Return how a scan is prepared. The scan is read if its own values are needed.

    Args:
        scan: the scan.
        network: the network, with the steps of whole cases.
        folder: where a mask of the scan is kept, if one is needed.
        progress: called with the voxels read, and those to read.

    Raises:
        InvalidInput: the network has no spacing, or its file describes no whole cases.
        UnusableValues: a value is NaN, or infinite as float32.
    """
    rules, trained = rules_of(network), spacing_of(network)
    network = normalized(network, scan.volume, progress)
    crop = network.scaling.box or Box(ZERO, scan.volume.size)
    mask = None
    if network.scaling.within == "nonzero":
        mask = _mask(scan, crop, folder / MASK)
        network = network.scaled_by(_scaling_within(scan, crop, mask, network.scaling))
    target = resampled_extents(crop.size, scan.spacing, trained).maximum(Vec3(1, 1, 1))
    image = _resampling(rules.image, crop.size, scan.spacing, trained, target)
    output = _resampling(rules.output, target, trained, scan.spacing, crop.size)
    return Preparation(network, crop, mask, image, output)


def _mask(scan: Scan, crop: Box, path: Path) -> NDArray[np.bool_]:
    """Return where a map is not 0, with the holes between these voxels, written to a file.

    nnU-Net normalizes these voxels.
    """

    def read(box: Box) -> NDArray[Any]:
        return scan.volume.read(box.shifted(crop.start))

    depth = max(1, MASK_VOXELS // (crop.size.y * crop.size.x))
    found = nonzero_mask(read, crop.size, depth)
    made = np.lib.format.open_memmap(path, "w+", np.bool_, crop.size)
    for box in slab_boxes(crop.size, depth):
        made[box.slices] = found.slab(box)
    return made


def _scaling_within(
    scan: Scan, crop: Box, mask: NDArray[np.bool_], scaling: InputScaling
) -> InputScaling:
    """Return a scaling with the statistics of a mask's voxels, for all voxels."""
    rules = scaling.of_maps(scan.volume.features)
    moments = [Moments() for _ in rules]
    depth = max(1, MASK_VOXELS // (crop.size.y * crop.size.x))
    for box in slab_boxes(crop.size, depth):
        values = scan.volume.read(box.shifted(crop.start))
        for moment, each in zip(moments, values, strict=True):
            moment.add(each[mask[box.slices]])
    known = scaling.statistics or rules
    fixed = (
        moment.result() if isinstance(rule, ZScore) else number
        for rule, number, moment in zip(rules, known, moments, strict=True)
        if isinstance(number, Fixed)
    )
    return replace(scaling, within="all", statistics=tuple(fixed))


def rules_of(network: Network) -> CaseRules:
    """Return the steps of whole cases.

    Raises:
        InvalidInput: the network file does not describe them.
    """
    if network.case is None:
        raise InvalidInput(
            f"network {network.name} does not say how whole cases are processed; import it again "
            f"from nnU-Net's results folder, or run it with znni infer over a prepared volume"
        )
    return network.case


def spacing_of(network: Network) -> Point:
    """Return the extents of the voxels that a network was trained on.

    Raises:
        InvalidInput: the network file does not have them.
    """
    if network.spacing is None:
        raise InvalidInput(
            f"network {network.name} does not say on which voxels it was trained; write them in "
            f"its file, such as spacing: 1.5,1,1mm"
        )
    return network.spacing.extents


def _resampling(
    rule: ResampleRule, source: Vec3, spacing: Point, new_spacing: Point, target: Vec3
) -> Resampling:
    force = {"auto": None, "always": True, "never": False}[rule.slices]
    return nnunet_resampling(
        source, spacing, new_spacing, rule.order, rule.across, force, new_shape=target
    )


def write_input(
    scan: Scan,
    prepared: Preparation,
    path: Path,
    threads: int,
    progress: Progress = no_progress,
) -> None:
    """Write the network's input to a ``.npy`` file, float32 (f, z, y, x).

    Args:
        scan: the scan.
        prepared: how it is prepared.
        path: the file, which has its name only when it is complete.
        threads: the number of threads.
        progress: called with the voxels written, and those to write.

    Raises:
        UnusableValues: a value is NaN, or infinite as float32.
    """
    resampling, maps = prepared.image, scan.volume.features
    bounds = _bounds(scan, prepared) if 3 in resampling.orders and resampling.changes else None
    partial = path.with_name(f"{path.name}.partial")
    shape = (maps, *resampling.target)
    plane = FLOAT_BYTES * resampling.target.y * resampling.target.x
    with partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )
        begin = file.tell()
        for box in slabs(resampling, maps, threads):
            needed = resampling.source_box(box)
            made = read_scaled(scan, prepared, needed)
            if resampling.changes:
                made = resample(made, needed.start, resampling, box, threads=threads, bounds=bounds)
            for index, values in enumerate(made):
                file.seek(begin + plane * (index * resampling.target.z + box.start.z))
                file.write(np.ascontiguousarray(values, "<f4").data)
            progress(box.stop.z * box.size.y * box.size.x, resampling.target.volume)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def read_scaled(scan: Scan, prepared: Preparation, box: Box) -> Float32:
    """Return the normalized values (f, z, y, x) of a box of the crop."""
    size = scan.volume.size
    job = Job(size, ZERO, size, ZERO, "edge")
    at = box.shifted(prepared.crop.start)
    values = read_input(scan.volume, job, at, prepared.network.scaling)
    if prepared.mask is not None:
        values[:, ~prepared.mask[box.slices]] = 0
    return values


def slabs(resampling: Resampling, maps: int, threads: int) -> Iterator[Box]:
    """Yield slabs of the network's input, whole planes each, that take about ``SLAB_BYTES``."""
    depth = 1
    while depth < resampling.target.z:
        more = Box(ZERO, resampling.target._replace(z=min(2 * depth, resampling.target.z)))
        if slab_bytes(resampling, maps, more, threads) > SLAB_BYTES:
            break
        depth = more.size.z
    return Box(ZERO, resampling.target).cut(resampling.target._replace(z=depth))


def slab_bytes(resampling: Resampling, maps: int, box: Box, threads: int) -> int:
    """Return the bytes that preparing a slab takes: of the scan, of the input, and between."""
    values = resampling.source_box(box).size.volume + box.size.volume
    between = resample_bytes(resampling, box, threads) if resampling.changes else 0
    return FLOAT_BYTES * maps * values + between


def _bounds(scan: Scan, prepared: Preparation) -> Float32:
    """Return the least and the largest value of the crop, or of each of its slices.

    A spline goes beyond the values that it joins, and is clipped to them.
    """
    separate = prepared.image.separate
    whole = Box(ZERO, prepared.crop.size)
    row = FLOAT_BYTES * scan.volume.features * whole.size.y * whole.size.x
    depth = max(1, SLAB_BYTES // row)
    pieces = [
        bounds_of(read_scaled(scan, prepared, box), separate)
        for box in whole.cut(whole.size._replace(z=depth))
    ]
    if separate == 0:  # each piece has slices of its own
        return np.concatenate(pieces, axis=1)
    joined = np.stack(pieces)
    return np.stack([joined[..., 0].min(axis=0), joined[..., 1].max(axis=0)], axis=-1)
