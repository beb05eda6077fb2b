"""The labels of the previous stage of a cascade, as further maps of the network's input.

They are stored as one map of small integers, and become a map for each label when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.cases.arrays import Maps, OneHot, Stacked, Turned
from znni.cases.input_file import write_input
from znni.cases.input_slabs import label_slabs
from znni.cases.npy_file import new_array_file
from znni.cases.preparation import Preparation, filled_mask, resampling_by, rules_of, spacing_of
from znni.cases.scan import CLOSE, Scan
from znni.cases.slabs import LABEL_BYTES, mask_slab
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput
from znni.core.resampling import Resampling
from znni.core.volume import Affine, Grid
from znni.engine.run_state import Progress
from znni.network.case_rules import PreviousStage
from znni.network.network import Network
from znni.network.weights import Weights
from znni.resampling.labels import resample_labels
from znni.volumes.array import ArrayVolume
from znni.volumes.locate import open_volume

INPUT = "input.npy"  # the image
LABELS = "input-labels.npy"  # in the voxels of the image

OUTSIDE = 0  # stands for voxels outside of the mask; a label is stored as its number plus 1


@dataclass(frozen=True)
class PreviousNetwork:
    """A network whose labels the next stage of a cascade takes.

    Attributes:
        weights: its parameters.
        previous: the stage before it; None: it is the first.
    """

    network: Network
    weights: Weights
    previous: PreviousNetwork | None = None


def open_labels(file: Path, scan: Scan, stage: PreviousStage) -> ArrayLike:
    """Return the labels (1, z, y, x) of the previous stage, oriented as the scan is.

    Raises:
        InvalidInput: the file cannot be read, or has other voxels.
    """
    volume = open_volume(file)
    if volume.features != 1 or not _lies_over(volume, scan):
        raise InvalidInput(
            f"{file} has {volume.features} x {volume.size} {volume.grid}; the labels of "
            f"{stage.name} need the voxels of the scan"
        )
    return Turned(Maps(volume), scan.turn)


def write_labels_before(
    scan: Scan, prepared: Preparation, labels: ArrayLike, path: Path, threads: int, room: int
) -> None:
    """Write the labels of the previous stage in the voxels of the network's input.

    They are small integers (1, z, y, x).

    Raises:
        InvalidInput: there is a label that the previous stage does not have.
    """
    crop, mask, network = prepared.crop, prepared.mask, prepared.network
    stage = _stage_of(network)
    if mask is None and network.scaling.crops:
        mask = filled_mask(scan, crop, path.parent, room)
    resampling, dtype = _resampling(scan, prepared), _type_of(stage)
    itemsize = np.dtype(labels.dtype).itemsize
    slabs = label_slabs(itemsize, dtype, resampling, threads, room)
    with new_array_file(path, dtype, (1, *resampling.target)) as file:
        for box in slabs.boxes:
            source = resampling.source_box(box)
            part = np.asarray(labels[slice(None), *source.shifted(crop.start).slices])[0]
            _check_labels(part, stage)
            numbers = part.astype(dtype) + dtype.type(1)
            if mask is not None:  # nnU-Net counts these voxels as a label of their own
                numbers[(part == 0) & ~np.asarray(mask[source.slices])] = OUTSIDE
            made = numbers
            if resampling.changes:
                made = resample_labels(numbers, source.start, resampling, box, threads=threads)
            file.write(np.ascontiguousarray(made).data)


def labels_before_bytes(
    scan: Scan, prepared: Preparation, itemsize: int, threads: int, room: int
) -> int:
    """Return the bytes that ``write_labels_before`` takes, or takes for a smaller crop."""
    dtype = _type_of(_stage_of(prepared.network))
    taken = label_slabs(itemsize, dtype, _resampling(scan, prepared), threads, room).nbytes
    if prepared.network.scaling.crops:
        volume = scan.volume
        mask = mask_slab(prepared.crop.size, volume.features, volume.itemsize, room)
        taken = max(taken, mask.nbytes)
    return taken


def bytes_of_label(previous: Path | PreviousNetwork | None) -> int:
    """Return the bytes of a label of the previous stage, as its file has it or will have it."""
    return open_volume(previous).itemsize if isinstance(previous, Path) else LABEL_BYTES


def _resampling(scan: Scan, prepared: Preparation) -> Resampling:
    """Return the resampling of the previous stage's labels to the voxels of the input."""
    network, target = prepared.network, prepared.image.target
    trained = spacing_of(network).over(scan.spacing).extents
    rule = _stage_of(network).resampled
    return resampling_by(rule, prepared.crop.size, scan.spacing, trained, target)


def _type_of(stage: PreviousStage) -> np.dtype[Any]:
    """Return the type of labels in the input."""
    return np.min_scalar_type(max(stage.labels) + 1)


def network_input(
    image: Path,
    scan: Scan,
    prepared: Preparation,
    before: ArrayLike | None,
    threads: int,
    room: int,
    progress: Progress,
) -> Path | ArrayLike:
    """Return the network's input. Write what an earlier run has not written.

    Labels are written beside the file of the image.
    """
    labels = image.with_name(LABELS)
    if not image.exists():
        write_input(scan, prepared, image, threads, progress, room)
    if before is None:
        return image
    if not labels.exists():
        write_labels_before(scan, prepared, before, labels, threads, room)
    numbers = [label + 1 for label in _stage_of(prepared.network).labels]
    further = OneHot(Maps(open_volume(labels)), numbers)
    return Stacked([Maps(open_volume(image)), further])


def _stage_of(network: Network) -> PreviousStage:
    """Return the previous stage, whose labels the network takes."""
    stage = rules_of(network).previous_stage
    assert stage is not None
    return stage


def _lies_over(volume: ArrayVolume, scan: Scan) -> bool:
    """Return whether a volume has the voxels of a scan as it is stored."""
    size = scan.turn.inverse.extents(scan.volume.size)
    known = volume.grid != Grid()
    alike = np.allclose(volume.grid.scale, scan.stored.scale, rtol=CLOSE)
    if volume.grid.affine and scan.stored.affine:
        near = CLOSE * min(scan.stored.scale)
        alike &= np.allclose(_steps(volume.grid.affine), _steps(scan.stored.affine), atol=near)
    return volume.size == size and (alike or not known)


def _steps(affine: Affine) -> NDArray[np.float64]:
    """Return the way from voxel to voxel along each axis."""
    return np.reshape(affine.rows, (3, 4))[:, :3]


def _check_labels(found: NDArray[Any], stage: PreviousStage) -> None:
    low, high = found.min(), found.max()
    if not (low >= 0 and high <= max(stage.labels)):  # NaN is neither
        raise InvalidInput(
            f"there is a label {low if low < 0 else high}, and {stage.name} gives labels up to "
            f"{max(stage.labels)}; give the labels of {stage.name}"
        )
