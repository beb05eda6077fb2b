"""Writing to an HDF5 file past HDF5: the values of chunks, and changes of its structure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Box, Vec3
from znni.volumes.io_threads import at_once, finish, mapped
from znni.volumes.positioned_write import write_all

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

NOWHERE = -1  # the place of a chunk that a file does not name


class ChunkWriter:
    """Puts values where HDF5 has placed the chunks of a dataset (f, z, y, x), uncompressed.

    Only those bytes of the file are written. So the structure of the file, by which HDF5 finds
    them, is as it was whenever the process ends. HDF5 tells all places beforehand: later it would
    keep the writing waiting for what is read meanwhile, under its lock.

    Args:
        dataset: opened to be read; its chunks are of one map each, and have their places.
        descriptor: of its file, open to be written.
    """

    def __init__(self, dataset: h5py.Dataset, descriptor: int) -> None:
        self._descriptor = descriptor
        self._dtype: np.dtype[Any] = dataset.dtype
        self._chunk = Vec3(*dataset.chunks[1:])
        self._whole = Box(Vec3(0, 0, 0), Vec3(*dataset.shape[1:]))
        self._places = _places(dataset)

    def write(self, box: Box, values: NDArray[np.generic]) -> None:
        """Store the values (f, z, y, x) of a box, by threads that hold no more than a copy of it.

        A thread takes a row of chunks along x at a time.

        Raises:
            OSError: they cannot be written.
        """

        def write(place: tuple[int, Box]) -> None:
            feature, part = place
            inside = part.shifted(Vec3(0, 0, 0) - box.start)
            self._write_row(feature, part, values[(feature, *inside.slices)])

        row = self._chunk._replace(x=self._whole.stop.x)
        parts = ((feature, part) for part in box.cut(row) for feature in range(len(values)))
        most = max(row.minimum(box.size).volume, self._chunk.volume) * values.itemsize
        finish(mapped(write, parts, at_once(values.nbytes, 2 * most)))

    def _write_row(self, feature: int, row: Box, values: NDArray[np.generic]) -> None:
        """Store a part of a row of chunks: those that it covers at once, each of the others."""
        step, first, last = self._chunk.x, row.start.x, row.stop.x
        covers = row.size == self._chunk._replace(x=row.size.x)
        begin, end = (-(-first // step) * step, last // step * step) if covers else (last, last)
        if begin < end:
            self._write_covered(feature, _along_x(row, begin, end), values[..., begin - first :])
        for part in row.cut(self._chunk):
            if not begin <= part.start.x < end:
                start = part.start.x - first
                self._write_to_chunk(feature, part, values[..., start : start + part.size.x])

    def _write_covered(self, feature: int, run: Box, values: NDArray[np.generic]) -> None:
        """Store chunks of a row: one after the other in the file, as HDF5 mostly has them, at once.

        Args:
            feature: their map.
            run: what they cover.
            values: its values, and maybe more along x.
        """
        chunk = self._chunk
        count, z, y, x = run.size.x // chunk.x, *(run.start // chunk)
        in_chunks = values[..., : run.size.x].reshape(chunk.z, chunk.y, count, chunk.x)
        stored = np.ascontiguousarray(in_chunks.transpose(2, 0, 1, 3), self._dtype)
        places = self._places[feature, z, y, x : x + count]
        breaks = np.flatnonzero(np.diff(places) != stored[0].nbytes) + 1
        for some, together in zip(np.split(places, breaks), np.split(stored, breaks), strict=True):
            write_all(self._descriptor, together, int(some[0]))

    def _write_to_chunk(self, feature: int, part: Box, values: NDArray[np.generic]) -> None:
        """Store a part of a chunk; the rest of it stays as it is, but for what lies outside."""
        index = part.start // self._chunk
        start = index * self._chunk
        chunk = Box(start, start + self._chunk)
        place = int(self._places[(feature, *index)])
        stored = np.zeros(self._chunk, self._dtype)
        if part != chunk.intersection(self._whole):
            there = os.pread(self._descriptor, stored.nbytes, place)
            stored.reshape(-1).view(np.uint8)[: len(there)] = np.frombuffer(there, np.uint8)
        stored[part.shifted(Vec3(0, 0, 0) - start).slices] = values
        write_all(self._descriptor, stored, place)


def _places(dataset: h5py.Dataset) -> NDArray[np.int64]:
    """Where in its file each chunk begins, by its place in the grid of chunks.

    Raises:
        ValueError: one is nowhere: the file is damaged.
    """
    grid = [-(-extent // step) for extent, step in zip(dataset.shape, dataset.chunks, strict=True)]
    places = np.full(grid, NOWHERE, np.int64)

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        index = (at // step for at, step in zip(chunk.chunk_offset, dataset.chunks, strict=True))
        places[tuple(index)] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    if (places == NOWHERE).any():
        raise ValueError("some of its chunks have no place in the file")
    return places


def _along_x(box: Box, start: int, stop: int) -> Box:
    return Box(box.start._replace(x=start), box.stop._replace(x=stop))


class HeldChanges(RawIOBase):
    """A file as it is with changes that are not made: what is written to it is only kept.

    Args:
        descriptor: of the file, opened to be read.
        changes: those that there are from the start.

    Attributes:
        changes: bytes with their places, in the order written.
    """

    def __init__(self, descriptor: int, changes: Iterable[tuple[int, bytes]] = ()) -> None:
        self.changes = list(changes)
        self._descriptor = descriptor
        ends = (place + len(data) for place, data in self.changes)
        self._length = max(os.fstat(descriptor).st_size, *ends, 0)
        self._position = 0

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        """Go to a place, from the start, from here or from the end."""
        self._position = offset + {SEEK_CUR: self._position, SEEK_END: self._length}.get(whence, 0)
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read from here on; zeros where there is nothing."""
        view = memoryview(buffer).cast("B")
        start, stop = self._position, self._position + len(view)
        there = os.pread(self._descriptor, len(view), start)
        view[:] = there + bytes(len(view) - len(there))
        for place, data in self.changes:
            low, high = max(start, place), min(stop, place + len(data))
            if low < high:
                view[low - start : high - start] = data[low - place : high - place]
        self._position = stop
        return len(view)

    def write(self, data: ReadableBuffer, /) -> int:
        """Keep what is to be written here."""
        kept = bytes(data)
        self.changes.append((self._position, kept))
        self._position += len(kept)
        self._length = max(self._length, self._position)
        return len(kept)

    def truncate(self, size: int | None = None, /) -> int:
        """Keep the length to be set, if it is a larger one."""
        length = self._position if size is None else size
        if length > self._length:
            self.changes.append((length, b""))
            self._length = length
        return length


def make_changes(descriptor: int, changes: list[tuple[int, bytes]]) -> None:
    """Write bytes to their places in a file, which is lengthened to them. Twice does as once.

    Raises:
        OSError: they cannot be written.
    """
    for place, data in changes:
        if os.fstat(descriptor).st_size < place:
            os.ftruncate(descriptor, place)
        write_all(descriptor, data, place)
