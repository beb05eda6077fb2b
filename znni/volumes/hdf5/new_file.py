"""The structure of a new HDF5 output: its datasets, with places for all values, and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike

from znni.core.shapes import Vec3
from znni.volumes.hdf5.axis_tags import NAMES

OUTPUT_DATASET = "main"
LEDGER = "ledger"

TEXT = h5py.string_dtype()
ONE_VALUE = h5py.h5s.create(h5py.h5s.SCALAR)


def make_output(
    file: h5py.File,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    chunk: Vec3,
    maps: tuple[str, ...],
    attributes: Mapping[str, Any],
) -> h5py.Dataset:
    """Make the dataset of an output in a new file. All its chunks have their places.

    Args:
        file: the file.
        shape: its extents (f', z, y, x).
        dtype: the type of its values.
        chunk: the extents of a chunk, which has one map.
        maps: the names of its maps, if they have names.
        attributes: its other attributes.
    """
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((1, *chunk))
    made.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    made.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    dataset = h5py.Dataset(_new_dataset(file, OUTPUT_DATASET, shape, dtype, made))
    describe(dataset, attributes)
    if maps:
        dataset.attrs[NAMES] = maps
    return dataset


def describe(dataset: h5py.Dataset, attributes: Mapping[str, Any]) -> None:
    """Give a new dataset its attributes, with the same types as ``dataset.attrs.update`` has.

    That takes twice as long: it makes types anew for each attribute, and looks for it first.
    """
    for name, value in attributes.items():
        held = np.array(value, TEXT) if type(value) is str else np.asarray(value)
        if held.dtype.kind not in "iufb" and held.dtype is not TEXT:
            dataset.attrs[name] = value
            continue
        stored, in_memory = _types_of(held.dtype)
        space = h5py.h5s.create_simple(held.shape) if held.shape else ONE_VALUE
        made = h5py.h5a.create(dataset.id, name.encode(), stored, space)
        made.write(held, mtype=in_memory)


@cache
def _types_of(dtype: np.dtype[Any]) -> tuple[h5py.h5t.TypeID, h5py.h5t.TypeID]:
    """Return the types by which values of an attribute are stored, and given to HDF5."""
    return h5py.h5t.py_create(dtype, logical=True), h5py.h5t.py_create(dtype)


def _new_dataset(
    file: h5py.File,
    name: str,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    made: h5py.h5p.PropDCID | None = None,
) -> h5py.h5d.DatasetID:
    """Make a dataset, as ``file.create_dataset`` does. That takes twice as long.

    Args:
        file: the file.
        name: the name of the dataset.
        shape: its extents.
        dtype: the type of its values.
        made: how its values are stored; None: in a row.
    """
    made = made or h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_obj_track_times(False)
    stored, _ = _types_of(np.dtype(dtype))
    return h5py.h5d.create(file.id, name.encode(), stored, h5py.h5s.create_simple(shape), made)


def keep_ledger(file: h5py.File, ledger: bytes) -> None:
    """Store a ledger in a file, replacing any earlier one."""
    if LEDGER in file and file[LEDGER].shape == (len(ledger),):
        file[LEDGER][...] = np.frombuffer(ledger, np.uint8)
        return
    if LEDGER in file:
        del file[LEDGER]
    store_ledger(file, ledger)


def store_ledger(file: h5py.File, ledger: bytes) -> None:
    """Store a ledger in a file that has none."""
    dataset = _new_dataset(file, LEDGER, (len(ledger),), np.uint8)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.frombuffer(ledger, np.uint8))
