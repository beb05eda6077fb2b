"""The preparation of a scan: crop, normalize and resample it to the voxels of training.

The scan is read slab by slab. So memory does not grow with its depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.cases.npy_file import write_header
from znni.cases.scan import Scan, voxel_axes
from znni.cases.slabs import ROOM, SLAB_VOXELS, mask_slab, slab_planes
from znni.components.nonzero import nonzero_mask
from znni.components.slabs import slab_boxes
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput
from znni.core.resampling import Resampling
from znni.core.run_options import ValueOptions
from znni.core.shapes import ONE, ZERO, Box, Vec3
from znni.core.volume import Point
from znni.core.voxel_size import VoxelSize
from znni.engine.run_state import Progress, no_progress
from znni.engine.statistics import MOMENT_BYTES, Moments, normalized
from znni.network.case_rules import CaseRules, ResampleRule
from znni.network.input_scaling import AS_STORED, Fixed, InputScaling, Normalization, ZScore
from znni.network.network import Network
from znni.resampling.monai_rule import monai_resampling
from znni.resampling.nnunet_rule import nnunet_resampling, resampled_extents
from znni.volumes.mapped_array import MappedArray

MASK = "mask.npy"


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
    mask: ArrayLike | None
    image: Resampling
    output: Resampling

    def shared_with(self, scan: Scan, network: Network) -> Preparation:
        """Return the preparation for another network that takes the same input."""
        same = network.scaled_by(self.network.scaling)
        return _preparation(scan, same, self.crop, self.mask)


def preparation_for(
    scan: Scan,
    network: Network,
    folder: Path,
    progress: Progress = no_progress,
    room: int = ROOM,
    labels: ArrayLike | None = None,
) -> Preparation:
    """Return the preparation of a scan. Read the scan if its own values are needed.

    Args:
        network: the network, with the steps of whole cases.
        folder: the folder for the mask of the scan, if one is needed.
        progress: called with the voxels read, and all voxels to read.
        room: the bytes for this step.
        labels: labels (1, z, y, x) of the previous stage over the scan; None: there are none. Where
            one is not 0, the scan is normalized too.

    Raises:
        InvalidInput: the network has no spacing, its file describes no whole cases, or the scan is
            too small for it.
        UnusableValues: a value is NaN, or infinite as float32.
    """
    if rules_of(network).align != "none":
        spacing_of(network)  # a missing entry is an error before the scan is read
    network = normalized(network, scan.volume, progress)
    crop = network.scaling.box or Box(ZERO, scan.volume.size)
    mask = None
    if network.scaling.within == "nonzero":
        mask = filled_mask(scan, crop, folder, room, labels)
        network = network.scaled_by(_scaling_within(scan, crop, mask, network.scaling))
    return _preparation(scan, network, crop, mask)


def preparation_of_all(scan: Scan, network: Network) -> Preparation:
    """Return the preparation of a scan that is not cropped. None of its values is read."""
    return _preparation(scan, network, Box(ZERO, scan.volume.size), None)


def _preparation(scan: Scan, network: Network, crop: Box, mask: ArrayLike | None) -> Preparation:
    """Return the preparation of a scan's crop."""
    image, output = _resamplings(scan, network, crop.size)
    window = network.window
    if window and rules_of(network).beyond == "none" and not window.size.within(image.target):
        raise InvalidInput(
            f"the scan has {image.target} voxels for network {network.name}, and its windows have "
            f"{window.size}: what they see beyond the scan is not zero in training; pad the scan"
        )
    return Preparation(network, crop, mask, image, output)


def _resamplings(scan: Scan, network: Network, size: Vec3) -> tuple[Resampling, Resampling]:
    """Return the resampling of a scan's crop, and that of the network's output back to it."""
    rules = rules_of(network)
    if rules.align == "none":
        same = Resampling(size, size, (0, 0, 0))
        return same, same
    trained = spacing_of(network).over(scan.spacing).extents
    if rules.align == "first":
        orders = rules.image.order, rules.output.order
        return monai_resampling(size, voxel_axes(scan), trained, *orders)
    target = resampled_extents(size, scan.spacing, trained).maximum(ONE)
    image = resampling_by(rules.image, size, scan.spacing, trained, target)
    output = resampling_by(rules.output, target, trained, scan.spacing, size)
    return image, output


def filled_mask(
    scan: Scan, crop: Box, folder: Path, room: int, labels: ArrayLike | None = None
) -> ArrayLike:
    """Return the mask of voxels where a map is not 0, and of the holes between them.

    nnU-Net normalizes these voxels. The mask lies in a file. Voxels with a label are in the mask,
    too.
    """
    volume = scan.volume

    def read(box: Box) -> NDArray[Any]:
        return volume.read(box.shifted(crop.start))

    label_bytes = 0 if labels is None else np.dtype(labels.dtype).itemsize
    slab = mask_slab(crop.size, volume.features, volume.itemsize, room, label_bytes)
    path = folder / MASK
    found = nonzero_mask(read, crop.size, slab.planes, most_components=slab.components)
    with path.open("wb") as file:
        write_header(file, np.bool_, tuple(crop.size))
        begin = file.tell()
        for box in slab_boxes(crop.size, slab.planes):
            part = found.slab(box)
            if labels is not None:
                part = part | (labels[slice(None), *box.shifted(crop.start).slices][0] != 0)
            file.write(np.ascontiguousarray(part).data)
    return MappedArray(path, np.bool_, begin, crop.size)


def _scaling_within(scan: Scan, crop: Box, mask: ArrayLike, scaling: InputScaling) -> InputScaling:
    """Return a scaling of all voxels, with the statistics of the voxels in a mask.

    Slabs do not depend on the memory, because sums depend on them.
    """
    maps = scan.volume.features
    rules = scaling.first(maps).of_maps(maps)
    moments = [Moments() for _ in rules]
    for box in slab_boxes(crop.size, slab_planes(crop.size)):
        values, counted = scan.volume.read(box.shifted(crop.start)), np.asarray(mask[box.slices])
        for moment, each in zip(moments, values, strict=True):
            moment.add(each[counted])
    known: Sequence[Normalization] = scaling.statistics or (*rules, *scaling.normalize[maps:])
    fixed = (
        moment.result() if isinstance(rule, ZScore) else number
        for rule, number, moment in zip(rules, known, moments, strict=False)
        if isinstance(number, Fixed)
    )
    further = (number for number in known[maps:] if isinstance(number, Fixed))
    return replace(scaling, within="all", statistics=(*fixed, *further))


def scaling_bytes(size: Vec3, maps: int, itemsize: int) -> int:
    """Return the bytes that the statistics of the voxels in a mask take, or for a smaller crop."""
    voxels = max(size.y * size.x, min(SLAB_VOXELS, size.volume))
    return voxels * ((2 * maps + 1) * itemsize + 1 + MOMENT_BYTES)


def rules_of(network: Network) -> CaseRules:
    """Return the steps of whole cases."""
    if network.case is None:
        raise InvalidInput(
            f"network {network.name} does not say how whole cases are processed; add labels: and "
            f"case: {{channels: [CT]}} to its file, import it again from nnU-Net's results folder, "
            f"or run it with znni infer over a prepared volume"
        )
    return network.case


def unit_of(network: Network) -> str | None:
    """Return the unit of the voxels that a network was trained on; None: millimetres."""
    return network.spacing.unit if network.spacing else None


def spacing_of(network: Network) -> VoxelSize:
    """Return the extents of the voxels that a network was trained on."""
    if network.spacing is None:
        raise InvalidInput(
            f"network {network.name} does not say on which voxels it was trained; write them in "
            f"its file, such as spacing: 1.5,1,1mm"
        )
    return network.spacing


def resampling_by(
    rule: ResampleRule, source: Vec3, spacing: Point, new_spacing: Point, target: Vec3
) -> Resampling:
    """Return the resampling from voxels of one spacing to those of another, by a rule."""
    force = {"auto": None, "always": True, "never": False}[rule.slices]
    return nnunet_resampling(
        source, spacing, new_spacing, rule.order, rule.across, force, new_shape=target
    )


def running(prepared: Preparation) -> Network:
    """Return the network for the prepared input. Its output is resampled to the scan's voxels."""
    network, window = prepared.network, prepared.network.window
    if window is None:
        raise InvalidInput(
            f"network {network.name} has no windows, which whole cases need; add window: to its "
            f"file"
        )
    output = prepared.output if prepared.output.changes else None
    return replace(
        network,
        scaling=AS_STORED,
        spacing=None,
        window=replace(window, volume=None, inside=None, resampled=output),
    )


def stored_values(network: Network, *, probabilities: bool = False) -> ValueOptions:
    """Return how the output of a network is stored: as labels, or as masks.

    Args:
        probabilities: whether probabilities are saved too. Then the output is stored as it is.
    """
    if probabilities:
        return ValueOptions()
    masks = rules_of(network).masks
    if masks is None:
        return ValueOptions(labels=True)
    # A value counts that is not below the number, but a threshold must be exceeded.
    return ValueOptions(threshold=float(np.nextafter(np.float32(masks), np.float32(-np.inf))))
