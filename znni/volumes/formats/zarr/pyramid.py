"""Coarser resolutions of an array, each made of the one before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product, starmap
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.option_types import Coarsening
from znni.core.shapes import ONE, ZERO, Box, Vec3
from znni.core.volume import Grid, Point
from znni.machine.io_threads import at_once, finish_all

PYRAMID = "pyramid"  # the attribute of an output that says how coarser resolutions are made
MADE = "coarser_than"  # the attribute of a coarser resolution that znni has made
SMALLEST = 128  # voxels: resolutions end when no axis has more
ROOM = 2**25  # bytes of the blocks that are read, about
MOST_BLOCKS = 4  # at a time; Zarr also decodes and encodes the files of a block side by side


def steps(size: Vec3, scale: Point) -> Iterator[Vec3]:
    """Yield the step from each resolution to the next, 1 or 2 along each axis.

    Only axes that are not much coarser than the finest one are halved, so voxels become cubes.
    """
    spacing = ONE
    while max(size) > SMALLEST:
        extents = [part * factor for part, factor in zip(scale, spacing, strict=True)]
        finest = min(part for part, voxels in zip(extents, size, strict=True) if voxels > 1)
        halved = (
            voxels > 1 and part < 2 * finest for part, voxels in zip(extents, size, strict=True)
        )
        step = Vec3(*(2 if half else 1 for half in halved))
        yield step
        size, spacing = size.ceil_div(step), spacing * step


def coarser_grid(grid: Grid, factor: Vec3) -> Grid:
    """Return the grid of voxels that are each made of ``factor`` voxels along the axes."""
    scale, translation = [], []
    for extent, at, times in zip(grid.scale, grid.translation, factor, strict=True):
        scale.append(extent * times)
        translation.append(at + (times - 1) / 2 * extent)  # between the middles of the first ones
    (z, y, x), (at_z, at_y, at_x) = scale, translation
    return replace(grid, scale=(z, y, x), translation=(at_z, at_y, at_x), affine=None)


def coarser(values: NDArray[Any], step: Vec3, coarsening: Coarsening) -> NDArray[Any]:
    """Return values (z, y, x) of which each stands for ``step`` of the given ones.

    If an extent is odd, the last values stand for fewer of them. If labels are equally frequent,
    the smallest one is returned.
    """
    beyond = [(0, -extent % part) for extent, part in zip(values.shape, step, strict=True)]
    # A voxel that is there twice changes neither mean nor mode.
    whole = np.pad(values, beyond, mode="edge") if np.any(beyond) else values
    parts = [whole[z :: step.z, y :: step.y, x :: step.x] for z, y, x in product(*map(range, step))]
    if coarsening == "mode" or values.dtype.kind == "b":
        return _most_frequent(parts)
    small = values.dtype.itemsize <= 2 or values.dtype == np.float32
    total: NDArray[Any] = parts[0].astype(np.float32 if small else np.float64)
    for part in parts[1:]:
        total += part
    total /= len(parts)
    return (np.rint(total) if values.dtype.kind in "ui" else total).astype(values.dtype)


def _most_frequent(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the most frequent of some values, for each place of equal arrays."""
    frequent, differ = parts[0].copy(), np.zeros(parts[0].shape, bool)
    for part in parts[1:]:
        differ |= part != frequent
    frequent[differ] = _counted([part[differ] for part in parts])  # inside objects, all are equal
    return frequent


def _counted(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return what ``_most_frequent`` does, by comparing all pairs of values."""
    frequent, most = parts[0].copy(), np.zeros(parts[0].shape, np.uint8)
    for part in parts:
        count = np.zeros(part.shape, np.uint8)
        for other in parts:
            count += part == other
        better = (count > most) | ((count == most) & (part < frequent))
        frequent[better], most[better] = part[better], count[better]
    return frequent


def write_levels(
    group: Any, array: Any, grid: Grid, coarsening: Coarsening
) -> Iterator[tuple[str, Vec3]]:
    """Write the coarser resolutions of an array beside it, and yield path and factor of each.

    The factor says how many voxels of the array became one, along each axis. The last three axes of
    the array are z, y and x.

    Raises:
        InvalidInput: something else has the path of a resolution.
    """
    factor, path = ONE, str(array.path).removeprefix(str(group.path)).strip("/")
    for step in steps(Vec3(*array.shape[-3:]), grid.scale):
        path, factor = _next(path), factor * step
        made = _new_level(group, path, array, step)
        _fill(made, array, step, coarsening)
        yield path, factor
        array = made


def _next(path: str) -> str:
    """Return the path of the next resolution: ``0``, ``1``, ``2`` or ``s0``, ``s1``, ``s2``."""
    number = re.search(r"\d+$", path)
    return f"{path[: number.start()]}{int(number[0]) + 1}" if number else f"{path}1"


def _new_level(group: Any, path: str, finer: Any, step: Vec3) -> Any:
    """Make the array of a resolution, stored like the finer one."""
    if (there := group.get(path)) is not None and MADE not in there.attrs:
        raise InvalidInput(
            f"{group.store_path}: has a member {path!r}, where the next resolution would be; "
            f"move it"
        )
    stored = finer.metadata
    if stored.zarr_format == 3:
        encoding: Any = stored.chunk_key_encoding
        named = {"dimension_names": stored.dimension_names}
    else:
        encoding = {"name": "v2", "separator": stored.dimension_separator}
        named = {}
    return group.create_array(
        path,
        shape=(*finer.shape[:-3], *Vec3(*finer.shape[-3:]).ceil_div(step)),
        dtype=finer.dtype,
        chunks=finer.chunks,
        shards=finer.shards,
        filters=finer.filters,
        compressors=finer.compressors,
        fill_value=stored.fill_value,
        chunk_key_encoding=encoding,
        attributes={MADE: finer.basename},
        overwrite=True,
        **named,
    )


def _fill(made: Any, finer: Any, step: Vec3, coarsening: Coarsening) -> None:
    """Compute a resolution in blocks of whole files, several at a time."""
    stored = made.shards or made.chunks
    size, block, whole = Vec3(*made.shape[-3:]), Vec3(*stored[-3:]), Vec3(*finer.shape[-3:])
    each = prod(stored[:-3]) * made.dtype.itemsize * step.volume  # bytes that become a voxel
    while max(block) < max(size):  # several files at a time, which zarr writes side by side
        more = block.minimum(size)
        axis = min((a for a in range(3) if block[a] < size[a]), key=lambda a: more[a])
        wider = block * Vec3(*(2 if a == axis else 1 for a in range(3)))
        if wider.volume * each > ROOM // MOST_BLOCKS:
            break
        block = wider
    blocks = (
        (others, box)
        for others in product(*starmap(_cut, zip(made.shape[:-3], stored[:-3], strict=True)))
        for box in Box(ZERO, size).cut(block)
    )

    def fill_block(place: tuple[tuple[slice, ...], Box]) -> None:
        others, box = place
        seen = Box(box.start * step, (box.stop * step).minimum(whole))
        values = np.asarray(finer[(*others, *seen.slices)])
        maps = [coarser(one, step, coarsening) for one in values.reshape(-1, *values.shape[-3:])]
        made[(*others, *box.slices)] = np.reshape(maps, (*values.shape[:-3], *box.size))

    finish_all(fill_block, blocks, min(MOST_BLOCKS, at_once(ROOM, block.volume * each)))


def _cut(extent: int, each: int) -> list[slice]:
    """Return the parts of an axis, of ``each`` places. The last may end beyond the axis."""
    return [slice(start, start + each) for start in range(0, extent, each)]
