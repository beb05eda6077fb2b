"""The structure of a new HDF5 output: its datasets, with places for all values, and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from itertools import product
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.shapes import Box, Vec3
from znni.volumes.hdf5.axis_tags import NAMES
from znni.volumes.hdf5.chunked import chunk_places

OUTPUT_DATASET = "main"
LEDGER = "ledger"


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
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    dataset = file.create_dataset(
        OUTPUT_DATASET, shape, dtype, chunks=(1, *chunk), fill_time="never", dcpl=early
    )
    dataset.attrs.update(attributes)
    if maps:
        dataset.attrs[NAMES] = maps
    return dataset


def whole_file(
    values: NDArray[Any],
    dtype: DTypeLike,
    chunk: Vec3,
    maps: tuple[str, ...],
    attributes: Mapping[str, Any],
    ledger: bytes,
) -> memoryview:
    """Return a whole output as a file.

    Args:
        values: its values (f', z, y, x).
        dtype: the type that they have in the file.
        chunk: the extents of a chunk, which has one map.
        maps: the names of its maps, if they have names.
        attributes: its other attributes.
        ledger: its ledger.
    """
    image = BytesIO()
    with h5py.File(image, "w") as file:
        places = chunk_places(make_output(file, values.shape, dtype, chunk, maps, attributes))
        keep_ledger(file, ledger)
    made = image.getbuffer()
    # HDF5 would fill up chunks beyond the edges of the output with what its memory holds.
    whole = Box(Vec3(0, 0, 0), Vec3(*values.shape[1:]))
    for feature, part in product(range(len(values)), whole.cut(chunk)):
        place = places[(feature, *(part.start // chunk))]
        stored = np.frombuffer(made, dtype, chunk.volume, place)
        inside = Box(Vec3(0, 0, 0), part.size)
        stored.reshape(chunk)[inside.slices] = values[(feature, *part.slices)]
    return made


def keep_ledger(file: h5py.File, ledger: bytes) -> None:
    """Store a ledger in a file, replacing any earlier one."""
    content = np.frombuffer(ledger, np.uint8)
    if LEDGER in file and file[LEDGER].shape == content.shape:
        file[LEDGER][...] = content
        return
    if LEDGER in file:
        del file[LEDGER]
    file.create_dataset(LEDGER, data=content)
