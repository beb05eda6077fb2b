"""The values of formats that have a header of text, in the same file or in another one."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from znni.core.option_types import Moment
from znni.core.volume import Grid
from znni.volumes.mapped_array import MappedArray
from znni.volumes.named_axes import NamedAxes
from znni.volumes.packed_array import PackedArray
from znni.volumes.stored import StoredVolume, decompressed

LARGEST_HEADER = 2**26  # bytes; a longer one is of another kind of file


class ValuesInFile(NamedTuple):
    """The place and the form of an image's values.

    Attributes:
        file: the file that holds them.
        offset: the place of the first byte; -1: the values are the last bytes of the file.
        dtype: the type of the values.
        axes: the names of the axes, the slowest first.
        shape: the extents along these axes.
        packed: whether they are compressed.
    """

    file: Path
    offset: int
    dtype: np.dtype[Any]
    axes: str
    shape: tuple[int, ...]
    packed: bool

    @property
    def nbytes(self) -> int:
        """The bytes of the values, without compression."""
        return prod(self.shape) * self.dtype.itemsize

    def files(self, header: Path) -> list[Path]:
        """Return the file of the header, and that of the values if it is another one."""
        return [header] if self.file == header else [header, self.file]

    def array(self) -> MappedArray | PackedArray:
        """Return the values as an array that is read when it is sliced.

        Raises:
            OSError: the file cannot be opened.
            ValueError: it is too short.
        """
        if self.packed:
            return PackedArray(self.file, self.dtype, self.offset, self.shape)
        offset = self.offset
        if offset < 0:
            offset = self.file.stat().st_size - self.nbytes
            if offset < 0:
                raise ValueError(f"its first {-offset} bytes are missing")
        return MappedArray(self.file, self.dtype, offset, self.shape)

    def volume(
        self, place: str, grid: Grid, attributes: dict[str, Any], time: Moment | None
    ) -> StoredVolume:
        """Return the values as a volume."""
        array = self.array()
        named = NamedAxes(array, self.axes, place, time)
        if isinstance(array, PackedArray):
            return StoredVolume(named, place, grid, attributes, chunk_bytes=array.chunk_bytes)
        return StoredVolume(named, place, grid, attributes, chunks=("mapped", None, array.row))


def extents(text: str) -> tuple[int, ...]:
    """Return the extents that a header gives."""
    found = tuple(map(int, text.split()))
    if min(found, default=0) < 1:
        raise ValueError(f"its extents are {text}; integers above 0 are expected")
    return found


def beside(header: Path, name: str) -> Path:
    """Return the file of the values that a header names."""
    found = header.parent / name
    if not found.is_file():
        raise ValueError(f"it names the file {name} for its values, and there is none")
    return found


def unpacked(
    place: str, copy: Path | None, ending: str, header: bytes, values: ValuesInFile
) -> Path:
    """Return a copy of a file that is not compressed, as ``decompressed`` does.

    Raises:
        InvalidInput: the file is damaged, or the copy cannot be written.
    """

    def write(file: IO[bytes]) -> None:
        file.write(header)
        PackedArray(values.file, values.dtype, values.offset, values.shape).unpack(file)

    return decompressed(place, copy, ending, write)
