"""Files of NumPy's format ``.npy`` that are written part by part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import numpy as np
from numpy.typing import DTypeLike

from znni.core.shapes import FLOAT_BYTES


@contextmanager
def new_array_file(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """Yield a new file of an array, at its first value. It gets its name when it is complete."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        write_header(file, dtype, shape)
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


@contextmanager
def file_of_zeros(folder: Path, shape: tuple[int, ...]) -> Iterator[Path]:
    """Yield a file of an array of float32 that takes no space. It goes after the ``with`` block."""
    file = NamedTemporaryFile(dir=folder, suffix=".npy", delete=False)  # noqa: SIM115
    path = Path(file.name)
    try:
        with file:  # Windows opens no file twice
            write_header(file, "<f4", shape)
            file.truncate(file.tell() + FLOAT_BYTES * prod(shape))
        yield path
    finally:
        path.unlink()


def write_header(file: IO[bytes], dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Write the beginning of a file of ``.npy``."""
    described = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": described, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
