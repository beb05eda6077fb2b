"""Attributes that say where the voxels of an output lie, and those of other programs.

``element_size_um`` is from Fiji's HDF5 plugin; PlantSeg, ilastik and others have it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from znni.core.volume import Affine, Grid, Point
from znni.core.voxel_size import LENGTHS

MICROMETERS = "element_size_um"


def in_micrometers(grid: Grid) -> Point | None:
    """Return the extents of a voxel in micrometers; None if a unit is unknown or no length."""
    factors = [LENGTHS.get(unit or "") for unit in grid.units]
    if None in factors:
        return None
    z, y, x = (extent * (f or 1.0) for extent, f in zip(grid.scale, factors, strict=True))
    return z, y, x


def in_unit(grid: Grid, unit: str) -> Grid:
    """Return a grid in another unit of length.

    It stays as it is if a unit is unknown or no length, or if an affine has several units.
    """
    known = [each for each in grid.units if each in LENGTHS]
    if len(known) < 3 or (grid.affine and len(set(known)) > 1) or set(known) == {unit}:
        return grid
    factors = [LENGTHS[each] / LENGTHS[unit] for each in known]
    z, y, x = (extent * factor for extent, factor in zip(grid.scale, factors, strict=True))
    starts = zip(grid.translation, factors, strict=True)
    at_z, at_y, at_x = (start * factor for start, factor in starts)
    affine = grid.affine and Affine(
        tuple(number * factors[0] for number in grid.affine.rows), grid.affine.code
    )
    return Grid((z, y, x), (at_z, at_y, at_x), (unit,) * 3, affine)


def grid_attributes(grid: Grid) -> dict[str, Any]:
    """Return the attributes that place an output in space, if its place is known."""
    if grid == Grid():
        return {}
    known: dict[str, Any] = {
        "voxel_size": grid.scale,
        "voxel_origin": grid.translation,
        "voxel_units": ",".join(unit or "" for unit in grid.units),
    }
    if micrometers := in_micrometers(grid):
        known[MICROMETERS] = micrometers
    if grid.affine:
        known |= {"affine": grid.affine.rows, "affine_code": grid.affine.code}
    return known


def grid_of(attributes: Mapping[str, Any]) -> Grid:
    """Return the grid that attributes of an output or of another program tell, as far as they do.

    Attributes of another meaning that happen to have such a name are ignored.
    """
    size = _numbers(attributes, "voxel_size", 3)
    if size is None or min(size) <= 0:
        size = _numbers(attributes, MICROMETERS, 3)
        if size is None or min(size) <= 0:
            return Grid()
        z, y, x = size
        return Grid((z, y, x), units=("micrometer",) * 3)
    z, y, x = size
    at_z, at_y, at_x = _numbers(attributes, "voxel_origin", 3) or (0.0, 0.0, 0.0)
    given = str(attributes.get("voxel_units", ",,")).split(",")
    in_z, in_y, in_x = [unit or None for unit in given] if len(given) == 3 else [None] * 3
    return with_affine(Grid((z, y, x), (at_z, at_y, at_x), (in_z, in_y, in_x)), attributes)


def with_affine(grid: Grid, attributes: Mapping[str, Any]) -> Grid:
    """Return a grid with the orientation that attributes of an output tell, if they do."""
    rows, code = _numbers(attributes, "affine", 12), _numbers(attributes, "affine_code", 1)
    if rows is None or code is None:
        return grid
    return replace(grid, affine=Affine(rows, int(code[0])))


def _numbers(attributes: Mapping[str, Any], name: str, count: int) -> tuple[float, ...] | None:
    """Return an attribute of so many numbers; None if it is absent or something else."""
    try:
        attribute = attributes.get(name)
        if attribute is None:
            return None
        given: Any = attribute if hasattr(attribute, "__len__") else [attribute]
        numbers = tuple(float(number) for number in given)
    except Exception:  # libraries raise all kinds of errors about damaged attributes
        return None
    return numbers if len(numbers) == count else None
