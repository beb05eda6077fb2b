"""Reading NumPy's .npy files."""

from __future__ import annotations

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.option_types import Moment
from znni.volumes.formats import Functions
from znni.volumes.formats.numpy_file import NAME
from znni.volumes.mapped_array import MappedArray
from znni.volumes.named_axes import at_time
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


FUNCTIONS = Functions(open_numpy, describe_numpy)
