"""Writing NumPy's .npy files."""

from __future__ import annotations

from contextlib import closing
from typing import IO

import numpy as np

from znni.core.option_types import Packing
from znni.core.volume import NewOutput
from znni.volumes.formats import check_plain
from znni.volumes.formats.numpy_file import NAME
from znni.volumes.staged_output import Content, StagedWriter


class NumpyWriter(StagedWriter):
    """Writes an array (f, z, y, x). Such a file has no room for attributes or a grid."""

    def check(self, wanted: NewOutput) -> None:
        """Refuse options that a .npy does not have."""
        check_plain(self.place, wanted, NAME)

    def save(self, file: IO[bytes], content: Content) -> None:
        """Write the header, and then the values in C order."""
        dtype = np.dtype(content.wanted.dtype).newbyteorder("<")
        described = {"descr": dtype.str, "fortran_order": False, "shape": content.wanted.shape}
        np.lib.format.write_array_header_1_0(file, described)
        with closing(content.planes()) as planes:
            for plane in planes:
                file.write(np.ascontiguousarray(plane, dtype).data)

    def packing(self, wanted: NewOutput) -> Packing:  # noqa: ARG002
        """Return that the file is not compressed."""
        return "none"

    def kept_ledger(self) -> bytes:
        """Return nothing: a .npy has no room for a ledger."""
        return b""


WRITER = NumpyWriter
