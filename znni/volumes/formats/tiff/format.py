"""Reading volumes in TIFF stacks: plain TIFF, ImageJ, OME-TIFF and all else that tifffile knows."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any
from xml.etree import ElementTree

from znni.core.errors import InvalidInput
from znni.core.option_types import Codec, Form, Moment
from znni.core.shapes import Vec3
from znni.volumes.formats import Functions, described, library
from znni.volumes.formats.tiff import NAME
from znni.volumes.formats.tiff.grids import assumed_of, grid_of
from znni.volumes.formats.zarr.chunk_reader import ChunkedZarr
from znni.volumes.formats.zarr.pyramid import coarser_grid
from znni.volumes.grid_attributes import with_affine
from znni.volumes.mapped_array import MappedArray
from znni.volumes.named_axes import NamedAxes
from znni.volumes.stored import StoredVolume, local_file, reason

ATTRIBUTES = 65107  # a private tag with an output's attributes as JSON
STACKED = "IQRH"  # tifffile's letters for axes of pages without a known meaning
SAMPLES = "S"  # tifffile's letter for the colours of a pixel
NOT_COMPRESSED = 1  # the number of this kind of compression


def open_tiff(place: str, dataset: str | None, time: Moment | None = None) -> StoredVolume:
    """Open a series of pages in a file: the one with the given number, or the only one.

    Pages stacked along an unnamed axis become z; colours become maps.

    Raises:
        InvalidInput: there is no such file or series, the file is not TIFF or is damaged, it has
            several volumes, or its codec is not installed.
    """
    return _open_level(place, dataset, time, 0)


def _open_level(place: str, dataset: str | None, time: Moment | None, index: int) -> StoredVolume:
    """Open one resolution of a series; 0 is the finest."""
    file = opened(place)
    try:
        series = _series(file, place, dataset)
        check_codec(series, place)
        name = _name(place, dataset)
        level, count = series.levels[index], len(series.levels)
        array, axes = values_of(series, index, place), _axes(level.axes)
        channels = _channels(file, series)
        named = NamedAxes(array, axes, name, time, channels)
        attributes = stored_in(file).get("attributes", {})
        grid = with_affine(grid_of(file, series), attributes)
        assumed = assumed_of(file, series, grid)
        if index:
            grid = coarser_grid(grid, _factor(series, level))
            volume = StoredVolume(named, f"{name} at resolution {index}", grid, attributes)
        else:
            others = range(1, count)
            volume = StoredVolume(
                named,
                name,
                grid,
                attributes,
                lambda: [_open_level(place, dataset, time, other) for other in others],
                chunks_of(array, level.keyframe),
                array.chunk_bytes if isinstance(array, ChunkedZarr) else 0,
            )
        volume.assumed = assumed
    except BaseException:
        file.close()
        raise
    if isinstance(array, MappedArray):  # it needs the file no more
        file.close()
    else:
        weakref.finalize(volume, file.close)
    return volume


def _name(place: str, dataset: str | None) -> str:
    return f"{place}:{dataset}" if dataset else place


def _factor(series: Any, level: Any) -> Vec3:
    """Return the extents of a coarser resolution's voxel, in voxels of the finest."""
    finest = dict(zip(_axes(series.axes), series.shape, strict=True))
    coarse = dict(zip(_axes(level.axes), level.shape, strict=True))
    return Vec3(*(round(finest.get(axis, 1) / coarse.get(axis, 1)) for axis in "zyx"))


def describe_tiff(place: str, dataset: str | None) -> str:
    """Describe the series of a file: axes, shape, type, voxels, and how outputs were made."""
    with opened(place) as file:
        chosen = [_series(file, place, dataset)] if dataset else file.series
        lines = [f"  {_described(file, series)}, {grid_of(file, series)}" for series in chosen]
        lines += described(stored_in(file).get("attributes", {}))
    return "\n".join([place, *lines])


def opened(place: str, **forms: bool) -> Any:
    """Return tifffile's object of a file.

    Args:
        place: the file.
        forms: forms of TIFF that it has not, as ``is_ome=False``.

    Raises:
        InvalidInput: the file is damaged, or is no TIFF.
    """
    tifffile = library("tifffile", "tiff")
    path = local_file(place, NAME)
    file: Any = None
    complaints: list[str] = []
    try:
        with _complaints(complaints):
            file = tifffile.TiffFile(path, **forms)
            if not len(file.series):
                complaints.append("it has no pages")
    except Exception as error:  # tifffile raises whatever damaged numbers lead to
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
    """Collect what tifffile logs about a damaged file; it goes on to read the rest.

    Other threads may open files at the same time, so only what this one logs is collected.
    """
    here = get_ident()

    def keep(record: logging.LogRecord) -> bool:
        if record.thread != here:
            return True
        if record.levelno >= logging.ERROR:
            found.append(record.getMessage())
        return False  # nobody else is told

    log = logging.getLogger("tifffile")
    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)


def _series(file: Any, place: str, dataset: str | None) -> Any:
    number = (dataset or "0").strip("/")
    is_one_of_them = number.isdecimal() and int(number) < len(file.series)
    if is_one_of_them and (dataset is not None or len(file.series) == 1):
        return file.series[int(number)]
    listed = ", ".join(_described(file, series) for series in file.series)
    if dataset is None and len(file.series) > 1:
        raise InvalidInput(
            f"{place}: has several series of pages: {listed}; name one, as {place}:/0"
        )
    raise InvalidInput(f"{place}: has no dataset {dataset!r}; it has {listed}")


def check_codec(series: Any, place: str) -> None:
    """Refuse a series whose codec is not installed."""
    compression = series.keyframe.compression
    try:
        library("tifffile", "tiff").TIFF.DECOMPRESSORS[compression]
    except KeyError:
        raise InvalidInput(
            f"{place}: is compressed by {compression.name}, which needs a library that is not "
            f"installed; pip install imagecodecs, or save it with deflate or without compression"
        ) from None


def values_of(series: Any, index: int, place: str) -> ChunkedZarr | MappedArray:
    """Return the array of a resolution: mapped if it lies in one piece, else read page by page."""
    level = series.levels[index]
    if level.dataoffset is None or level.is_multifile:
        return ChunkedZarr(library("zarr", "tiff").open_array(series.aszarr(level=index), mode="r"))
    holder = level.keyframe.parent  # another file than the opened one, if the set has several
    dtype = level.dtype.newbyteorder(holder.byteorder)
    try:
        return MappedArray(holder.filehandle.path, dtype, level.dataoffset, level.shape)
    except ValueError as error:
        cut = Path(place).with_name(holder.filehandle.name)
        raise InvalidInput(
            f"{cut}: cannot be read as TIFF: {error}; give a file that is whole"
        ) from None


def chunks_of(
    array: ChunkedZarr | MappedArray, page: Any
) -> tuple[Form, Codec | None, tuple[int, ...]]:
    """Return what reads the chunks of an array, their codec, and their extents."""
    if isinstance(array, MappedArray):
        return "mapped", None, array.row
    return "zarr", None if page.compression == NOT_COMPRESSED else "deflate", page.chunks[:2]


def _described(file: Any, series: Any) -> str:
    return f"{file.series.index(series)} {series.axes} {series.shape} {series.dtype}"


def _axes(letters: str) -> list[str]:
    """Return the axes of a volume for tifffile's letters."""
    axes = [letter.lower() for letter in letters]
    for letter, axis in [(stacked, "z") for stacked in STACKED] + [(SAMPLES, "c")]:
        if axis not in axes and letter in letters:
            axes[letters.index(letter)] = axis
    return axes


def _channels(file: Any, series: Any) -> tuple[str, ...]:
    """Return the names of the channels that OME-TIFF notes; none if one of them has no name."""
    if not file.is_ome:
        return ()
    images = ElementTree.fromstring(file.ome_metadata).findall("{*}Image/{*}Pixels")
    index = file.series.index(series)
    found = images[index].findall("{*}Channel") if index < len(images) else []
    names = tuple(channel.get("Name", "") for channel in found)
    return names if all(names) else ()


def stored_in(file: Any) -> dict[str, Any]:
    """Return how an output was made, as it says in a tag of its first page."""
    tag = file.pages[0].tags.get(ATTRIBUTES)
    try:
        return dict(json.loads(tag.value)) if tag else {}
    except (TypeError, ValueError):  # a tag of another program
        return {}


def files_of_tiff(place: str) -> list[Path]:
    """Return the files of a volume. Those of OME-TIFF may be a set."""
    with opened(place) as file:
        others = {
            Path(page.parent.filehandle.path)
            for series in (file.series if file.is_ome else ())
            for page in (series.pages if series.is_multifile else [series.keyframe])
            if page is not None
        }
    first = Path(place)
    return [first, *sorted(other for other in others if other.name != first.name)]


FUNCTIONS = Functions(open_tiff, describe_tiff, files=files_of_tiff)
