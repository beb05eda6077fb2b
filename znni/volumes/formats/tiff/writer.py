"""Writing OME-TIFF files."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.option_types import Packing
from znni.core.shapes import round_up
from znni.core.volume import Grid, NewOutput
from znni.volumes.formats import check_plain, library
from znni.volumes.formats.tiff import NAME
from znni.volumes.formats.tiff.coarser_planes import TILE, CoarserPlanes
from znni.volumes.formats.tiff.format import ATTRIBUTES, opened, stored_in
from znni.volumes.staged_output import Content, StagedWriter

TYPES = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "float32", "float64")
BIG = 2**32 - 2**25  # bytes of a file above which offsets of 64 bits are needed
OME_UNITS = {
    **{"nanometer": "nm", "millimeter": "mm", "centimeter": "cm", "meter": "m"},
    **{"angstrom": "Å", "micrometer": "µm"},
}
TILE_STEP = 16  # pixels: TIFF's tiles have a multiple of them along each axis
PAGE_ENTRY, TILE_ENTRY = 1024, 8  # bytes, at most, of a page and of a tile beside the values
LEVEL = 1  # of deflate


class TiffWriter(StagedWriter):
    """Writes OME-TIFF files."""

    def check(self, wanted: NewOutput) -> None:
        """Refuse an output that TIFF cannot hold.

        Raises:
            InvalidInput: its type, or an option that has no meaning for it.
        """
        library("tifffile", "tiff")
        if np.dtype(wanted.dtype).name not in TYPES:
            raise InvalidInput(
                f"{self.place}: OME-TIFF has no {wanted.dtype}; give {option('dtype', 'float32')} "
                f"or another of {', '.join(TYPES)}, or write to a name that ends in .zarr or .h5"
            )
        if wanted.compression != "zstd":
            check_plain(self.place, replace(wanted, compression=None, pyramid=None), NAME)
        else:
            raise InvalidInput(
                f"{self.place}: few programs read {NAME} compressed by zstd; give "
                f"{option('compression', 'gzip')} or none"
            )

    def save(self, file: IO[bytes], content: Content) -> None:
        """Write an OME-TIFF of axes (c, z, y, x) in tiles, as a BigTIFF where it is large.

        The tiles of a small plane are no larger than it, up to ``TILE_STEP``.

        Integers are compressed by deflate unless the output says otherwise, floats are not. Coarser
        resolutions are sub-images (SubIFDs) of the planes, where viewers look for them.
        """
        wanted = content.wanted
        tifffile = library("tifffile", "tiff")
        packed = {"compression": "zlib", "compressionargs": {"level": LEVEL}}
        notes = content.notes
        tags = [(ATTRIBUTES, 2, 0, notes, True)] if notes else []  # 2: a text
        stored = {
            "dtype": np.dtype(wanted.dtype),
            "photometric": "minisblack",
            **(packed if self.packing(wanted) == "deflate" else {}),
        }
        with (
            closing(CoarserPlanes(wanted, Path(file.name).parent)) as coarser,
            tifffile.TiffWriter(
                file, bigtiff=_is_big(wanted, coarser.shapes), ome=True, byteorder="<"
            ) as writer,
        ):
            tile = _tile_of(wanted.shape)
            with closing(_tiles(coarser.passing(content.planes()), tile)) as tiles:
                writer.write(
                    tiles,
                    shape=wanted.shape,
                    tile=tile,
                    subifds=len(coarser.shapes),
                    metadata=_metadata(PurePosixPath(self.place).name, wanted),
                    extratags=tags,
                    **stored,
                )
            for level, shape in enumerate(coarser.shapes):
                tile = _tile_of(shape)
                tiles = _tiles(coarser.of(level), tile)
                writer.write(tiles, shape=shape, tile=tile, subfiletype=1, metadata=None, **stored)

    def packing(self, wanted: NewOutput) -> Packing:
        """Return how tiles are compressed."""
        is_float = np.dtype(wanted.dtype).kind == "f"
        compression = wanted.compression or ("none" if is_float else "gzip")
        return "none" if compression == "none" else "deflate"

    def kept_ledger(self) -> bytes:
        """Return the ledger in a whole output."""
        with opened(self.place) as file:
            return str(stored_in(file).get("ledger", "")).encode()


WRITER = TiffWriter


def _is_big(wanted: NewOutput, coarser: Iterable[tuple[int, ...]]) -> bool:
    """Return whether whole tiles and the entries of all pages may need 64-bit places."""
    itemsize, size = np.dtype(wanted.dtype).itemsize, 0
    for shape in (wanted.shape, *coarser):
        maps, planes, height, width = shape
        rows, columns = _tile_of(shape)
        tiles = -(-height // rows) * -(-width // columns)
        page = tiles * (rows * columns * itemsize + TILE_ENTRY) + PAGE_ENTRY
        size += maps * planes * page
    return size > BIG


def _tile_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the extents (y, x) of the tiles of an array (c, z, y, x)."""
    height, width = (min(TILE, round_up(extent, TILE_STEP)) for extent in shape[-2:])
    return height, width


def _tiles(
    planes: Generator[NDArray[np.generic], None, None], extents: tuple[int, int]
) -> Generator[NDArray[np.generic], None, None]:
    """Yield the tiles of all planes; those at the edges are filled up with zeros."""
    rows, columns = extents
    with closing(planes):
        for plane in planes:
            for y in range(0, plane.shape[0], rows):
                for x in range(0, plane.shape[1], columns):
                    part = plane[y : y + rows, x : x + columns]
                    tile = np.zeros(extents, plane.dtype)
                    tile[: part.shape[0], : part.shape[1]] = part
                    yield tile


def _metadata(name: str, wanted: NewOutput) -> dict[str, Any]:
    """Return what tifffile writes as OME-XML. The same output always has the same number."""
    grid = wanted.grid
    described = f"{name} {wanted.shape} {wanted.dtype} {grid} {wanted.maps}"
    said: dict[str, Any] = {
        "axes": "CZYX",
        "Name": name,
        "Creator": "znni",
        "UUID": str(uuid5(NAMESPACE_URL, described)),
    }
    if wanted.maps:
        said["Channel"] = {"Name": list(wanted.maps)}
    if grid.scale != (1.0, 1.0, 1.0) or any(grid.units):
        for axis, extent, unit in zip("ZYX", grid.scale, grid.units, strict=True):
            said[f"PhysicalSize{axis}"] = extent
            if unit in OME_UNITS:
                said[f"PhysicalSize{axis}Unit"] = OME_UNITS[unit]
            elif unit is None:
                said[f"PhysicalSize{axis}Unit"] = "pixel"
    return said | {"Plane": _positions(grid, wanted)} if any(grid.translation) else said


def _positions(grid: Grid, wanted: NewOutput) -> dict[str, list[Any]]:
    """Return where each plane lies."""
    count = wanted.features * wanted.size.z
    z, y, x = grid.translation
    at_z = [z + index % wanted.size.z * grid.scale[0] for index in range(count)]
    positions: dict[str, list[Any]] = {
        "PositionZ": at_z,
        "PositionY": [y] * count,
        "PositionX": [x] * count,
    }
    for axis, unit in zip("ZYX", grid.units, strict=True):
        name = OME_UNITS.get(unit or "", "reference frame")
        positions[f"Position{axis}Unit"] = [name] * count
    return positions
