"""Files of NumPy's format ``.npy`` that are written part by part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import DTypeLike


@contextmanager
def new_array_file(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """Yield a new file of an array, at its first value. It gets its name when it is complete.

    Args:
        path: the file.
        dtype: the type of the values.
        shape: the extents.
    """
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        write_header(file, dtype, shape)
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def write_header(file: IO[bytes], dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Write the beginning of a file of ``.npy``."""
    described = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": described, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
