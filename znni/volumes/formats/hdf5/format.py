"""Reading HDF5 files as volumes, and the entry for this format."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import Any

import h5py

from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput
from znni.core.option_types import Codec, Form, Moment
from znni.core.volume import Grid
from znni.volumes.formats import Functions, described, likely_image
from znni.volumes.formats.hdf5 import ENDINGS, NAME
from znni.volumes.formats.hdf5.axis_tags import NAMES, TAGS, named_maps, tagged_axes, tagged_grid
from znni.volumes.formats.hdf5.compressed import COPIES, CompressedDataset, decoded_by_threads
from znni.volumes.formats.hdf5.new_file import LEDGER
from znni.volumes.formats.hdf5.plain import PlainDataset, read_past_hdf5
from znni.volumes.grid_attributes import grid_of
from znni.volumes.mapped_array import MappedArray
from znni.volumes.named_axes import AXES, NamedAxes, at_time
from znni.volumes.stored import StoredVolume, errors_as, local_file, reason


def open_hdf5(place: str, dataset: str | None, time: Moment | None = None) -> StoredVolume:
    """Open the volume in a file: the named dataset, or the only one with three or four axes.

    Attributes ``axistags`` say which axes there are, in which order. Without them, the axes are
    (z, y, x) or (f, z, y, x), with time in front if a point in time is chosen.

    Raises:
        InvalidInput: there is no such file or dataset, the file is not HDF5, or it has several
            volumes to choose from.
    """
    path = file_at(place)
    with reading(path):
        file = h5py.File(path, "r")
        entry = _named(file, path, dataset) if dataset else _only_volume(file, path, time)
        name = f"{path}:{entry.name}"
        decoded, plain = decoded_by_threads(entry), read_past_hdf5(entry)
        stored: ArrayLike = decoded or plain or entry
        attributes = _attributes(entry)
        maps = named_maps(attributes)
        if axes := tagged_axes(attributes, len(entry.shape)):
            stored = NamedAxes(stored, axes, name, time, maps)
        else:
            stored = at_time(stored, name, time, maps)
        return StoredVolume(
            stored,
            name,
            _grid(entry),
            attributes=entry.attrs,
            chunks=_chunks(decoded or plain),
            chunk_bytes=0 if plain else _chunk_bytes(entry),
        )


def _chunks(
    reader: CompressedDataset | PlainDataset | MappedArray | None,
) -> tuple[Form, Codec | None, tuple[int, ...]] | None:
    """Return what reads the chunks of a dataset, their codec and extents; None: HDF5 does."""
    match reader:
        case MappedArray():
            return "mapped", None, reader.row
        case CompressedDataset():
            return "hdf5", "gzip", reader.chunks
        case PlainDataset():
            return "hdf5", None, reader.chunks
    return None


def _chunk_bytes(dataset: h5py.Dataset) -> int:
    """Return the bytes that decoding takes for a chunk, if there are chunks."""
    return COPIES * prod(dataset.chunks) * dataset.dtype.itemsize if dataset.chunks else 0


def describe_hdf5(place: str, dataset: str | None) -> str:
    """Describe the datasets of a file: shape, type, chunks, and how outputs were made."""
    path = file_at(place)
    lines = [str(path)]
    with reading(path), h5py.File(path, "r") as file:
        every = _datasets(file)
        if "main" in file:  # of an output, whose ledger is nothing to look at
            every = [one for one in every if one.name != f"/{LEDGER}"]
        for entry in every if dataset is None else [_named(file, path, dataset)]:
            chunks = f"chunks {entry.chunks}" if entry.chunks else "not in chunks"
            lines.append(f"  {entry.name}  {entry.shape} {entry.dtype}, {chunks}")
            if axes := tagged_axes(entry.attrs, len(entry.shape or ())):
                lines.append(f"    axes {' '.join(axes)}")
            if (grid := _grid(entry)) != Grid():
                lines.append(f"    {grid}")
            lines += described(entry.attrs, TAGS, NAMES)
    return "\n".join(lines)


def file_at(place: str) -> Path:
    """Return the path of a file.

    Raises:
        InvalidInput: there is none. If the path goes on after a file, the message suggests a
            dataset.
    """
    path = Path(place)
    if path.is_file():
        return path
    for parent in path.parents:
        if parent.is_file():
            raise InvalidInput(
                f"{place}: no such file, and {parent} is no folder; if a dataset of it is "
                f"meant, give {parent}:/{Path(place).relative_to(parent)}"
            )
    return local_file(place, NAME)


def reading(path: Path) -> AbstractContextManager[None]:
    """Turn HDF5's errors about damaged files into one that says what to do."""

    def failed(error: Exception) -> InvalidInput:
        ending = Path(path.name.removesuffix(".partial")).suffix
        if ending and ending.lower() not in ENDINGS and not h5py.is_hdf5(path):
            return InvalidInput(
                f"{path}: is not HDF5, and znni reads no other format with the ending {ending}; "
                f"convert it to .h5, .zarr, .tif, .nii or .npy"
            )
        return InvalidInput(
            f"{path}: cannot be read as HDF5: {reason(error)}; give an HDF5 file, whole and "
            f"readable, or another format under its own ending, such as .zarr, .tif, .nii or .npy"
        )

    return errors_as(failed)


def _datasets(file: h5py.File) -> list[h5py.Dataset]:
    datasets: list[h5py.Dataset] = []

    def visit(_name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            datasets.append(item)

    file.visititems(visit)
    return datasets


def _attributes(holder: h5py.HLObject) -> Mapping[str, Any]:
    """Return the attributes of a dataset or group. To find that one is absent takes HDF5 long."""
    return holder.attrs if h5py.h5a.get_num_attrs(holder.id) else {}


def _named(file: h5py.File, path: Path, dataset: str) -> h5py.Dataset:
    entry = file.get(dataset)
    if not isinstance(entry, h5py.Dataset):
        raise InvalidInput(
            f"{path}: has no dataset {dataset!r}; it has {_listing(_datasets(file)) or 'none'}"
        )
    return entry


def _grid(dataset: h5py.Dataset) -> Grid:
    """Return where the voxels of a dataset lie, as it or a group around it says."""
    own = _attributes(dataset)
    if grid_of(own) == Grid() != (tagged := tagged_grid(own)):
        return tagged
    holder = dataset
    while (grid := grid_of(_attributes(holder))) == Grid() and holder.name != "/":
        holder = holder.parent
    return grid


def _only_volume(file: h5py.File, path: Path, time: Moment | None) -> h5py.Dataset:
    datasets = _datasets(file)
    axes = (3, 4) if time is None else (4, 5)
    tagged = {each: tagged_axes(_attributes(each), len(each.shape or ())) for each in datasets}
    volumes = [
        each for each in datasets if len(each.shape or ()) in axes or "z" in tagged[each]
    ] or [each for each in datasets if tagged[each]]
    if not volumes:
        raise InvalidInput(
            f"{path}: has no dataset with axes {AXES[time is not None]}; it has "
            f"{_listing(datasets) or 'none at all'}"
        )
    if len(volumes) > 1:
        raise InvalidInput(
            f"{path}: has several volumes: {_listing(volumes)}; name one, as "
            f"{path}:{likely_image(volumes).name}"
        )
    return volumes[0]


def _listing(datasets: list[h5py.Dataset]) -> str:
    return ", ".join(f"{d.name} {d.shape} {d.dtype}" for d in datasets)


FUNCTIONS = Functions(open_hdf5, describe_hdf5)
