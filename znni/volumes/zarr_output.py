"""A new OME-Zarr: NGFF 0.5, in Zarr version 3, of one resolution."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.errors import RunFailed
from znni.shapes import Box, Vec3
from znni.units import counted
from znni.volume import NewOutput
from znni.volumes.formats import library
from znni.volumes.ome_metadata import image_metadata
from znni.volumes.partial_file import check_room
from znni.volumes.partial_folder import PartialFolder
from znni.volumes.remote_folder import RemoteFolder
from znni.volumes.stored import is_url, reason

LEVEL = "0"
CHUNK = 64
MOST_SHARD_VOXELS = 2**24
ZSTD_LEVEL = 1
MARKS = ("zarr.json", ".zgroup", ".zarray")  # a folder with one of them is a Zarr


class ZarrOutput:
    """A new OME-Zarr with the output in its array ``0``.

    The array comes first, and the group around it with the OME metadata last, when all is written:
    without them it is no image. A folder has, beside that, another name until then.

    Raises:
        InvalidInput: the output exists and may not be overwritten, or cannot be made there.
        RunFailed: a write failed.
    """

    def __init__(self, place: str, wanted: NewOutput) -> None:
        self._zarr = library("zarr", "zarr")
        self._wanted = wanted
        self._folder: PartialFolder | RemoteFolder
        if is_url(place):
            marks = (*MARKS, f"{LEVEL}/zarr.json")  # the last one where it is not whole
            self._folder = RemoteFolder(place, marks, overwrite=wanted.overwrite)
        else:
            self._folder = PartialFolder(place, MARKS, overwrite=wanted.overwrite)
        self._array: Any = None
        self._stride = wanted.size
        self._blocks = 0
        if wanted.compression == "none" and not is_url(place):
            self._check_room()

    def _check_room(self) -> None:
        needed = prod(self._wanted.size) * self._wanted.features
        try:
            check_room(Path(self._folder.place), needed * np.dtype(self._wanted.dtype).itemsize)
        except BaseException:
            self._folder.discard()
            raise

    def describe(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Make the array, in chunks that patches are whole numbers of, and note its attributes."""
        wanted = self._wanted
        chunk, shard = chunk_and_shard(patch, wanted.size)
        self._stride = shard if wanted.sharded else chunk._replace(x=wanted.size.x)
        try:
            self._array = self._zarr.create_array(
                f"{self._folder.root}/{LEVEL}",
                shape=(wanted.features, *wanted.size),
                dtype=wanted.dtype,
                chunks=(1, *chunk),
                shards=(1, *shard) if wanted.sharded else None,
                compressors=self._compressors(),
                dimension_names=("c", "z", "y", "x"),
                attributes=attributes,
                zarr_format=3,
            )
        except Exception as error:  # file systems and their libraries raise all kinds
            raise self._failed(error) from error

    def _compressors(self) -> tuple[Any, ...]:
        codecs = self._zarr.codecs
        if self._wanted.compression == "none":
            return ()
        if self._wanted.compression == "gzip":
            return (codecs.GzipCodec(level=1),)
        return (codecs.ZstdCodec(level=ZSTD_LEVEL, checksum=True),)

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a box.

        Map by map, and shard by shard or row of chunks by row of chunks, so that what is encoded
        at a time takes no more than a copy of the box. A chunk that the box covers in part
        is read, changed and replaced.
        """
        try:
            for part in _parts(box, self._stride):
                inside = part.shifted(Vec3(0, 0, 0) - box.start)
                for feature in range(self._wanted.features):
                    self._array[(feature, *part.slices)] = values[(feature, *inside.slices)]
        except MemoryError:
            raise
        except Exception as error:  # as above
            raise self._failed(error) from error
        self._blocks += 1

    def finish(self, measured: dict[str, Any]) -> None:
        """Bring attributes up to date, and make it an image."""
        try:
            self._array.update_attributes(measured)
            name = PurePosixPath(self._folder.place).name
            metadata = image_metadata(name.removesuffix(".zarr"), LEVEL, self._wanted.grid)
            self._zarr.create_group(self._folder.root, attributes=metadata, zarr_format=3)
            self._folder.complete()
        except Exception as error:  # as above
            raise self._failed(error) from error

    def abandon(self) -> str:
        """Let go of the unfinished array; it stays if it holds a block."""
        place = self._folder.place
        if not self._blocks:
            self._folder.discard()
            return f"{place} was not made"
        self._folder.keep()
        finished = counted(self._blocks, "finished block")
        return f"{place} was not made; {self._folder.root}/{LEVEL} holds {finished}"

    def _failed(self, error: Exception) -> RunFailed:
        return RunFailed(
            f"{self._folder.root}: cannot be written: {reason(error)}; make room or write elsewhere"
        )


def chunk_and_shard(patch: Vec3, size: Vec3) -> tuple[Vec3, Vec3]:
    """Extents of chunks and of shards for output that is written in patches.

    Where the patch's extent has a divisor near 64 it is the chunk's, so that no chunk is written
    twice; a shard is as many chunks of a patch as make some million voxels, and up to a quarter of
    it: while one is written, its chunks are in memory by themselves and joined.
    """
    extents = [min(patch[axis], size[axis]) for axis in range(3)]
    chunk = Vec3(*(_chunk_extent(extent) for extent in extents)).minimum(size)
    counts = [
        extent // part if extent % part == 0 else 1
        for extent, part in zip(extents, chunk, strict=True)
    ]
    most = min(MOST_SHARD_VOXELS, prod(extents) // 4)
    while prod(counts) * chunk.volume > most and max(counts) > 1:
        axis = counts.index(max(counts))
        counts[axis] = max(n for n in range(1, counts[axis]) if counts[axis] % n == 0)
    return chunk, chunk * Vec3(*counts)


def _chunk_extent(patch: int) -> int:
    """The divisor of a patch's extent nearest to 64 by ratio, or 64 where none is within twice."""
    near = [extent for extent in range(CHUNK // 2, 2 * CHUNK + 1) if patch % extent == 0]
    return min(near, key=lambda extent: max(extent / CHUNK, CHUNK / extent), default=CHUNK)


def _parts(box: Box, stride: Vec3) -> Iterator[Box]:
    """A box cut where a grid of that stride cuts it."""
    first, last = box.start // stride, (box.stop - 1) // stride
    for index in product(*(range(a, b + 1) for a, b in zip(first, last, strict=True))):
        start = Vec3(*index) * stride
        yield Box(start.maximum(box.start), (start + stride).minimum(box.stop))
