"""Volumes of noise, in files of several formats."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3
from znni.volumes.formats import library

CHUNK = 64


class Storing(StrEnum):
    """How a volume is stored. The output has the same format, as znni makes it by default."""

    HDF5 = "hdf5"
    HDF5_GZIP = "hdf5-gzip"
    HDF5_CONTIGUOUS = "hdf5-contiguous"
    ZARR = "zarr"
    ZARR_PLAIN = "zarr-plain"
    TIFF = "tiff"
    TIFF_DEFLATE = "tiff-deflate"

    @property
    def ending(self) -> str:
        """The ending of its files."""
        return {"hdf5": ".h5", "zarr": ".zarr", "tiff": ".tif"}[self.partition("-")[0]]


def drop_from_cache(path: Path) -> None:
    """Have the system write a file, or the files of a folder, and drop them from its page cache."""
    for file in [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def write_noise(path: Path, size: Vec3, storing: Storing = Storing.HDF5) -> None:
    """Make a volume of noisy grey levels, uint8.

    They compress about as badly as electron microscopy does. Blocks differ, though they are made
    from one. That is faster than drawing all.
    """
    chunk = size.minimum(Vec3.of(CHUNK))
    grey = np.random.default_rng(0).standard_normal((chunk.z, size.y, size.x), np.float32)
    slab = (grey * 25 + 128).clip(0, 255).astype(np.uint8)

    def slabs() -> Iterator[tuple[int, NDArray[np.uint8]]]:
        for number, z in enumerate(range(0, size.z, chunk.z)):
            yield z, slab[: size.z - z] ^ np.uint8(number % 256)

    if storing.startswith("tiff"):
        library("tifffile", "tiff").imwrite(
            path,
            (plane for _, values in slabs() for plane in values),
            shape=size,
            dtype=np.uint8,
            metadata={"axes": "ZYX"},
            compression="deflate" if storing == "tiff-deflate" else None,
        )
    elif storing.startswith("zarr"):
        compressors = "auto" if storing == "zarr" else None
        array = library("zarr", "zarr").create_array(
            path, shape=size, dtype=np.uint8, chunks=tuple(chunk), compressors=compressors
        )
        for z, values in slabs():
            array[z : z + len(values)] = values
    else:
        chunks = None if storing == "hdf5-contiguous" else tuple(chunk)
        compression = "gzip" if storing == "hdf5-gzip" else None
        with h5py.File(path, "w") as file:
            made = file.create_dataset(
                "raw", size, np.uint8, chunks=chunks, compression=compression
            )
            for z, values in slabs():
                made[z : z + len(values)] = values
