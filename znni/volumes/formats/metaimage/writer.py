"""Writing MetaImage files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np

from znni.core.volume import Grid
from znni.volumes.formats.metaimage import NAME
from znni.volumes.formats.metaimage.header import LAST, LOCAL, MARK, TYPES, UNKNOWN, Header
from znni.volumes.grid_attributes import in_unit
from znni.volumes.orientation import steps_in_lps
from znni.volumes.parallel_gzip import zlibbed
from znni.volumes.staged_output import Content
from znni.volumes.text_header_writer import LEVEL, TextHeaderWriter

NAMES = {dtype: name for name, dtype in reversed(TYPES.items())}  # the first name of each type
GAP = " " * 20  # for the bytes of compressed values, which are known when they are written


class MetaImageWriter(TextHeaderWriter):
    """Writes header and values in one file. If there are several maps, they are a fourth axis."""

    name = NAME
    ending = ".mha"
    types = tuple(NAMES)
    header_type = Header

    def header(self, content: Content, *, packed: bool) -> bytes:
        """Return what comes before the values. It has a gap for the bytes of compressed values."""
        wanted = content.wanted
        sizes = [*wanted.size[::-1], *[wanted.features] * (wanted.features > 1)]
        fields = {
            "ObjectType": "Image",
            "NDims": len(sizes),
            "BinaryData": True,
            "BinaryDataByteOrderMSB": False,
            "CompressedData": packed,
            **({"CompressedDataSize": GAP} if packed else {}),
            **_placed(wanted.grid, len(sizes)),
            "DimSize": " ".join(map(str, sizes)),
            "ElementType": NAMES[np.dtype(wanted.dtype).name],
            LAST: LOCAL,
        }
        return "".join(f"{name} = {value}\n" for name, value in fields.items()).encode()

    def write_rest(self, file: IO[bytes], content: Content, packed: int | None) -> None:
        """Write how the values were made, and how many bytes they take."""
        if notes := content.notes:
            file.write(MARK + notes.encode())
        if packed is not None:
            file.seek(self.header(content, packed=True).index(GAP.encode()))
            file.write(f"{packed:{len(GAP)}d}".encode())

    def pack(self, pieces: Iterable[memoryview]) -> Iterator[bytes]:
        """Return the stream of compressed bytes."""
        return zlibbed(pieces, LEVEL)


WRITER = MetaImageWriter


def _placed(grid: Grid, axes: int) -> dict[str, str]:
    """Return the fields that say where the voxels lie."""
    if grid == Grid():
        return {}
    grid = in_unit(grid, "millimeter")
    steps, origin = steps_in_lps(grid)
    spacing = np.ones(axes)
    spacing[:3] = grid.scale[::-1]
    directions, place = np.eye(axes), np.zeros(axes)
    directions[:3, :3] = steps / np.linalg.norm(steps, axis=1, keepdims=True)
    place[:3] = origin
    known = set(grid.units) == {"millimeter"}
    return {
        "TransformMatrix": _text(directions.ravel()),
        "Offset": _text(place),
        "ElementSpacing": _text(spacing),
        **({} if known else {"DistanceUnits": UNKNOWN}),
    }


def _text(numbers: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    return " ".join(f"{number:.17g}" for number in numbers + 0.0)
