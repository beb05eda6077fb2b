"""Volumes in TIFF stacks: plain, of ImageJ, OME-TIFF and what else tifffile knows."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

from znni.core.errors import InvalidInput
from znni.core.volume import Grid
from znni.volumes.formats import Format, library
from znni.volumes.named_axes import NamedAxes
from znni.volumes.stored import StoredVolume, local_file, reason

NAME = "TIFF"
STACKED = "IQRH"  # what tifffile calls axes of pages that nothing says more of
SAMPLES = "S"  # and the colours of a pixel
UNITS = {  # by the names that OME-TIFF and ImageJ have for them
    **{"nm": "nanometer", "mm": "millimeter", "cm": "centimeter", "m": "meter"},
    **dict.fromkeys(("um", "µm", "\u03bcm", "\\u00B5m", "micron", "microns"), "micrometer"),
}


def open_tiff(place: str, dataset: str | None) -> StoredVolume:
    """The series of pages in a file: the one whose number is given, or the only one.

    Pages that are stacked along an axis without a name are z; colours are maps.

    Raises:
        InvalidInput: no such file or series, none of TIFF, damaged, of several volumes, or
            compressed by a codec that is not there.
    """
    zarr = library("zarr", "tiff")
    file = _open(place)
    try:
        series = _series(file, place, dataset)
        _check_codec(series, place)
        name = f"{place}:{dataset}" if dataset else place
        array = zarr.open_array(series.aszarr(level=0), mode="r")
        volume = StoredVolume(NamedAxes(array, _axes(series.axes), name), name, _grid(file, series))
    except BaseException:
        file.close()
        raise
    weakref.finalize(volume, file.close)
    return volume


def describe_tiff(place: str, dataset: str | None) -> str:
    """The series of a file with their axes, shapes, types and extents of a voxel."""
    with _open(place) as file:
        chosen = [_series(file, place, dataset)] if dataset else file.series
        lines = [f"  {_told(file, series)}, {_grid(file, series)}" for series in chosen]
    return "\n".join([place, *lines])


def _open(place: str) -> Any:
    tifffile = library("tifffile", "tiff")
    path = local_file(place, NAME)
    file: Any = None
    complaints: list[str] = []
    try:
        with _complaints(complaints):
            file = tifffile.TiffFile(path)
            if not len(file.series):
                complaints.append("it has no pages")
    except Exception as error:  # of whatever is in the place of its numbers
        complaints.append(reason(error))
    if complaints:
        if file is not None:
            file.close()
        raise InvalidInput(
            f"{place}: cannot be read as TIFF: {complaints[0]}; give a file that is whole"
        )
    return file


@contextmanager
def _complaints(found: list[str]) -> Iterator[None]:
    """Keep what tifffile logs of a damaged file, of which it reads what is left."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    log, handler = logging.getLogger("tifffile"), Keep(logging.ERROR)
    log.addHandler(handler)
    propagate, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagate


def _series(file: Any, place: str, dataset: str | None) -> Any:
    told = ", ".join(_told(file, series) for series in file.series)
    if dataset is None and len(file.series) > 1:
        raise InvalidInput(f"{place}: has several series of pages: {told}; name one, as {place}:/0")
    number = (dataset or "0").strip("/")
    if not number.isdecimal() or int(number) >= len(file.series):
        raise InvalidInput(f"{place}: has no dataset {dataset!r}; it has {told}")
    return file.series[int(number)]


def _check_codec(series: Any, place: str) -> None:
    compression = series.keyframe.compression
    try:
        library("tifffile", "tiff").TIFF.DECOMPRESSORS[compression]
    except KeyError:
        raise InvalidInput(
            f"{place}: is compressed by {compression.name}, which needs a library that is not "
            f"here; pip install imagecodecs, or save it with deflate or without compression"
        ) from None


def _told(file: Any, series: Any) -> str:
    return f"{file.series.index(series)} {series.axes} {series.shape} {series.dtype}"


def _axes(letters: str) -> list[str]:
    """Axes as volumes have them, from tifffile's letters."""
    axes = [letter.lower() for letter in letters]
    for letter, axis in [(stacked, "z") for stacked in STACKED] + [(SAMPLES, "c")]:
        if axis not in axes and letter in letters:
            axes[letters.index(letter)] = axis
    return axes


def _grid(file: Any, series: Any) -> Grid:
    """Where voxels lie, as OME-TIFF and ImageJ note it."""
    if file.is_ome:
        return _ome_grid(file.ome_metadata, file.series.index(series))
    if not file.is_imagej:
        return Grid()
    tags = series.keyframe.tags
    y, x = (tags[name].value if name in tags else (1, 1) for name in ("YResolution", "XResolution"))
    spacing = float(file.imagej_metadata.get("spacing", 1.0))
    unit = UNITS.get(file.imagej_metadata.get("unit", ""))
    return Grid((spacing, y[1] / (y[0] or 1), x[1] / (x[0] or 1)), units=(unit, unit, unit))


def _ome_grid(xml: str, index: int) -> Grid:
    images = ElementTree.fromstring(xml).findall("{*}Image/{*}Pixels")
    given = images[index].attrib if index < len(images) else {}
    extents = [given.get(f"PhysicalSize{axis}") for axis in "ZYX"]
    units = [given.get(f"PhysicalSize{axis}Unit", "µm") for axis in "ZYX"]
    z, y, x = (float(extent or 1.0) for extent in extents)
    z_unit, y_unit, x_unit = (
        UNITS.get(unit) if extent else None for extent, unit in zip(extents, units, strict=True)
    )
    return Grid((z, y, x), units=(z_unit, y_unit, x_unit))


FORMAT = Format(NAME, (".tif", ".tiff"), open_tiff, describe_tiff)
