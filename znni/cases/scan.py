"""Scans: the files of a case as one volume, oriented as the network was trained."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from znni.cases.arrays import UNTURNED, Maps, Stacked, Turn, Turned
from znni.cases.spacing_file import read_spacing
from znni.core.errors import InvalidInput, option
from znni.core.text import counted
from znni.core.volume import Grid, Point
from znni.core.voxel_size import LENGTHS
from znni.network.case_rules import CaseRules
from znni.volumes.array import ArrayVolume
from znni.volumes.locate import not_compressed, open_volume
from znni.volumes.orientation import nearest_axes
from znni.volumes.stored import StoredVolume

SHEARED = 1e-4  # the largest cosine of the angle between axes that are perpendicular
CLOSE = 1e-3  # the share by which voxel sizes in the files of a case may differ


@dataclass(frozen=True)
class Scan:
    """The files of a case.

    Attributes:
        volume: their values, oriented as the network was trained.
        spacing: the extents of its voxels (z, y, x).
        stored: the grid of the voxels as they are stored.
        turn: how the stored axes were turned.
    """

    volume: ArrayVolume
    spacing: Point
    stored: Grid
    turn: Turn = UNTURNED


def open_scan(
    files: Sequence[Path], rules: CaseRules, folder: Path, unit: str | None = None
) -> Scan:
    """Open the files of a case.

    Args:
        files: the files, one for each channel, or with several channels as their maps.
        rules: the steps of the case.
        folder: the folder for decompressed files. Files that an earlier run decompressed there
            are used again.
        unit: the unit of the network's voxels; None: millimetres.

    Raises:
        InvalidInput: a file cannot be read, there are more or fewer maps than channels, or
            their voxels differ.
    """
    return _scan_of(files, decompressed(files, folder), rules, unit)


def look_at_scan(files: Sequence[Path], rules: CaseRules, unit: str | None = None) -> Scan:
    """Open the files of a case for their headers. To read values from them may take long."""
    return _scan_of(files, files, rules, unit)


def _check_maps(files: Sequence[Path], volumes: Sequence[ArrayVolume], rules: CaseRules) -> None:
    """Check that there is a map for each channel."""
    maps = sum(volume.features for volume in volumes)
    if maps != len(rules.channels):
        found = counted(len(files), "file")
        if maps != len(files):
            found += f" with {counted(maps, 'map')} in all"
        raise InvalidInput(
            f"{', '.join(map(str, files))}: {found}, and a case has {len(rules.channels)}: "
            f"{', '.join(rules.channels)}; give one file for each, or one with all as its maps"
        )


def _opened(file: Path) -> ArrayVolume:
    """Return the volume of a file. If it has points in time, they are its maps, as in nnU-Net.

    ITK notes a unit of time in every NIfTI.
    """
    try:
        return open_volume(file)
    except InvalidInput:
        with suppress(InvalidInput):
            return open_volume(file, time="all")
        raise


def _scan_of(
    files: Sequence[Path], opened: Sequence[Path], rules: CaseRules, unit: str | None
) -> Scan:
    """Return the scan that files hold."""
    volumes = [_opened(file) for file in opened]
    _check_maps(files, volumes, rules)
    first = volumes[0]
    noted = read_spacing(files[0]) if rules.voxels == "json" else None
    spacing = noted or _spacing(first, files[0], unit)
    for file, other in zip(files, volumes, strict=True):
        alike = noted or np.allclose(other.grid.scale, first.grid.scale, rtol=CLOSE)
        if other.size != first.size or not alike:
            raise InvalidInput(
                f"{file} has {other.size} {other.grid}, and {files[0]} has {first.size} "
                f"{first.grid}; the files of a case need equal voxels"
            )
    turn = _turn_to_ras(first.grid) if rules.orientation == "RAS" else UNTURNED
    array = Stacked([Maps(volume) for volume in volumes])
    volume = StoredVolume(array if turn == UNTURNED else Turned(array, turn), str(files[0]))
    z, y, x = (spacing[axis] for axis in turn.axes)
    return Scan(volume, (z, y, x), Grid(noted) if noted else first.grid, turn)


def _spacing(volume: ArrayVolume, file: Path, unit: str | None) -> Point:
    """Return the extents of a scan's voxels, in the unit of the network.

    Raises:
        InvalidInput: the file does not say how large its voxels are.
    """
    grid = volume.grid
    if grid == Grid() or volume.assumed:
        raise InvalidInput(
            f"{file} does not say how large its voxels are along every axis; write a copy that "
            f"says so, by znni export and {option('voxel_size', '3,1,1mm')}"
        )
    wanted = LENGTHS[unit or "millimeter"]
    factors = (LENGTHS.get(each or "", wanted) / wanted for each in grid.units)
    z, y, x = (extent * factor for extent, factor in zip(grid.scale, factors, strict=True))
    return z, y, x


def voxel_axes(scan: Scan) -> NDArray[np.float64]:
    """Return the steps in space from voxel to voxel, along z, y and x: a column for each.

    They are in the unit of the scan's spacing. Without an orientation, the axes are those of space.

    Raises:
        InvalidInput: the axes are not perpendicular, so resampling would shear the scan.
    """
    affine = scan.stored.affine
    if affine is None:
        return np.diag(scan.spacing)
    stored = np.reshape(affine.rows, (3, 4))[:, 2::-1]
    axes = stored[:, scan.turn.axes] * np.where(scan.turn.reversed, -1, 1)
    unit = axes / np.linalg.norm(axes, axis=0)
    if np.abs(unit.T @ unit - np.eye(3)).max() > SHEARED:
        raise InvalidInput(
            f"{scan.volume.name}: its axes are not perpendicular; resample it to perpendicular "
            f"axes first"
        )
    factor = scan.spacing[0] / scan.stored.scale[scan.turn.axes[0]]  # from the file's unit
    return np.asarray(factor * axes)


def decompressed(files: Sequence[Path], folder: Path) -> list[Path]:
    """Return files that can be read in any order. Compressed ones are decompressed first.

    Files that are in the folder already are used again.
    """
    return [not_compressed(file, folder / f"channel-{number}") for number, file in enumerate(files)]


def _turn_to_ras(grid: Grid) -> Turn:
    """Return the turn to the axes of space: to the right, to the front and to the head."""
    if grid.affine is None:
        return UNTURNED
    stored = {
        along: (2 - at, sign < 0) for at, (along, sign) in enumerate(nearest_axes(grid.affine))
    }
    z, y, x = (stored[axis] for axis in (2, 1, 0))
    return Turn((z[0], y[0], x[0]), (z[1], y[1], x[1]))
