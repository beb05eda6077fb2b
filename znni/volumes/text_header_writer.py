"""Writing files that have a header of text, and then values, which may be compressed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import IO, ClassVar

import numpy as np

from znni.core.errors import InvalidInput, option
from znni.core.option_types import Packing
from znni.core.volume import NewOutput
from znni.volumes.formats import check_plain
from znni.volumes.staged_output import Content, StagedWriter
from znni.volumes.stored import local_file
from znni.volumes.text_header import TextHeader

LEVEL = 1  # of deflate


class TextHeaderWriter(StagedWriter):
    """Writes a file with a header of text, and then the values: first those of the first map.

    Attributes:
        name: the name of the format.
        ending: the ending of files with header and values.
        types: the types of values that the format has.
        header_type: reads the header of a file.
    """

    name: ClassVar[str]
    ending: ClassVar[str]
    types: ClassVar[tuple[str, ...]]
    header_type: ClassVar[type[TextHeader]]

    @abstractmethod
    def header(self, content: Content, *, packed: bool) -> bytes:
        """Return what comes before the values."""

    @abstractmethod
    def pack(self, pieces: Iterable[memoryview]) -> Iterator[bytes]:
        """Return the stream of compressed bytes."""

    def write_rest(self, file: IO[bytes], content: Content, packed: int | None) -> None:
        """Write what comes after the values.

        Args:
            packed: the bytes of the compressed values; None: they are not compressed.
        """

    def kept_ledger(self) -> bytes:
        """Return the ledger in a whole output."""
        header = self.header_type.read(local_file(self.place, self.name))
        return str(header.stored.get("ledger", "")).encode()

    def check(self, wanted: NewOutput) -> None:
        """Refuse an output that such a file cannot hold."""
        if not self.place.lower().endswith(self.ending):
            raise InvalidInput(
                f"{self.place}: znni writes {self.name} as one file; give a name that ends in "
                f"{self.ending}"
            )
        given = "" if wanted.compression == "gzip" else wanted.compression
        check_plain(self.place, replace(wanted, compression=given or None), self.name)
        if np.dtype(wanted.dtype).name not in self.types:
            raise InvalidInput(
                f"{self.place}: {self.name} has no {wanted.dtype}; give "
                f"{option('dtype', 'float32')}, or write to a name that ends in .zarr or .h5"
            )

    def packing(self, wanted: NewOutput) -> Packing:
        """Return how the values are compressed: integers are, unless the output says otherwise."""
        is_float = np.dtype(wanted.dtype).kind == "f"
        compression = wanted.compression or ("none" if is_float else "gzip")
        return "none" if compression == "none" else "gzip"

    def save(self, file: IO[bytes], content: Content) -> None:
        """Write the header, and then the values."""
        packed = self.packing(content.wanted) != "none"
        file.write(self.header(content, packed=packed))
        first = file.tell()
        with closing(content.planes()) as planes:
            values = (
                np.ascontiguousarray(plane, plane.dtype.newbyteorder("<")).data for plane in planes
            )
            file.writelines(self.pack(values) if packed else values)
        self.write_rest(file, content, file.tell() - first if packed else None)
