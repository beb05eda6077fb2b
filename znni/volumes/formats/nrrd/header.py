"""The header of an NRRD file: lines of text with fields, and with keys of other programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import Moment
from znni.core.volume import Grid
from znni.core.voxel_size import UNITS_BY_SYMBOL
from znni.volumes.grid_attributes import grid_of
from znni.volumes.orientation import FLIPPED, affine_from_lps, origin_of
from znni.volumes.text_header import TextHeader
from znni.volumes.values_in_file import LARGEST_HEADER, ValuesInFile, beside, extents

KEY = "znni"  # under which an output notes how it was made

# The names of each type.
NAMES = {
    "int8": ("signed char", "int8", "int8_t"),
    "uint8": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "int16": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "uint16": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "int32": ("int", "signed int", "int32", "int32_t"),
    "uint32": ("uint", "unsigned int", "uint32", "uint32_t"),
    "int64": ("longlong", "long long", "long long int", "signed long long",
              "signed long long int", "int64", "int64_t"),
    "uint64": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "float32": ("float",),
    "float64": ("double",),
}  # fmt: skip
TYPES = {name: dtype for dtype, names in NAMES.items() for name in names}

# The factors that turn the axes of a space to those of LPS.
SPACES = {
    **dict.fromkeys(("left-posterior-superior", "lps"), np.ones(3)),
    **dict.fromkeys(("right-anterior-superior", "ras"), FLIPPED),
    **dict.fromkeys(("left-anterior-superior", "las"), np.array([1.0, -1.0, 1.0])),
}
SYMBOLS = {unit: symbol for symbol, unit in reversed(UNITS_BY_SYMBOL.items())}
RAW, PACKED = ("raw",), ("gzip", "gz")
VECTORS = re.compile(r"none|\([^)]*\)")
LINE = re.compile(r"([^:]+):([= ])\s*(.*)")
IN_SPACE = ("domain", "space", "???", "none")  # kinds of axes along which voxels lie
# Names of fields without the spaces between words; ``PLACES`` say where the values are.
DIRECTIONS = "spacedirections"
PLACES = ("encoding", "datafile", "lineskip", "byteskip")

Value = TypeVar("Value")


@dataclass(frozen=True)
class Header(TextHeader):
    """The content of a header. The names of its fields have no spaces here.

    Attributes:
        lines: its lines, without the empty one at the end.
        keys: what other programs note, by name.
    """

    lines: tuple[str, ...]
    keys: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the header of a file."""
        lines, fields, keys = list[str](), dict[str, str](), dict[str, str]()
        with path.open("rb") as file:
            if not re.fullmatch(rb"NRRD\d{4}\s*", first := file.readline(16)):
                raise ValueError("it does not begin with NRRD and a version")
            lines.append(first.decode().strip())
            while given := file.readline(LARGEST_HEADER - file.tell()):
                line = given.decode(errors="replace").rstrip("\r\n")
                if not line:
                    break
                lines.append(line)
                if line.startswith("#"):
                    continue
                if not (match := LINE.fullmatch(line)):
                    raise ValueError(f"its line {line[:80]!r} is no field")
                if match[2] == "=":
                    keys[match[1]] = match[3]
                else:
                    fields[_name(line)] = match[3].strip()
            return cls(path, fields, file.tell(), tuple(lines), keys)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents of the axes, the fastest first."""
        return extents(self.needed("sizes"))

    @property
    def moments(self) -> int:
        """The points in time."""
        return dict(zip(self.axes, self.sizes, strict=True)).get("t", 1)

    @property
    def stored(self) -> dict[str, Any]:
        """The account of how an output was made."""
        try:
            return dict(json.loads(self.keys.get(KEY, "{}").replace("\\\\", "\\")))
        except ValueError:  # a key of another program
            return {}

    def grid(self, attributes: dict[str, Any]) -> Grid:
        """Return the place of the voxels, given the attributes of an output."""
        steps = self.steps
        if steps is None:
            known = self.spacings
            z, y, x = (known.get(axis, 1.0) for axis in "zyx")
            if (z, y, x) == (1.0, 1.0, 1.0) and not known:
                return Grid()
            return Grid((z, y, x), grid_of(attributes).translation, self.units)
        x, y, z = (float(np.sqrt(np.square(step).sum())) for step in steps)
        affine = affine_from_lps(steps, self.origin)
        return Grid((z, y, x), origin_of(affine, (z, y, x), attributes), self.units, affine)

    def values(self, time: Moment | None = None) -> ValuesInFile:  # noqa: ARG002
        """Return the place of the values."""
        dtype = np.dtype(_known(self.needed("type").lower(), TYPES, "type"))
        if dtype.itemsize > 1:
            endian = self.needed("endian").lower()
            dtype = dtype.newbyteorder(_known(endian, {"little": "<", "big": ">"}, "endian"))
        packed = _known(
            self.needed("encoding").lower(),
            dict.fromkeys(RAW, False) | dict.fromkeys(PACKED, True),
            "encoding",
        )
        name, path, start = self.fields.get("datafile"), self.path, self.end
        if name:
            path, start = beside(path, name), 0
        with path.open("rb") as file:
            file.seek(start)
            for _ in range(int(self.fields.get("lineskip", 0))):
                file.readline(LARGEST_HEADER)
            start = file.tell()
        skipped = int(self.fields.get("byteskip", 0))
        if packed and skipped:
            raise ValueError("it has a byte skip within compressed values; save it without")
        start = -1 if skipped == -1 else start + skipped
        return ValuesInFile(path, start, dtype, self.axes[::-1], self.sizes[::-1], packed)

    @property
    def axes(self) -> str:
        """The names of the axes, the fastest first: x, y and z, and c for maps or t for time."""
        count = len(self.sizes)
        directed = [each != "none" for each in VECTORS.findall(self.fields.get(DIRECTIONS, ""))]
        usual = ["domain" if has else "vector" for has in directed] or ["domain"] * count
        kinds = self.fields.get("kinds", " ".join(usual)).lower().split()
        in_space = [kind in IN_SPACE for kind in kinds]
        domains = sum(in_space)
        if len(kinds) != count or domains not in (2, 3) or count - domains > 2:
            raise ValueError(
                f"it has {count} axes of kinds {' '.join(kinds)}; two or three domains are expected"
            )
        if directed and directed != in_space:
            raise ValueError(
                f"it has kinds {' '.join(kinds)}, and space directions of other axes; a direction "
                f"of each domain is expected"
            )
        names = iter("xyz")
        return "".join(
            next(names) if inside else "t" if kind == "time" else "c"
            for inside, kind in zip(in_space, kinds, strict=True)
        )

    @property
    def steps(self) -> NDArray[np.float64] | None:
        """The way from a voxel to the next one in LPS (3, 3); None if the header has no space.

        Raises:
            ValueError: the space is none of a patient, or a direction is missing.
        """
        vectors = list(VECTORS.findall(self.fields.get(DIRECTIONS, "")))
        if not vectors:
            return None
        steps = [_vector(each) for each in vectors if each != "none"]
        if len(steps) != 3 or any(len(step) != 3 for step in steps):
            raise ValueError(f"its space directions are {' '.join(vectors)}; three are expected")
        return np.array(steps) * self._factors

    @property
    def origin(self) -> NDArray[np.float64]:
        """The place of the first voxel in LPS."""
        given = self.fields.get("spaceorigin")
        return np.array(_vector(given) if given else (0.0, 0.0, 0.0)) * self._factors

    @property
    def _factors(self) -> NDArray[np.float64]:
        space = self.fields.get("space", "not named").lower()
        if space not in SPACES:
            raise ValueError(
                f"its space is {space}, whose axes may run anywhere; save it in "
                f"left-posterior-superior"
            )
        return SPACES[space]

    @property
    def spacings(self) -> dict[str, float]:
        """The distance of voxels along each axis by its name, as far as the header has it."""
        if "axismins" in self.fields:
            raise ValueError(
                "it has axis mins, which programs understand differently; save it with space "
                "directions and a space origin"
            )
        given = self.fields.get("spacings", "").split()
        found = dict(zip(self.axes, map(float, given), strict=True)) if given else {}
        return {axis: abs(spacing) for axis, spacing in found.items() if np.isfinite(spacing)}

    @property
    def units(self) -> tuple[str | None, str | None, str | None]:
        """The units of length along z, y and x; millimetres in space, if no others are given."""
        if "space" in self.fields and "spaceunits" not in self.fields:
            return ("millimeter",) * 3
        given = self.fields.get("spaceunits", self.fields.get("units", ""))
        symbols = re.findall(r'"([^"]*)"', given)
        axes = "xyz" if "spaceunits" in self.fields else self.axes
        named = dict(zip(axes, symbols, strict=bool(symbols)))
        z, y, x = (UNITS_BY_SYMBOL.get(named.get(axis, "")) for axis in "zyx")
        return z, y, x

    @property
    def plain(self) -> bytes:
        """The header of a copy that is not compressed."""
        kept = [line for line in self.lines if _name(line) not in PLACES]
        return "\n".join([*kept, f"encoding: {RAW[0]}", "", ""]).encode()


def _name(line: str) -> str:
    """Return the name of a line's field, without spaces."""
    return line.partition(":")[0].lower().replace(" ", "")


def _known(given: str, names: Mapping[str, Value], what: str) -> Value:
    if given not in names:
        raise ValueError(f"its {what} is {given!r}; znni reads {', '.join(names)}")
    return names[given]


def _vector(text: str) -> Sequence[float]:
    return [float(number) for number in text.strip("() ").split(",")]
