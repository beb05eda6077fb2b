"""The header of a MetaImage file: lines of text, the last of which names the file of the values."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.voxel_size import UNITS_BY_SYMBOL
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
AXES = "xyzt"


class Header(NamedTuple):
    """The content of a header."""

    path: Path
    fields: dict[str, str]
    end: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents of the axes, the fastest first.

        Raises:
            ValueError: there are too few or too many.
        """
        sizes = extents(self._needed("DimSize"))
        if len(sizes) != int(self._needed("NDims")) or len(sizes) not in (2, 3, 4):
            raise ValueError(
                f"its DimSize is {self.fields['DimSize']}; two to four extents are expected"
            )
        return sizes

    @property
    def maps(self) -> int:
        """The number of values of a voxel."""
        return int(self.fields.get("ElementNumberOfChannels", 1))

    def values(self, *, fourth: str) -> ValuesInFile:
        """Return the place of the values.

        Args:
            fourth: the name of a fourth axis: c for maps or t for time.

        Raises:
            ValueError: the header has no such place, or one that znni does not read.
        """
        kind = self._needed("ElementType")
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
        axes, shape = (AXES[:3] + fourth)[: len(self.sizes)], self.sizes
        if self.maps > 1:
            axes, shape = f"c{axes}", (self.maps, *shape)
        name, path, start = self._needed(LAST), self.path, self.end
        if name.upper() != LOCAL:
            if name.startswith("LIST") or "%" in name:
                raise ValueError("its values are in several files; save them in one")
            path, start = beside(path, name), 0
        skipped = int(self.fields.get("HeaderSize", 0))
        packed = self._is_true("CompressedData", False)
        start = -1 if skipped == -1 and not packed else start + max(skipped, 0)
        return ValuesInFile(path, start, dtype, axes[::-1], shape[::-1], packed)

    def behind(self, values: ValuesInFile) -> int:
        """Return the place of the first byte behind the values, in the header's own file."""
        if values.file != self.path:
            return self.end
        return self.end + (
            int(self.fields.get("CompressedDataSize", 0)) if values.packed else values.nbytes
        )

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

    def _needed(self, name: str) -> str:
        if name not in self.fields:
            raise ValueError(f"it has no field {name!r}")
        return self.fields[name]

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


def read_header(path: Path) -> Header:
    """Read the header of a file."""
    fields = dict[str, str]()
    with path.open("rb") as file:
        while given := file.readline(LARGEST_HEADER - file.tell()):
            name, sign, value = given.decode(errors="replace").partition("=")
            if not sign or (not fields and name.strip() not in ("ObjectType", "NDims", "Comment")):
                break
            fields[name.strip()] = value.strip()
            if name.strip() == LAST:
                if fields.get("ObjectType", "Image") != "Image":
                    raise ValueError(f"its ObjectType is {fields['ObjectType']}, and no Image")
                return Header(path, fields, file.tell())
    raise ValueError(f"it has no header that ends with {LAST}")
