"""Volumes in NumPy's .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.volumes.formats import Format
from znni.volumes.stored import StoredVolume, local_file, reason

NAME = "NumPy"


class _MappedFile:
    """An array file that is mapped into memory anew for each read.

    A mapping that stays open would keep every page read so far in the process's memory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        header = self._map()
        self.shape = header.shape
        self.dtype = header.dtype

    def __getitem__(self, key: Any, /) -> NDArray[Any]:
        return np.array(self._map()[key])

    def _map(self) -> NDArray[Any]:
        array: NDArray[Any] = np.lib.format.open_memmap(self._path, mode="r")
        return array


def open_numpy(place: str, dataset: str | None) -> StoredVolume:
    """Open the array of a file.

    Raises:
        InvalidInput: there is no such file, it holds no array of numbers, or a dataset was named.
    """
    path = local_file(place, NAME)
    if dataset:
        raise InvalidInput(f"{place}: holds one array, and no dataset {dataset!r}; leave it out")
    try:
        mapped = _MappedFile(path)
    except Exception as error:  # numpy parses the header as Python text, and raises all kinds
        raise InvalidInput(
            f"{place}: cannot be read as .npy: {reason(error)}; give a whole file of numpy.save"
        ) from error
    return StoredVolume(mapped, place)


def describe_numpy(place: str, dataset: str | None) -> str:
    """Describe a file: its shape and type."""
    volume = open_numpy(place, dataset)
    return f"{place}\n  {volume.shape} {volume.dtype}"


FORMAT = Format(NAME, (".npy",), open_numpy, describe_numpy)
