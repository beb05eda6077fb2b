"""The preparation of a scan: crop, normalize and resample it to the voxels of training.

The scan is read slab by slab. So memory does not grow with its depth.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.cases.scan import Scan, voxel_axes
from znni.cases.values import change_values
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
from znni.resampling.monai_rule import monai_resampling
from znni.resampling.nnunet_rule import nnunet_resampling, resampled_extents
from znni.resampling.spline import bounds_of, resample, resample_bytes

MASK = "mask.npy"

MASK_VOXELS = 2**22  # voxels of a slab in which holes are found
SLAB_BYTES = 2**28  # of slabs of the scan and of the network's input, if their planes allow it


@dataclass(frozen=True)
class Preparation:
    """The way from a scan to the network's input, and back.

    Attributes:
        network: the network, with the numbers that normalize this scan.
        crop: the voxels of the scan that count.
        mask: true for voxels of the crop (z, y, x) that are normalized. Others become 0. None:
            all are normalized.
        image: the resampling from the crop to the network's input.
        output: the resampling from the network's output to the crop.
    """

    network: Network
    crop: Box
    mask: NDArray[np.bool_] | None
    image: Resampling
    output: Resampling

    def shared_with(self, scan: Scan, network: Network) -> Preparation:
        """Return the preparation for another network that takes the same input."""
        same = network.scaled_by(self.network.scaling)
        return _preparation(scan, same, self.crop, self.mask)


def preparation_for(
    scan: Scan, network: Network, folder: Path, progress: Progress = no_progress
) -> Preparation:
    """Return the preparation of a scan. Read the scan if its own values are needed.

    Args:
        scan: the scan.
        network: the network, with the steps of whole cases.
        folder: the folder for the mask of the scan, if one is needed.
        progress: called with the voxels read, and all voxels to read.

    Raises:
        InvalidInput: the network has no spacing, or its file describes no whole cases.
        UnusableValues: a value is NaN, or infinite as float32.
    """
    if rules_of(network).align != "none":
        spacing_of(network)  # a missing entry is an error before the scan is read
    network = normalized(network, scan.volume, progress)
    crop = network.scaling.box or Box(ZERO, scan.volume.size)
    mask = None
    if network.scaling.within == "nonzero":
        mask = _mask(scan, crop, folder / MASK)
        network = network.scaled_by(_scaling_within(scan, crop, mask, network.scaling))
    return _preparation(scan, network, crop, mask)


def preparation_of_all(scan: Scan, network: Network) -> Preparation:
    """Return the preparation of a scan that is not cropped. None of its values is read.

    Raises:
        InvalidInput: the network has no spacing, or its file describes no whole cases.
    """
    return _preparation(scan, network, Box(ZERO, scan.volume.size), None)


def _preparation(
    scan: Scan, network: Network, crop: Box, mask: NDArray[np.bool_] | None
) -> Preparation:
    """Return the preparation of a scan's crop."""
    rules = rules_of(network)
    if rules.align == "none":
        image = output = Resampling(crop.size, crop.size, (0, 0, 0))
        return Preparation(network, crop, mask, image, output)
    trained = spacing_of(network)
    if rules.align == "first":
        orders = rules.image.order, rules.output.order
        image, output = monai_resampling(crop.size, voxel_axes(scan), trained, *orders)
        return Preparation(network, crop, mask, image, output)
    target = resampled_extents(crop.size, scan.spacing, trained).maximum(Vec3(1, 1, 1))
    image = _resampling(rules.image, crop.size, scan.spacing, trained, target)
    output = _resampling(rules.output, target, trained, scan.spacing, crop.size)
    return Preparation(network, crop, mask, image, output)


def _mask(scan: Scan, crop: Box, path: Path) -> NDArray[np.bool_]:
    """Return the mask of voxels where a map is not 0, and of the holes between them.

    nnU-Net normalizes these voxels. The mask lies in a file.
    """

    def read(box: Box) -> NDArray[Any]:
        return scan.volume.read(box.shifted(crop.start))

    depth = _mask_depth(crop)
    found = nonzero_mask(read, crop.size, depth)
    made = np.lib.format.open_memmap(path, "w+", np.bool_, crop.size)
    for box in slab_boxes(crop.size, depth):
        made[box.slices] = found.slab(box)
    return made


def _mask_depth(crop: Box) -> int:
    """Return the planes of a slab whose mask is found at a time."""
    return max(1, MASK_VOXELS // (crop.size.y * crop.size.x))


def _scaling_within(
    scan: Scan, crop: Box, mask: NDArray[np.bool_], scaling: InputScaling
) -> InputScaling:
    """Return a scaling of all voxels, with the statistics of the voxels in a mask."""
    rules = scaling.of_maps(scan.volume.features)
    moments = [Moments() for _ in rules]
    for box in slab_boxes(crop.size, _mask_depth(crop)):
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


def unit_of(network: Network) -> str | None:
    """Return the unit of the voxels that a network was trained on; None: millimetres."""
    return network.spacing.unit if network.spacing else None


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
        prepared: its preparation.
        path: the file. It gets its name when it is complete.
        threads: the number of threads.
        progress: called with the voxels written, and all voxels to write.

    Raises:
        UnusableValues: a value is NaN, or infinite as float32.
    """
    resampling, maps = prepared.image, scan.volume.features
    clips = 3 in resampling.orders and resampling.changes and not resampling.steps
    bounds = _bounds(scan, prepared) if clips else None  # MONAI clips nothing
    partial = path.with_name(f"{path.name}.partial")
    shape = (maps, *resampling.target)
    plane = FLOAT_BYTES * resampling.target.y * resampling.target.x
    with partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )
        begin = file.tell()
        boxes, target = list(slabs(resampling, maps)), Buffer()
        needed = [resampling.source_box(box) for box in boxes]
        read = read_ahead(scan, prepared, needed)
        for box, source, normal in zip(boxes, needed, read, strict=True):
            made = normal
            if resampling.changes:
                out = target((maps, *box.size))
                made = resample(
                    normal, source.start, resampling, box, threads=threads, bounds=bounds, out=out
                )
            for index, values in enumerate(made):
                file.seek(begin + plane * (index * resampling.target.z + box.start.z))
                file.write(np.ascontiguousarray(values, "<f4").data)
            progress(box.stop.z * box.size.y * box.size.x, resampling.target.volume)
        file.flush()
        os.fsync(file.fileno())
    change_values(partial, rules_of(prepared.network).values)
    partial.rename(path)


class Buffer:
    """Memory for one array after another. To touch fresh pages would take longer than the work."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.float32)

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return an array. A float32 array lies in the memory of the one before."""
        if dtype != np.float32:
            return np.empty(shape, dtype)
        values = prod(shape)
        if len(self._memory) < values:
            self._memory = np.empty(values, np.float32)
        return self._memory[:values].reshape(shape)


def read_ahead(scan: Scan, prepared: Preparation, boxes: Sequence[Box]) -> Iterator[Float32]:
    """Yield the normalized values of boxes of the crop, while a thread reads the next box.

    The values of a box are valid until the next ones are yielded.
    """
    buffers = Buffer(), Buffer()
    with ThreadPoolExecutor(1, "znni-scan") as thread:

        def read(index: int) -> Future[Float32]:
            return thread.submit(read_scaled, scan, prepared, boxes[index], buffers[index % 2])

        following = read(0)
        for index in range(len(boxes)):
            values = following.result()
            if index + 1 < len(boxes):
                following = read(index + 1)
            yield values


def read_scaled(scan: Scan, prepared: Preparation, box: Box, buffer: Buffer) -> Float32:
    """Return the normalized values (f, z, y, x) of a box of the crop, in a buffer."""
    size = scan.volume.size
    job = Job(size, ZERO, size, ZERO, "edge")
    at = box.shifted(prepared.crop.start)
    values = read_input(scan.volume, job, at, prepared.network.scaling, buffer)
    if prepared.mask is not None:
        values[:, ~prepared.mask[box.slices]] = 0
    return values


def slabs(resampling: Resampling, maps: int) -> Iterator[Box]:
    """Yield slabs of the network's input, whole planes each, that take about ``SLAB_BYTES``."""
    depth = 1
    while depth < resampling.target.z:
        more = Box(ZERO, resampling.target._replace(z=min(2 * depth, resampling.target.z)))
        if slab_bytes(resampling, maps, more) > SLAB_BYTES:
            break
        depth = more.size.z
    return Box(ZERO, resampling.target).cut(resampling.target._replace(z=depth))


def preparing_bytes(prepared: Preparation, threads: int) -> int:
    """Return the bytes that ``write_input`` takes, beside the memory of the process."""
    maps = prepared.network.in_features
    largest = next(slabs(prepared.image, maps))
    between = resample_bytes(prepared.image, largest, threads) if prepared.image.changes else 0
    return slab_bytes(prepared.image, maps, largest) + between


def slab_bytes(resampling: Resampling, maps: int, box: Box) -> int:
    """Return the bytes of two slabs of the scan and of one slab of the input."""
    return FLOAT_BYTES * maps * (2 * resampling.source_box(box).size.volume + box.size.volume)


def _bounds(scan: Scan, prepared: Preparation) -> Float32:
    """Return the least and the largest value of the crop, or of each of its slices.

    A spline overshoots the values that it joins, so its values are clipped to them.
    """
    separate = prepared.image.separate
    whole = Box(ZERO, prepared.crop.size)
    row = 2 * FLOAT_BYTES * scan.volume.features * whole.size.y * whole.size.x
    depth = max(1, SLAB_BYTES // row)
    boxes = list(whole.cut(whole.size._replace(z=depth)))
    pieces = [bounds_of(values, separate) for values in read_ahead(scan, prepared, boxes)]
    if separate == 0:  # each piece has slices of its own
        return np.concatenate(pieces, axis=1)
    joined = np.stack(pieces)
    return np.stack([joined[..., 0].min(axis=0), joined[..., 1].max(axis=0)], axis=-1)
