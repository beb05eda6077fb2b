"""Labels of a case after the network: components are removed, and the whole scan gets a file."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.cases.arrays import Maps, Pasted, Turned
from znni.cases.npy_file import write_header
from znni.cases.preparation import Preparation
from znni.cases.scan import Scan
from znni.cases.slabs import components_slab
from znni.components.postprocessing import postprocess
from znni.components.rules import Rule
from znni.core.shapes import Box
from znni.engine.run_state import Progress, no_progress
from znni.inference.exporting import copy_labels
from znni.volumes.locate import open_volume
from znni.volumes.stored import StoredVolume

WITHOUT = "without-components.npy"


def remove_components(scan: Scan, labels: Path, rules: Sequence[Rule], room: int) -> Path:
    """Write labels without the connected components that rules remove, and return the file.

    Args:
        scan: the scan.
        labels: the labels of its crop.
        rules: the rules, one after the other.
        room: the bytes for this step.

    Raises:
        InvalidInput: there are too many components.
    """
    volume, path = open_volume(labels), labels.with_name(WITHOUT)
    slab = components_slab(volume.size, rules, room)
    with path.open("wb") as file:
        write_header(file, volume.dtype, volume.shape)

        def write(_box: Box, values: NDArray[Any]) -> None:
            file.write(np.ascontiguousarray(values).data)

        postprocess(
            lambda box: volume.read(box)[0],
            write,
            volume.size,
            rules,
            slab.planes,
            voxel_volume=prod(scan.spacing),
            most_components=slab.components,
        )
    return path


def write_labels(
    scan: Scan, prepared: Preparation, labels: Path, out: Path, progress: Progress = no_progress
) -> None:
    """Write the labels of the whole scan, oriented as its files. Outside of the crop they are 0.

    Args:
        scan: the scan.
        prepared: how it was prepared.
        labels: the labels of the crop.
        out: the file to make.
        progress: called with the voxels written, and those to write.

    Raises:
        RunFailed: reading or writing failed.
    """
    whole = Pasted(Maps(open_volume(labels)), scan.volume.size, prepared.crop.start)
    volume = StoredVolume(Turned(whole, scan.turn.inverse), str(labels), scan.stored)
    copy_labels(volume, out, {}, overwrite=True, progress=progress)
