"""The structure of a new HDF5 output: its datasets, with places for all values, and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from itertools import product
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.core.chunks import chunk_extents
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.volume import NewOutput
from znni.volumes.formats.hdf5.axis_tags import NAMES
from znni.volumes.formats.hdf5.chunk_reader import chunk_places

OUTPUT_DATASET = "main"
LEDGER = "ledger"


def make_output(
    file: h5py.File, wanted: NewOutput, patch: Vec3, attributes: Mapping[str, Any]
) -> h5py.Dataset:
    """Make the dataset of an output in a new file. All its chunks have their places.

    They divide the planned patch, and have one map each.
    """
    chunk = chunk_extents(patch, wanted.size)
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    dataset = file.create_dataset(
        OUTPUT_DATASET,
        wanted.shape,
        wanted.dtype,
        chunks=(1, *chunk),
        fill_time="never",
        dcpl=early,
    )
    dataset.attrs.update(attributes)
    if wanted.maps:
        dataset.attrs[NAMES] = wanted.maps
    return dataset


def whole_file(
    values: NDArray[Any],
    wanted: NewOutput,
    patch: Vec3,
    attributes: Mapping[str, Any],
    ledger: bytes,
) -> memoryview:
    """Return a whole output of values (f', z, y, x) as a file, as ``make_output`` makes it."""
    image = BytesIO()
    with h5py.File(image, "w") as file:
        dataset = make_output(file, wanted, patch, attributes)
        chunk, places = Vec3(*dataset.chunks[1:]), chunk_places(dataset)
        keep_ledger(file, ledger)
    made = image.getbuffer()
    # HDF5 would fill up chunks beyond the edges of the output with what its memory holds.
    whole = Box(ZERO, wanted.size)
    for feature, part in product(range(len(values)), whole.cut(chunk)):
        place = places[(feature, *(part.start // chunk))]
        stored = np.frombuffer(made, wanted.dtype, chunk.volume, place)
        inside = Box(ZERO, part.size)
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
