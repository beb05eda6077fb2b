"""Place and extents of voxels, as OME-TIFF, ImageJ and plain TIFF note them."""

from __future__ import annotations

from math import isclose
from typing import Any
from xml.etree import ElementTree

from znni.core.errors import option
from znni.core.volume import Grid
from znni.core.voxel_size import UNITS_BY_SYMBOL

# Micrometers in a unit of TIFF's tag ResolutionUnit; 1 means that there is none.
RESOLUTION_UNITS = {2: 25_400.0, 3: 10_000.0, 4: 1_000.0, 5: 1.0}
INCH = RESOLUTION_UNITS[2]
# Pixels per inch of screens and printers. Programs write them if they know no resolution.
USUAL = (72, 96, 150, 300)


def grid_of(file: Any, series: Any) -> Grid:
    """Return the grid of the voxels of a series of pages, as far as the file tells.

    Plain TIFF has no tag for the distance of planes; it is taken to be a pixel's width.
    """
    if file.is_ome:
        return of_ome(file.ome_metadata, file.series.index(series))
    if file.is_imagej:
        return _of_imagej(file.imagej_metadata, series)
    return _of_resolution(series)


def assumed_of(file: Any, series: Any, grid: Grid) -> str:
    """Return what a grid assumes beyond what the file tells; empty if nothing."""
    if file.is_ome or file.is_imagej or grid == Grid() or len(series.pages) < 2:
        return ""
    return assumed_distance(grid)


def assumed_distance(grid: Grid) -> str:
    """Return that planes are taken to be as far apart as pixels are wide."""
    z, y, x = (f"{extent:g}" for extent in grid.scale)
    example = option("voxel_size", f"{3 * grid.scale[2]:g},{y},{x}um")
    return (
        f"the file notes how wide pixels are, but not how far planes are apart; {z} micrometers "
        f"are assumed, the width of a pixel; if that is wrong, give the voxel size, as {example}"
    )


def of_ome(xml: str, index: int) -> Grid:
    """Return the grid that OME-TIFF's metadata has of one of its images."""
    images = ElementTree.fromstring(xml).findall("{*}Image/{*}Pixels")
    given = images[index].attrib if index < len(images) else {}
    extents = [given.get(f"PhysicalSize{axis}") for axis in "ZYX"]
    units = [given.get(f"PhysicalSize{axis}Unit", "µm") for axis in "ZYX"]
    z, y, x = (float(extent or 1.0) for extent in extents)
    first = images[index].find("{*}Plane") if index < len(images) else None
    places = {} if first is None else first.attrib
    z_at, y_at, x_at = (float(places.get(f"Position{axis}", 0.0)) for axis in "ZYX")
    z_unit, y_unit, x_unit = (
        UNITS_BY_SYMBOL.get(unit) if extent else None
        for extent, unit in zip(extents, units, strict=True)
    )
    return Grid((z, y, x), (z_at, y_at, x_at), (z_unit, y_unit, x_unit))


def _of_imagej(metadata: Any, series: Any) -> Grid:
    y, x = (_extent(series, name) or 1.0 for name in ("YResolution", "XResolution"))
    given = metadata.get("unit", "")
    in_inches = given == "inch"
    unit = "micrometer" if in_inches else UNITS_BY_SYMBOL.get(given)
    times = INCH if in_inches else 1.0
    scale = float(metadata.get("spacing", 1.0)) * times, y * times, x * times
    z_at, y_at, x_at = (
        -float(metadata.get(f"{axis}origin", 0)) * step
        for axis, step in zip("zyx", scale, strict=True)
    )
    return Grid(scale, (z_at + 0.0, y_at + 0.0, x_at + 0.0), (unit, unit, unit))


def _of_resolution(series: Any) -> Grid:
    tag = series.keyframe.tags.get("ResolutionUnit")
    unit = RESOLUTION_UNITS.get(int(tag.value)) if tag else None
    y, x = (_extent(series, name) for name in ("YResolution", "XResolution"))
    if not (unit and y and x) or _is_usual(y, unit) or _is_usual(x, unit):
        return Grid()
    y, x = y * unit, x * unit
    return Grid((x, y, x), units=("micrometer",) * 3)


def _extent(series: Any, name: str) -> float | None:
    """Return a pixel's extent by a tag that holds pixels per unit; None if the tag does not."""
    tag = series.keyframe.tags.get(name)
    pixels, units = tag.value if tag else (0, 0)
    return units / pixels if pixels and units else None


def _is_usual(extent: float, unit: float) -> bool:
    """Return whether a pixel has the extent of screens or printers, or is one unit wide."""
    in_an_inch = INCH / (extent * unit)
    return extent == 1 or any(isclose(in_an_inch, pixels, rel_tol=2e-3) for pixels in USUAL)
