"""Writing NRRD files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from znni.core.volume import Grid
from znni.volumes.formats.nrrd import NAME
from znni.volumes.formats.nrrd.header import KEY, NAMES, PACKED, RAW, SYMBOLS, Header
from znni.volumes.grid_attributes import in_unit
from znni.volumes.orientation import steps_in_lps
from znni.volumes.parallel_gzip import gzipped
from znni.volumes.staged_output import Content
from znni.volumes.text_header_writer import LEVEL, TextHeaderWriter


class NrrdWriter(TextHeaderWriter):
    """Writes header and values in one file. If there are several maps, they are a list."""

    name = NAME
    ending = ".nrrd"
    types = tuple(NAMES)
    header_type = Header

    def header(self, content: Content, *, packed: bool) -> bytes:
        """Return what comes before the values."""
        wanted = content.wanted
        several = wanted.features > 1
        dtype = np.dtype(wanted.dtype)
        fields = {
            "type": NAMES[dtype.name][0],
            "dimension": str(3 + several),
            "sizes": " ".join(map(str, wanted.shape[:0:-1] + wanted.shape[: int(several)])),
            "kinds": "domain domain domain" + " list" * several,
            **_placed(wanted.grid, several=several),
            **({"endian": "little"} if dtype.itemsize > 1 else {}),
            "encoding": (PACKED if packed else RAW)[0],
        }
        lines = ["NRRD0005", *(f"{name}: {value}" for name, value in fields.items())]
        if notes := content.notes:
            escaped = notes.replace("\\", "\\\\")
            lines.append(f"{KEY}:={escaped}")
        return "\n".join([*lines, "", ""]).encode()

    def pack(self, pieces: Iterable[memoryview]) -> Iterator[bytes]:
        """Return the stream of compressed bytes."""
        return gzipped(pieces, LEVEL)


WRITER = NrrdWriter


def _placed(grid: Grid, *, several: bool) -> dict[str, str]:
    """Return the fields that say where the voxels lie.

    Without an affine, nothing says how the axes run in the space of a patient.
    """
    if grid == Grid():
        return {}
    if grid.affine is None:
        extents = [*map(repr, grid.scale[::-1]), *["nan"] * several]
        units = [*(SYMBOLS.get(unit or "", "") for unit in grid.units[::-1]), *[""] * several]
        return {"spacings": " ".join(extents), "units": " ".join(f'"{unit}"' for unit in units)}
    grid = in_unit(grid, "millimeter")
    steps, origin = steps_in_lps(grid)
    known = {"space units": '"mm" "mm" "mm"'} if grid.units[0] == "millimeter" else {}
    return {
        "space": "left-posterior-superior",
        "space directions": " ".join([*map(_vector, steps), *["none"] * several]),
        "space origin": _vector(origin),
        **known,
    }


def _vector(numbers: Iterable[float]) -> str:
    return f"({','.join(repr(float(number)) for number in numbers)})"
