"""Extents of voxels: of a volume, as users give them, and of the volumes that a network suits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from znni.core.errors import InvalidInput, option
from znni.core.volume import Affine, Grid, Point

# Micrometers in a unit of length.
LENGTHS = {
    "angstrom": 1e-4,
    "nanometer": 1e-3,
    "micrometer": 1.0,
    "millimeter": 1e3,
    "centimeter": 1e4,
    "meter": 1e6,
}
UNITS_BY_SYMBOL = {  # by the symbols in OME-TIFF, ImageJ and ilastik's attributes
    **{"nm": "nanometer", "mm": "millimeter", "cm": "centimeter", "m": "meter", "Å": "angstrom"},
    **dict.fromkeys(("um", "µm", "\u03bcm", "\\u00B5m", "micron", "microns"), "micrometer"),
}

NUMBER = r"\d*\.?\d+(?:[eE][+-]?\d+)?|\d+\."
ANY = "any"  # stands for an extent along an axis where voxels of any extent will do
# Returns the text of an option of the command line, or of a keyword argument.
OPTION = partial(option, "voxel_size")

# The share of an extent by which a volume's voxels may differ from what a network expects.
TOLERANCE = 0.01

FORM = re.compile(
    rf"\s*({NUMBER})(?:\s*[,x]\s*({NUMBER})\s*[,x]\s*({NUMBER}))?\s*([^\W\d][^\d,]*)?"
)


@dataclass(frozen=True)
class VoxelSize:
    """Extents of a voxel.

    Attributes:
        extents: along z, y and x.
        unit: unit of length; None for that of the file.
        free: axes along which voxels of any extent will do, such as ``z``. Their numbers in
            ``extents`` mean nothing.
    """

    extents: Point
    unit: str | None = None
    free: str = ""

    def over(self, extents: Point) -> VoxelSize:
        """Return these extents, with others along free axes.

        Args:
            extents: the other extents, in the same unit.
        """
        z, y, x = (
            other if axis in self.free else own
            for axis, own, other in zip("zyx", self.extents, extents, strict=True)
        )
        return VoxelSize((z, y, x), self.unit)

    def given_to(self, grid: Grid, finest: Grid | None = None) -> Grid:
        """Return a grid whose voxels have these extents.

        Its origin stays the same number of voxels from 0. An orientation in space
        (NIfTI) keeps its origin if its unit is known.

        Args:
            grid: the grid, as a file has it.
            finest: grid of the finest resolution, if this is a coarser one: it gets the extents.
        """
        finest = finest or grid
        units = (self.unit,) * 3 if self.unit else finest.units
        scale, places = [], []
        for axis, extent in enumerate(self.extents):
            times = extent / finest.scale[axis] if finest.scale[axis] else 1.0
            start = finest.translation[axis]
            in_space = finest.affine and finest.units[axis]
            moved = _factor(finest.units[axis], units[axis]) if in_space else times
            scale.append(times * grid.scale[axis] if grid is not finest else extent)
            places.append(start * moved + (grid.translation[axis] - start) * times)
        (z, y, x), (at_z, at_y, at_x) = scale, places
        affine = grid.affine and self._stretched(grid.affine, grid)
        return replace(
            grid, scale=(z, y, x), translation=(at_z, at_y, at_x), units=units, affine=affine
        )

    def _stretched(self, affine: Affine, grid: Grid) -> Affine:
        times = [
            new / old if old else 1.0
            for new, old in zip(self.extents[::-1], grid.scale[::-1], strict=True)
        ]
        rows = np.reshape(affine.rows, (3, 4))
        axes, origin = rows[:, :3], rows[:, 3]
        if grid.units[0]:
            origin = origin * _factor(grid.units[0], self.unit or grid.units[0])
        else:  # as many voxels away as before
            origin = axes * times @ (np.linalg.pinv(axes) @ origin)
        made = np.column_stack([axes * times, origin])
        return Affine(tuple(float(number) for number in made.ravel()), affine.code)

    @property
    def text(self) -> str:
        """The extents as an option or a network file gives them."""
        return ",".join(self._each(".9g")) + (self.unit or "")

    def __str__(self) -> str:
        return f"{', '.join(self._each('g'))} {self.unit or ''}".rstrip()

    def _each(self, form: str) -> list[str]:
        """Return the text of each extent."""
        pairs = zip("zyx", self.extents, strict=True)
        return [ANY if axis in self.free else f"{extent:{form}}" for axis, extent in pairs]


def voxel_size(text: str, named: Callable[[str], str] = OPTION) -> VoxelSize:
    """Return the extents in a text: ``0.5,0.1,0.1um``, or ``40nm`` for all axes.

    Args:
        named: returns a text with the name under which the user gave it, for messages.

    Raises:
        InvalidInput: the text has another form, or names an unknown unit.
    """
    form = f"give three extents as {named('0.5,0.1,0.1um')}, or one for all axes"
    match = FORM.fullmatch(text)
    if not match:
        raise InvalidInput(f"{named(text)} is no size of a voxel; {form}")
    z, y, x = (float(match[part] or match[1]) for part in (1, 2, 3))
    if not all(0 < extent < float("inf") for extent in (z, y, x)):
        raise InvalidInput(f"{named(text)} has a voxel of no extent; {form}")
    name = (match[4] or "").strip()
    unit = UNITS_BY_SYMBOL.get(name) or (name if name in LENGTHS else name.removesuffix("s"))
    if name and unit not in LENGTHS:
        known = ", ".join([*("nm", "um", "mm", "cm", "m"), *LENGTHS])
        raise InvalidInput(f"{named(text)} has the unknown unit {name!r}; use one of {known}")
    return VoxelSize((z, y, x), unit or None)


def trained_size(text: str, named: Callable[[str], str] = OPTION) -> VoxelSize:
    """Return the extents in a text as ``voxel_size`` does. ``any`` stands for those of free axes.

    Raises:
        InvalidInput: as for ``voxel_size``.
    """
    parts = text.split(",")
    if len(parts) != 3:
        return voxel_size(text, named)
    pairs = zip("zyx", parts, strict=True)
    free = "".join(axis for axis, part in pairs if part.strip().startswith(ANY))
    return replace(voxel_size(text.replace(ANY, "1"), named), free=free)


def differ(expected: VoxelSize, grid: Grid) -> bool:
    """Return whether a volume's voxels are not of the size that a network expects.

    Extents without a unit are compared as if they had the unit of the other side.

    Args:
        expected: the extents that the network expects.
        grid: the place of the volume's voxels.
    """
    there = [
        extent * _factor(unit, expected.unit)
        for extent, unit in zip(grid.scale, grid.units, strict=True)
    ]
    there_z, there_y, there_x = map(abs, there)
    wanted = expected.over((there_z, there_y, there_x)).extents
    return not np.allclose((there_z, there_y, there_x), wanted, rtol=TOLERANCE, atol=0.0)


def _factor(old: str | None, new: str | None) -> float:
    """Return the new units in an old one; 1 if one of them is unknown."""
    if old == new or old not in LENGTHS or new not in LENGTHS:
        return 1.0
    return LENGTHS[old] / LENGTHS[new]
