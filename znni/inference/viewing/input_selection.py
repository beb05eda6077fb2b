"""The part of a file that an output was computed from, as far as the output notes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from znni.core.run_options import InputOptions
from znni.core.volume import Grid
from znni.core.voxel_size import LENGTHS
from znni.inference.request import open_input
from znni.inference.viewing.region import names_input
from znni.volumes.array import ArrayVolume
from znni.volumes.grid_attributes import in_micrometers
from znni.volumes.locate import open_volume, split_dataset


def open_input_of(
    output: ArrayVolume, source: str | Path, dataset: str | None, voxel_size: str | None
) -> tuple[InputOptions, ArrayVolume]:
    """Open the input of an output. Return what is read of its file, and the volume.

    Args:
        source: file or URL of the input.
        dataset: dataset that the user names; None for the one that the output was computed from.
        voxel_size: extents of a voxel that the user gives; None for those of the output if they
            differ from those of the file.

    Raises:
        InvalidInput: there is no such volume.
    """
    time = str(output.attribute("time") or "")
    read = InputOptions(
        dataset or _dataset(output, source),
        _number(str(output.attribute("channel") or "")),
        "all" if time == "all" else _number(time),
        voxel_size=voxel_size,
    )
    if voxel_size is None and names_input(output):
        plain = open_volume(source, read.dataset, channel=read.channel, time=read.time)
        if _differ(output.grid, plain.grid):
            read = replace(read, voxel_size=_voxel_size(output.grid))
    return read, open_input(read, source)


def _dataset(output: ArrayVolume, source: str | Path) -> str | None:
    """Return the dataset that an output was computed from, if the file has the noted name."""
    noted = str(output.attribute("source") or "")
    path, inside = split_dataset(str(source))
    noted_path, noted_inside = split_dataset(noted)
    if inside or PurePosixPath(path).name != PurePosixPath(noted_path).name:
        return None
    return str(output.attribute("dataset") or "") or noted_inside


def _number(noted: str) -> int | None:
    """Return a number that an output notes about its input; None if it notes none."""
    return int(noted) if noted.isdecimal() else None


def _differ(output: Grid, source: Grid) -> bool:
    """Return whether an output has voxels of a known size, and its input of another or none."""
    unit = output.units[0]
    unset = output.scale == (1, 1, 1) and unit is None
    if unset or len(set(output.units)) > 1 or unit not in (None, *LENGTHS):
        return False
    first, second = in_micrometers(output), in_micrometers(source)
    if first is None or second is None:
        return (output.scale, output.units) != (source.scale, source.units)
    return not np.allclose(first, second, rtol=1e-3, atol=0)


def _voxel_size(grid: Grid) -> str:
    """Return the extents of a voxel as users give them."""
    return f"{','.join(map(repr, grid.scale))}{grid.units[0] or ''}"
