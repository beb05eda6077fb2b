"""Reading and writing of NumPy's .npy files."""

from __future__ import annotations

from contextlib import closing
from typing import IO

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.options import Moment
from znni.core.volume import NewOutput
from znni.volumes.formats import Content, Functions, Sequential, check_plain
from znni.volumes.mapped_array import MappedArray
from znni.volumes.named_axes import at_time
from znni.volumes.numpy_file import NAME
from znni.volumes.staged_output import staged
from znni.volumes.stored import StoredVolume, local_file, reason


def open_numpy(place: str, dataset: str | None, time: Moment | None = None) -> StoredVolume:
    """Open the array of a file.

    Raises:
        InvalidInput: there is no such file, it holds no array of numbers, or a dataset was named.
    """
    path = local_file(place, NAME)
    if dataset:
        raise InvalidInput(f"{place}: holds one array, and no dataset {dataset!r}; leave it out")
    try:
        whole = np.lib.format.open_memmap(path, mode="r")
        fortran = whole.flags.f_contiguous and not whole.flags.c_contiguous
        mapped = MappedArray(path, whole.dtype, whole.offset, whole.shape, fortran=fortran)
    except Exception as error:  # numpy parses the header as Python text, and raises all kinds
        raise InvalidInput(
            f"{place}: cannot be read as .npy: {reason(error)}; give a whole file of numpy.save"
        ) from error
    return StoredVolume(at_time(mapped, place, time), place, chunks=("mapped", None, mapped.row))


def describe_numpy(place: str, dataset: str | None) -> str:
    """Describe a file: its shape and type."""
    volume = open_numpy(place, dataset)
    return f"{place}\n  {volume.shape} {volume.dtype}"


def check(place: str, wanted: NewOutput) -> None:
    """Refuse options that a .npy does not have.

    Raises:
        InvalidInput: the output has one.
    """
    check_plain(place, wanted, NAME)


def save(file: IO[bytes], _name: str, content: Content) -> None:
    """Write an array (f, z, y, x). Such a file has no room for attributes or a grid."""
    dtype = np.dtype(content.wanted.dtype).newbyteorder("<")
    described = {"descr": dtype.str, "fortran_order": False, "shape": content.wanted.shape}
    np.lib.format.write_array_header_1_0(file, described)
    with closing(content.planes()) as planes:
        for plane in planes:
            file.write(np.ascontiguousarray(plane, dtype).data)


WRITER = staged(Sequential(check, save, lambda _place, _wanted: "none"), lambda _: b"")
FUNCTIONS = Functions(open_numpy, describe_numpy, WRITER)
