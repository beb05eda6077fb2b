"""Volumes in HDF5 files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.errors import InvalidInput, RunFailed
from znni.shapes import Box, Vec3
from znni.volumes.array import ArrayVolume

OUTPUT_DATASET = "main"
CHUNK = 64


def open_hdf5(path: Path, dataset: str | None) -> ArrayVolume:
    """The volume in a file: the dataset named, or the only one with three or four axes.

    Raises:
        InvalidInput: no such file or dataset, not HDF5, or several volumes to choose from.
    """
    file = _open_to_read(path)
    name = dataset or _only_volume(file, path)
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise InvalidInput(
            f"{path}: has no dataset {name!r}; it has {_listing(_datasets(file)) or 'none'}"
        )
    return ArrayVolume(found, f"{path}:{found.name}")


def describe_hdf5(path: Path, dataset: str | None) -> str:
    """The datasets of a file with shape, type and chunks, and how an output came to be."""
    lines = [str(path)]
    for found in _datasets(_open_to_read(path)):
        if dataset is None or found.name.strip("/") == dataset.strip("/"):
            lines.append(f"  {found.name}  {found.shape} {found.dtype}, chunks {found.chunks}")
            lines.extend(
                f"    {name}: {value}" for name, value in found.attrs.items() if name != "plan"
            )
    return "\n".join(lines)


def _open_to_read(path: Path) -> h5py.File:
    if not path.exists():
        raise InvalidInput(f"{path}: no such file; check the path")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read as HDF5: {error}") from None


def _datasets(file: h5py.File) -> list[h5py.Dataset]:
    found: list[h5py.Dataset] = []

    def visit(_name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(item)

    file.visititems(visit)
    return found


def _only_volume(file: h5py.File, path: Path) -> str:
    datasets = _datasets(file)
    volumes = [d for d in datasets if len(d.shape or ()) in (3, 4)]
    if not volumes:
        raise InvalidInput(
            f"{path}: has no dataset with axes (z, y, x) or (f, z, y, x); it has "
            f"{_listing(datasets) or 'none at all'}"
        )
    if len(volumes) > 1:
        raise InvalidInput(
            f"{path}: has several volumes; name one with --dataset: {_listing(volumes)}"
        )
    return str(volumes[0].name)


def _listing(datasets: list[h5py.Dataset]) -> str:
    return ", ".join(f"{d.name} {d.shape} {d.dtype}" for d in datasets)


class Hdf5Output:
    """A new file with the output in its dataset ``/main``.

    It is written under a name of its own, ending in ``.partial``, and takes the name asked for
    only once it is whole.

    Raises:
        InvalidInput: the file exists and may not be overwritten, or cannot be made there.
        RunFailed: a write failed.
    """

    def __init__(
        self, path: Path, features: int, size: Vec3, dtype: DTypeLike, *, overwrite: bool
    ) -> None:
        self.path = path
        self.partial = path.with_name(path.name + ".partial")
        if path.exists() and not overwrite:
            raise InvalidInput(f"{path}: exists; give --overwrite to replace it")
        if not path.parent.is_dir():
            raise InvalidInput(f"{path}: the folder {path.parent} does not exist; make it first")
        shape = (features, *size)
        needed = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        free = shutil.disk_usage(path.parent).free
        if needed > free:
            raise InvalidInput(
                f"{path}: the output takes {needed / 2**30:.2f} GiB and the disk has "
                f"{free / 2**30:.2f} GiB free; make room, write elsewhere, or use a smaller --dtype"
            )
        try:
            self._file = h5py.File(self.partial, "w")
            self._dataset = self._file.create_dataset(
                OUTPUT_DATASET, shape, dtype, chunks=(1, *size.minimum(Vec3.of(CHUNK)))
            )
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be written there: {error}") from None

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a box, and see them to the disk."""
        try:
            self._dataset[(slice(None), *box.slices)] = values
            self._file.flush()
        except OSError as error:
            raise RunFailed(f"{self.partial}: cannot be written: {error}") from None

    def finish(self, attributes: dict[str, Any]) -> None:
        """Note how the output came to be, and give the file its name."""
        try:
            self._dataset.attrs.update(attributes)
            self._file.close()
            self.partial.replace(self.path)
        except OSError as error:
            raise RunFailed(f"{self.partial}: cannot be finished: {error}") from None

    def abandon(self) -> None:
        """Close the unfinished file where it is."""
        self._file.close()
