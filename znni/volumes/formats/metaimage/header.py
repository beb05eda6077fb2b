"""The header of a MetaImage file: lines of text, the last of which names the file of the values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import Moment
from znni.core.volume import Grid
from znni.core.voxel_size import UNITS_BY_SYMBOL
from znni.volumes.grid_attributes import grid_of, in_unit
from znni.volumes.orientation import affine_from_lps, origin_of, steps_in_lps
from znni.volumes.text_header import TextHeader
from znni.volumes.values_in_file import LARGEST_HEADER, ValuesInFile, beside, extents

TYPES = {
    "MET_CHAR": "int8", "MET_UCHAR": "uint8", "MET_SHORT": "int16", "MET_USHORT": "uint16",
    "MET_INT": "int32", "MET_UINT": "uint32", "MET_LONG": "int32", "MET_ULONG": "uint32",
    "MET_LONG_LONG": "int64", "MET_ULONG_LONG": "uint64",
    "MET_FLOAT": "float32", "MET_DOUBLE": "float64",
}  # fmt: skip
LAST = "ElementDataFile"  # the field that ends the header
LOCAL = "LOCAL"  # its value if the values follow
UNKNOWN = "?"  # stands for a unit of length
# Fields that say the same under several names, the usual one first.
DIRECTIONS = ("TransformMatrix", "Rotation", "Orientation")
ORIGINS = ("Offset", "Position", "Origin")
ORDERS = ("BinaryDataByteOrderMSB", "ElementByteOrderMSB")
# The fields that say where the values are, and how they are compressed.
PLACES = (LAST, "HeaderSize", "CompressedData", "CompressedDataSize")
UNIT_LENGTH = 1e-3  # by which the length of a direction may differ from 1
NEAR = 1e-5  # share by which lengths in a header and in attributes may differ
MARK = b"\nznni:"  # behind the values, how an output was made begins like this


class Header(TextHeader):
    """The content of a header, whose fields are in order."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the header of a file."""
        fields = dict[str, str]()
        with path.open("rb") as file:
            while given := file.readline(LARGEST_HEADER - file.tell()):
                found, sign, value = given.decode(errors="replace").partition("=")
                name = found.strip()
                if not sign or (not fields and name not in ("ObjectType", "NDims", "Comment")):
                    break
                fields[name] = value.strip()
                if name == LAST:
                    if fields.get("ObjectType", "Image") != "Image":
                        raise ValueError(f"its ObjectType is {fields['ObjectType']}, and no Image")
                    return cls(path, fields, file.tell())
        raise ValueError(f"it has no header that ends with {LAST}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents of the axes, the fastest first."""
        sizes = extents(self.needed("DimSize"))
        if len(sizes) != int(self.needed("NDims")) or len(sizes) not in (2, 3, 4):
            raise ValueError(
                f"its DimSize is {self.fields['DimSize']}; two to four extents are expected"
            )
        return sizes

    @property
    def maps(self) -> int:
        """The number of values of a voxel."""
        return int(self.fields.get("ElementNumberOfChannels", 1))

    @property
    def moments(self) -> int:
        """The points in time."""
        return self.sizes[3] if self.maps > 1 and len(self.sizes) > 3 else 1

    def values(self, time: Moment | None = None) -> ValuesInFile:
        """Return the place of the values. A fourth axis is maps, unless the user says time."""
        kind = self.needed("ElementType")
        if kind.removesuffix("_ARRAY") not in TYPES:
            raise ValueError(f"its ElementType is {kind}; znni reads {', '.join(TYPES)}")
        if not self._is_true("BinaryData", True):
            raise ValueError("its values are text; save them as binary data")
        scaled = float(self.fields.get("ElementToIntensityFunctionSlope", 1)) != 1
        if scaled or float(self.fields.get("ElementToIntensityFunctionOffset", 0)):
            raise ValueError(
                "it has a slope or an offset of its values, which ITK does not apply; save the "
                "values that you want"
            )
        big = any(self._is_true(name, False) for name in ORDERS)
        dtype = np.dtype(TYPES[kind.removesuffix("_ARRAY")]).newbyteorder(">" if big else "<")
        fourth = "t" if time is not None or self.maps > 1 else "c"
        axes, shape = f"xyz{fourth}"[: len(self.sizes)], self.sizes
        if self.maps > 1:
            axes, shape = f"c{axes}", (self.maps, *shape)
        name, path, start = self.needed(LAST), self.path, self.end
        if name.upper() != LOCAL:
            if name.startswith("LIST") or "%" in name:
                raise ValueError("its values are in several files; save them in one")
            path, start = beside(path, name), 0
        skipped = int(self.fields.get("HeaderSize", 0))
        packed = self._is_true("CompressedData", False)
        start = -1 if skipped == -1 and not packed else start + max(skipped, 0)
        return ValuesInFile(path, start, dtype, axes[::-1], shape[::-1], packed)

    @property
    def stored(self) -> dict[str, Any]:
        """The account of how an output was made, which lies behind its values."""
        values, behind = self.values(), self.end
        if values.file == self.path:
            packed = int(self.fields.get("CompressedDataSize", 0))
            behind += packed if values.packed else values.nbytes
        with self.path.open("rb") as file:
            file.seek(behind)
            return dict(json.loads(file.read())) if file.read(len(MARK)) == MARK else {}

    def grid(self, attributes: dict[str, Any]) -> Grid:
        """Return the place of the voxels, given the attributes of an output.

        Every header has directions. Only the attributes of an output say that nobody knows these.
        """
        if not self.has_spacing:
            return Grid()
        noted = grid_of(attributes)
        if noted != Grid() and noted.affine is None and self._lies_at(noted):
            return noted
        x, y, z = map(abs, map(float, self.spacing))
        affine = affine_from_lps(self.steps, self.origin)
        return Grid((z, y, x), origin_of(affine, (z, y, x), attributes), (self.unit,) * 3, affine)

    def _lies_at(self, grid: Grid) -> bool:
        """Return whether the header has the steps and the origin of a grid."""
        steps, origin = steps_in_lps(in_unit(grid, "millimeter"))
        near = NEAR * np.abs(steps).max()
        same_steps = np.allclose(self.steps, steps, rtol=NEAR, atol=near)
        return same_steps and np.allclose(self.origin, origin, rtol=NEAR, atol=near)

    @property
    def steps(self) -> NDArray[np.float64]:
        """The way from a voxel to the next one in LPS (3, 3), or one voxel where there is no axis.

        Raises:
            ValueError: the directions have other lengths than 1.
        """
        count = len(self.sizes)
        given = self._numbers(DIRECTIONS, count * count) or tuple(np.eye(count).ravel().tolist())
        steps = np.eye(3)
        kept = min(count, 3)
        steps[:kept, :kept] = np.reshape(given, (count, count))[:kept, :kept]
        lengths = np.linalg.norm(steps, axis=1)
        if not np.allclose(lengths, 1, rtol=0, atol=UNIT_LENGTH):
            raise ValueError(
                f"the directions in its {DIRECTIONS[0]} have the lengths {lengths.tolist()}; 1 is "
                f"expected"
            )
        return steps * self.spacing[:, np.newaxis]

    @property
    def spacing(self) -> NDArray[np.float64]:
        """The distances of voxels along x, y and z. Those that a header does not have are 1."""
        given = self._numbers(("ElementSpacing", "ElementSize"), len(self.sizes)) or ()
        return np.array([*given, 1.0, 1.0, 1.0][:3])

    @property
    def has_spacing(self) -> bool:
        """True if the header says how far voxels lie apart."""
        return "ElementSpacing" in self.fields or "ElementSize" in self.fields

    @property
    def origin(self) -> NDArray[np.float64]:
        """The place of the first voxel in LPS."""
        given = self._numbers(ORIGINS, len(self.sizes)) or ()
        return np.array([*given, 0.0, 0.0, 0.0][:3])

    @property
    def unit(self) -> str | None:
        """The unit of length; millimetres, if none is given. None: it is not known."""
        return UNITS_BY_SYMBOL.get(self.fields.get("DistanceUnits", "mm"))

    @property
    def plain(self) -> bytes:
        """The header of a copy that is not compressed."""
        kept = {name: value for name, value in self.fields.items() if name not in PLACES}
        lines = [f"{name} = {value}\n" for name, value in {**kept, LAST: LOCAL}.items()]
        return "".join(lines).encode()

    def _is_true(self, name: str, otherwise: bool) -> bool:
        given = self.fields.get(name)
        return given[:1] in ("T", "t", "1") if given else otherwise

    def _numbers(self, names: tuple[str, ...], count: int) -> tuple[float, ...] | None:
        """Return the numbers of the first field that the header has; None if it has none."""
        name = next((name for name in names if name in self.fields), None)
        if name is None:
            return None
        found = tuple(map(float, self.fields[name].split()))
        if len(found) != count:
            raise ValueError(f"its {name} is {self.fields[name]}; {count} numbers are expected")
        return found
