"""Probabilities of a case, as nnU-Net saves them: ``NAME.npz``, and ``NAME.pkl`` beside it.

The maps of the whole scan are never in memory. The network writes them to a file, and they become
probabilities part by part.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
from numpy.typing import NDArray

from znni.cases.arrays import Maps, Pasted, Slices
from znni.cases.npy_file import new_array_file, write_header
from znni.cases.preparation import Preparation
from znni.cases.scan import Scan
from znni.cases.scan_geometry import geometry_of
from znni.core.array_like import ArrayLike
from znni.core.errors import RunFailed
from znni.core.shapes import FLOAT_BYTES, ZERO, Box, Vec3
from znni.engine.labels import labels_for
from znni.engine.run_state import Progress, no_progress
from znni.network.network import Network
from znni.volumes.locate import open_volume
from znni.volumes.stored import errors_as, reason

Float32: TypeAlias = NDArray[np.float32]

LABELS = "labels.npy"  # of the network's maps
SUMS = "sums.npy"  # the logarithm of the sum of exponentials of all maps

KEY = "probabilities"  # of the array in the archive
PART_VALUES = 2**22  # values of all maps that are computed at a time, or those of a row

# Bytes of a voxel while labels and sums are computed. For each map: the value of the part before,
# its value, and a copy for reading. For all maps together: four floats, and the label.
MAP_BYTES = 3 * FLOAT_BYTES
SUM_BYTES = 4 * FLOAT_BYTES + 4


def write_labels_of_maps(file: Path, network: Network, progress: Progress = no_progress) -> Path:
    """Write the labels of the network's maps, and return their file.

    The sums that turn maps into probabilities are written beside it.
    """
    maps, made = open_volume(file), file.with_name(LABELS)
    rule = labels_for(network, True, None)
    assert rule is not None
    shape, done = (1, *maps.size), 0
    with (
        new_array_file(made, rule.dtype, shape) as labels,
        new_array_file(file.with_name(SUMS), np.float32, shape) as sums,
    ):
        for box in _parts(maps.size, maps.features):
            values = maps.read(box)
            labels.write(rule.apply(values).data)
            sums.write(_log_of_sum(values).data)
            done += box.size.volume
            progress(done, maps.size.volume)
    return made


def labels_of_maps_bytes(size: Vec3, maps: int) -> int:
    """Return the bytes that ``write_labels_of_maps`` takes, or takes for a smaller crop."""
    return min(size.volume, max(size.x, PART_VALUES // maps)) * (MAP_BYTES * maps + SUM_BYTES)


def write_probabilities(
    scan: Scan, prepared: Preparation, maps: Path, out: Path, progress: Progress = no_progress
) -> None:
    """Write the probabilities of the whole scan, and how it lies in space.

    Around the crop, the background has the probability 1. The labels and sums of the maps lie
    beside them; ``NAME.pkl`` is written beside ``NAME.npz``.

    Raises:
        RunFailed: reading or writing failed.
    """
    array = _Probabilities(maps, regions=prepared.network.has_regions)
    background = not prepared.network.has_regions
    around = (float(background), *(0.0 for _ in range(array.shape[0] - 1)))
    whole = Pasted(array, scan.volume.size, prepared.crop.start, around)
    with errors_as(lambda error: RunFailed(f"{out}: cannot be written: {reason(error)}")):
        out.with_suffix(".pkl").write_bytes(pickle.dumps(geometry_of(scan, prepared.crop)))
        partial = out.with_name(f"{out.name}.partial")
        _write_archive(whole, partial, progress)
        partial.replace(out)


def _write_archive(array: ArrayLike, path: Path, progress: Progress) -> None:
    """Write an array (f, z, y, x) as ``numpy.savez_compressed`` does, part by part."""
    size, done = Vec3(*array.shape[1:]), 0
    with (
        ZipFile(path, "w", ZIP_DEFLATED) as archive,
        archive.open(f"{KEY}.npy", "w", force_zip64=True) as file,
    ):
        write_header(file, array.dtype, array.shape)
        for number in range(array.shape[0]):
            for box in _parts(size, 1):
                part = array[number : number + 1, *box.slices]
                file.write(np.ascontiguousarray(part).data)
                done += box.size.volume
                progress(done, size.volume * array.shape[0])


class _Probabilities:
    """The probabilities (f, z, y, x) of a crop, computed from its maps when they are read.

    Args:
        maps: the file of the crop's maps.
        regions: whether each map is of a region, which has a probability of its own.
    """

    def __init__(self, maps: Path, *, regions: bool) -> None:
        self._maps = Maps(open_volume(maps))
        self._sums = None if regions else Maps(open_volume(maps.with_name(SUMS)))
        self.shape = self._maps.shape
        self.dtype = np.dtype(np.float32)

    def __getitem__(self, key: Slices, /) -> Float32:
        """Return a part (f, z, y, x)."""
        _, z, y, x = key
        values = np.array(self._maps[key], np.float32)
        with np.errstate(over="ignore"):  # the probability is 0 then
            if self._sums is not None:
                values -= self._sums[slice(None), z, y, x]
                return np.exp(values, out=values)
            np.exp(np.negative(values, out=values), out=values)
        values += 1
        return np.reciprocal(values, out=values)


def _parts(size: Vec3, maps: int) -> Iterator[Box]:
    """Yield parts of a volume in the order of memory, each of whole planes or whole rows."""
    row = maps * size.x
    rows = max(1, PART_VALUES // row)
    depth = max(1, rows // size.y)
    return Box(ZERO, size).cut(Vec3(depth, min(rows, size.y), size.x))


def _log_of_sum(values: Float32) -> Float32:
    """Return the logarithm of the sum of the maps' exponentials (z, y, x)."""
    top = values.max(axis=0)
    total = np.zeros_like(top)
    for one in values:
        total += np.exp(one - top)
    found: Float32 = top + np.log(total)
    return found
