"""The labels of a scan, from those of its networks: joined, without some components, written.

The labels of each network are in the scan's own voxels already. The network's run resamples values
and makes labels of them (``engine/after_blending.py``, ``label_largest`` in
``resampling/labels.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.cases.arrays import Maps, Overlaid, Pasted, Renumbered, Turned
from znni.cases.networks import Numbers
from znni.cases.npy_file import write_header
from znni.cases.scan import Scan
from znni.cases.slabs import ROOM, components_slab
from znni.components.postprocessing import postprocess
from znni.components.rules import KeepLargest
from znni.core.array_like import ArrayLike
from znni.core.shapes import Box
from znni.engine.run_state import Progress, no_progress
from znni.inference.exporting import copy_labels
from znni.volumes.locate import open_volume
from znni.volumes.stored import StoredVolume


class ScanLabels(NamedTuple):
    """Labels of a part of a scan. Outside of it they are 0.

    Attributes:
        array: the labels (1, z, y, x).
        box: the part of the scan.
        file: a file that has some of them, for messages.
    """

    array: ArrayLike
    box: Box
    file: Path


class Part(NamedTuple):
    """The labels of one network.

    Attributes:
        crop: the part of the scan that they are of.
        numbers: the number of each label in the result; None: they stay as they are.
    """

    file: Path
    crop: Box
    numbers: Numbers | None = None


def joined_labels(parts: Sequence[Part]) -> ScanLabels:
    """Return the labels of networks as one volume, which is computed when it is read.

    Where several networks have a label above 0, the last one counts.
    """
    box = parts[0].crop
    for part in parts[1:]:
        box = box.hull(part.crop)
    highest = max((new for part in parts for _, new in part.numbers or ()), default=0)
    dtype = np.dtype(np.uint16 if highest > np.iinfo(np.uint8).max else np.uint8)
    arrays = []
    for part in parts:
        array: ArrayLike = Maps(open_volume(part.file))
        if part.numbers is not None:
            array = Renumbered(array, _table(part.numbers, dtype))
        if len(parts) > 1:
            array = Pasted(array, box.size, part.crop.start - box.start)
        arrays.append(array)
    joined = Overlaid(arrays) if len(parts) > 1 else arrays[0]
    return ScanLabels(joined, box, parts[0].file)


def _table(numbers: Numbers, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the new number of each label, from 0 on."""
    table = np.zeros(1 + max(old for old, _ in numbers), dtype)
    for old, new in numbers:
        table[old] = new
    return table


def without_components(
    labels: ScanLabels, path: Path, rules: Sequence[KeepLargest], room: int = ROOM
) -> ScanLabels:
    """Return labels without the connected components that rules remove."""
    volume = StoredVolume(labels.array, str(labels.file))
    slab = components_slab(volume.size, rules, room)
    with path.open("wb") as file:
        write_header(file, volume.dtype, (1, *volume.size))

        def write(_box: Box, values: NDArray[Any]) -> None:
            file.write(np.ascontiguousarray(values).data)

        postprocess(
            lambda box: volume.read(box)[0],
            write,
            volume.size,
            rules,
            slab.planes,
            most_components=slab.components,
        )
    return ScanLabels(Maps(open_volume(path)), labels.box, path)


def write_labels(
    scan: Scan,
    labels: ScanLabels,
    out: Path,
    attributes: Mapping[str, Any],
    progress: Progress = no_progress,
) -> None:
    """Write the labels of the whole scan, oriented as its files, with their attributes.

    Raises:
        RunFailed: reading or writing failed.
    """
    whole = Pasted(labels.array, scan.volume.size, labels.box.start)
    turned = Turned(whole, scan.turn.inverse)
    volume = StoredVolume(turned, str(labels.file), scan.stored, attributes)
    copy_labels(volume, out, progress)
