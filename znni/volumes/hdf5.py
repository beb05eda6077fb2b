"""Volumes in HDF5 files."""

from __future__ import annotations

import shutil
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.errors import InvalidInput, RunFailed, option
from znni.shapes import Box, Vec3
from znni.units import counted, in_units
from znni.volumes.array import ArrayVolume
from znni.volumes.partial_file import PartialFile, partial_name

OUTPUT_DATASET = "main"
CHUNK = 64


class Hdf5Volume(ArrayVolume):
    """A dataset of an HDF5 file.

    Raises:
        RunFailed: a part of it cannot be read, as of a truncated or damaged file.
    """

    def read(self, box: Box) -> NDArray[Any]:
        """The values (f, z, y, x) of a box within the volume."""
        try:
            return super().read(box)
        except (OSError, RuntimeError) as error:
            raise RunFailed(
                f"{self.name}: cannot be read at {box}: {error}; check or copy the file again"
            ) from None


def open_hdf5(path: Path, dataset: str | None) -> Hdf5Volume:
    """The volume in a file: the dataset named, or the only one with three or four axes.

    Raises:
        InvalidInput: no such file or dataset, not HDF5, or several volumes to choose from.
    """
    file = _open_to_read(path)
    found = _named(file, path, dataset) if dataset else _only_volume(file, path)
    return Hdf5Volume(found, f"{path}:{found.name}")


def describe_hdf5(path: Path, dataset: str | None) -> str:
    """The datasets of a file with shape, type and chunks, and how an output came to be."""
    file = _open_to_read(path)
    lines = [str(path)]
    for found in _datasets(file) if dataset is None else [_named(file, path, dataset)]:
        lines.append(f"  {found.name}  {found.shape} {found.dtype}, chunks {found.chunks}")
        lines.extend(
            f"    {name}: {value}" for name, value in found.attrs.items() if name != "plan"
        )
    return "\n".join(lines)


def _open_to_read(path: Path) -> h5py.File:
    if not path.exists():
        raise InvalidInput(f"{path}: no such file; check the path")
    if path.is_dir():
        raise InvalidInput(
            f"{path}: is a folder; give an HDF5 file or, from Python, the array that it holds"
        )
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
            _check_place(path, overwrite=overwrite)
            _check_room(path, prod(shape) * np.dtype(dtype).itemsize)
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

    def describe(self, attributes: dict[str, Any]) -> None:
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


def _check_place(path: Path, *, overwrite: bool) -> None:
    if path.is_dir():
        raise InvalidInput(f"{path}: is a folder; name a file in it")
    if path.exists() and not overwrite:
        raise InvalidInput(f"{path}: exists; give {option('overwrite', True)} to replace it")
    if not path.parent.is_dir():
        raise InvalidInput(f"{path}: there is no folder {path.parent}; make it first")


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    left_over = partial_name(path)
    if left_over.exists():  # of an earlier run; its room is used again
        free += left_over.stat().st_blocks * 512
    if needed > free:
        raise InvalidInput(
            f"{path}: the output takes {in_units(needed)} and the disk has {in_units(free)} "
            f"free; make room, write elsewhere, or give a smaller type, as "
            f"{option('dtype', 'uint8')}"
        )
