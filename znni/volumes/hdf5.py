"""Volumes in HDF5 files."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.errors import InvalidInput, RunFailed, option
from znni.shapes import Box, Vec3
from znni.units import counted
from znni.volume import NewOutput
from znni.volumes.formats import Format, check_plain
from znni.volumes.partial_file import PartialFile, check_free, check_room
from znni.volumes.stored import StoredVolume, local_file

NAME = "HDF5"
OUTPUT_DATASET = "main"
CHUNK = 64


def open_hdf5(place: str, dataset: str | None) -> StoredVolume:
    """The volume in a file: the dataset named, or the only one with three or four axes.

    Raises:
        InvalidInput: no such file or dataset, not HDF5, or several volumes to choose from.
    """
    path = local_file(place, NAME)
    file = _open_to_read(path)
    found = _named(file, path, dataset) if dataset else _only_volume(file, path)
    return StoredVolume(found, f"{path}:{found.name}")


def describe_hdf5(place: str, dataset: str | None) -> str:
    """The datasets of a file with shape, type and chunks, and how an output came to be."""
    path = local_file(place, NAME)
    file = _open_to_read(path)
    lines = [str(path)]
    for found in _datasets(file) if dataset is None else [_named(file, path, dataset)]:
        lines.append(f"  {found.name}  {found.shape} {found.dtype}, chunks {found.chunks}")
        lines.extend(
            f"    {name}: {value}" for name, value in found.attrs.items() if name != "plan"
        )
    return "\n".join(lines)


def _open_to_read(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read as HDF5: {error}; give an HDF5 file, whole and readable"
        ) from None


def _datasets(file: h5py.File) -> list[h5py.Dataset]:
    found: list[h5py.Dataset] = []

    def visit(_name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(item)

    file.visititems(visit)
    return found


def _named(file: h5py.File, path: Path, dataset: str) -> h5py.Dataset:
    found = file.get(dataset)
    if not isinstance(found, h5py.Dataset):
        raise InvalidInput(
            f"{path}: has no dataset {dataset!r}; it has {_listing(_datasets(file)) or 'none'}"
        )
    return found


def _only_volume(file: h5py.File, path: Path) -> h5py.Dataset:
    datasets = _datasets(file)
    volumes = [d for d in datasets if len(d.shape or ()) in (3, 4)]
    if not volumes:
        raise InvalidInput(
            f"{path}: has no dataset with axes (z, y, x) or (f, z, y, x); it has "
            f"{_listing(datasets) or 'none at all'}"
        )
    if len(volumes) > 1:
        raise InvalidInput(
            f"{path}: has several volumes: {_listing(volumes)}; name one, as "
            f"{option('dataset', volumes[0].name)}"
        )
    return volumes[0]


def _listing(datasets: list[h5py.Dataset]) -> str:
    return ", ".join(f"{d.name} {d.shape} {d.dtype}" for d in datasets)


class Hdf5Output:
    """A new file with the output in its dataset ``/main``.

    It is a ``PartialFile``: it takes the name asked for only once it is whole. All chunks and
    attributes have their place from the start, so that an unfinished file can be read, however
    the run ended; what is not written reads as zeros.

    Raises:
        InvalidInput: the file exists and may not be overwritten, or cannot be made there.
        RunFailed: a write failed.
    """

    def __init__(
        self, path: Path, features: int, size: Vec3, dtype: DTypeLike, *, overwrite: bool
    ) -> None:
        shape = (features, *size)
        try:
            if path.is_dir():
                raise InvalidInput(f"{path}: is a folder; name a file in it")
            check_free(path, overwrite=overwrite)
            check_room(path, prod(shape) * np.dtype(dtype).itemsize)
            self._disk = PartialFile(path)
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be written there: {error.strerror}") from None
        self._blocks = 0
        self._file = h5py.File(self._disk, "w")
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        self._dataset = self._file.create_dataset(
            OUTPUT_DATASET,
            shape,
            dtype,
            chunks=(1, *size.minimum(Vec3.of(CHUNK))),
            fill_time="never",
            dcpl=early,
        )
        self._file.flush()
        if self._disk.failure:
            self.abandon()
            raise InvalidInput(f"{path}: cannot be written there: {self._disk.failure.strerror}")

    def describe(self, attributes: dict[str, Any], patch: Vec3) -> None:  # noqa: ARG002
        """Note how the output comes to be. From here on the file's structure stays as it is."""
        self._dataset.attrs.update(attributes)
        self._flush()

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a box, and hand them to the system."""
        self._dataset[(slice(None), *box.slices)] = values
        self._flush()
        self._blocks += 1

    def finish(self, measured: dict[str, Any]) -> None:
        """Bring attributes up to date, and give the file its name."""
        for name, value in measured.items():
            self._dataset.attrs.modify(name, value)
        self._file.close()
        try:
            self._disk.complete()
        except OSError as error:
            raise self._failed(error) from None

    def abandon(self) -> str:
        """Close the unfinished file; it stays if it holds a block."""
        self._file.close()
        self._disk.close()
        if not self._blocks:
            self._disk.partial.unlink(missing_ok=True)
            return f"{self._disk.path} was not made"
        finished = counted(self._blocks, "finished block")
        return f"{self._disk.path} was not made; {self._disk.partial} holds {finished}"

    def _flush(self) -> None:
        self._file.flush()
        if self._disk.failure:
            raise self._failed(self._disk.failure)

    def _failed(self, error: OSError) -> RunFailed:
        return RunFailed(
            f"{self._disk.partial}: cannot be written: {error.strerror}; make room or write "
            f"elsewhere"
        )


def create_hdf5(place: str, wanted: NewOutput) -> Hdf5Output:
    """A new file; its room on the disk is taken from the start, so its chunks are not compressed.

    Raises:
        InvalidInput: it cannot be made, or is to be compressed.
    """
    check_plain(place, wanted, NAME)
    return Hdf5Output(
        Path(place), wanted.features, wanted.size, wanted.dtype, overwrite=wanted.overwrite
    )


FORMAT = Format(NAME, (".h5", ".hdf5"), open_hdf5, describe_hdf5, create_hdf5)
