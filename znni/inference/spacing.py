"""Comparison of a volume's voxels with those that a network was trained on."""

from __future__ import annotations

from znni.core.errors import InvalidInput, option
from znni.core.logged import warn_once
from znni.core.run_options import InputOptions
from znni.core.volume import Grid
from znni.core.voxel_size import VoxelSize, differ, voxel_size
from znni.network.network import Network
from znni.volumes.array import ArrayVolume


def check_spacing(network: Network, volume: ArrayVolume, read: InputOptions) -> None:
    """Check that a volume's voxels are of the size that a network was trained on.

    Args:
        volume: the volume, as it was opened with these options.
        read: the options. The caller may give the size of voxels, or allow any.

    Raises:
        InvalidInput: the voxels are of another size.
    """
    grid = volume.grid
    says = grid != Grid() and not volume.assumed and len(set(grid.units)) == 1
    if not read.any_spacing:
        _check(network, volume.name, grid if says or read.voxel_size else None)


def check_array_spacing(network: Network, size: str | None) -> None:
    """Check the voxels of arrays in memory, which have no size but the one that the caller gives.

    Args:
        size: the extents of a voxel, as ``1.5,1,1mm``; None if they are unknown.

    Raises:
        InvalidInput: the voxels are of another size, or the text has another form.
    """
    grid = None if size is None else voxel_size(size).given_to(Grid())
    _check(network, "the array", grid)


def _check(network: Network, name: str, grid: Grid | None) -> None:
    expected = network.spacing
    if expected is None:
        return
    trained = f"network {network.name} was trained on voxels of {expected} (z, y, x)"
    if grid is None:
        warn_once(
            f"{name} does not say how large its voxels are along every axis, and {trained}; "
            f"give {option('voxel_size', '1.5,1,1mm')} to have them compared, or "
            f"{option('any_spacing', True)}"
        )
    elif differ(expected, grid):
        there = VoxelSize(grid.scale, grid.units[0])
        if expected.unit:
            wanted = expected.over(grid.scale).text
            remedy = f"give {option('voxel_size', wanted)} if its file is wrong"
        else:
            remedy = f"write spacing: {expected.text}mm in the network file if only units differ"
        if network.case:
            first = f"have the scan resampled by {option('case', True)}"
        else:
            first = "resample the volume first, or describe whole cases in the network file (case:)"
        raise InvalidInput(
            f"{name} has voxels of {there}, and {trained}, so the output would be wrong; "
            f"{first}, {remedy}, or give {option('any_spacing', True)} to run all the same"
        )
