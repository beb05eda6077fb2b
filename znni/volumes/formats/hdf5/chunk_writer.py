"""Writing to an HDF5 file without HDF5: values of chunks, and changes of its structure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.core import system
from znni.core.shapes import ZERO, Box, Vec3
from znni.machine.io_threads import at_once, finish, mapped
from znni.volumes.formats.hdf5.chunk_reader import NOWHERE, chunk_places
from znni.volumes.partial_file import begin_flush, write_all

# The most writes to a file at the same time. File systems let one write after the other, and those
# that wait spin: 16 at a time took 17 seconds of cores for 3.5 GB, two took 6, and were no slower.
MOST_WRITES = 2

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class ChunkWriter:
    """Writes values to the places that HDF5 has given to the uncompressed chunks of a dataset.

    Only those bytes of the file change. So the structure by which HDF5 finds them stays valid,
    whenever the process ends. HDF5 tells all places beforehand. Asked later, it would make writing
    wait for concurrent reads, because of its lock.

    Args:
        dataset: dataset (f, z, y, x), opened for reading; its chunks have one map each, and their
            places.
        descriptor: descriptor of its file, opened for writing.
    """

    def __init__(self, dataset: h5py.Dataset, descriptor: int) -> None:
        self._descriptor = descriptor
        self._dtype: np.dtype[Any] = dataset.dtype
        self._chunk = Vec3(*dataset.chunks[1:])
        self._whole = Box(ZERO, Vec3(*dataset.shape[1:]))
        self._places = _places(dataset)
        self._turns = BoundedSemaphore(MOST_WRITES)

    def write(self, box: Box, values: NDArray[np.generic]) -> None:
        """Store the values (f, z, y, x) of a box.

        Each thread takes one row of chunks along x at a time. Together the threads hold at most one
        copy of the box.
        """

        def write(place: tuple[int, Box]) -> None:
            feature, part = place
            inside = part.shifted(ZERO - box.start)
            self._write_row(feature, part, values[(feature, *inside.slices)])

        row = self._chunk._replace(x=self._whole.stop.x)
        parts = ((feature, part) for part in box.cut(row) for feature in range(len(values)))
        most = max(row.minimum(box.size).volume, self._chunk.volume) * values.itemsize
        finish(mapped(write, parts, at_once(values.nbytes, 2 * most), "writing"))

    def _write_row(self, feature: int, row: Box, values: NDArray[np.generic]) -> None:
        """Store part of a row of chunks: wholly covered chunks together, the others one by one."""
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
        """Store whole chunks of a row. Neighbours in the file are written together.

        HDF5 places most chunks one after the other. Nothing changes them later, so the disk may
        have them at once.

        Args:
            feature: map of the chunks.
            run: box that the chunks cover.
            values: values of the box, and maybe more along x.
        """
        chunk = self._chunk
        count, z, y, x = run.size.x // chunk.x, *(run.start // chunk)
        in_chunks = values[..., : run.size.x].reshape(chunk.z, chunk.y, count, chunk.x)
        stored = np.ascontiguousarray(in_chunks.transpose(2, 0, 1, 3), self._dtype)
        places = self._places[feature, z, y, x : x + count]
        breaks = np.flatnonzero(np.diff(places) != stored[0].nbytes) + 1
        for some, together in zip(np.split(places, breaks), np.split(stored, breaks), strict=True):
            self._write_in_turn(together, int(some[0]))
            begin_flush(self._descriptor, int(some[0]), together.nbytes)

    def _write_to_chunk(self, feature: int, part: Box, values: NDArray[np.generic]) -> None:
        """Store part of a chunk; the rest stays as it is, except for voxels outside the volume."""
        index = part.start // self._chunk
        start = index * self._chunk
        chunk = Box(start, start + self._chunk)
        place = int(self._places[(feature, *index)])
        stored = np.zeros(self._chunk, self._dtype)
        if part != chunk.intersection(self._whole):
            there = system.read_at(self._descriptor, stored.nbytes, place)
            stored.reshape(-1).view(np.uint8)[: len(there)] = np.frombuffer(there, np.uint8)
        stored[part.shifted(ZERO - start).slices] = values
        self._write_in_turn(stored, place)

    def _write_in_turn(self, stored: NDArray[Any], place: int) -> None:
        """Write values to a place in the file, when few others write."""
        with self._turns:
            write_all(self._descriptor, stored, place)


def _places(dataset: h5py.Dataset) -> NDArray[np.int64]:
    """Return where in its file each chunk of an output begins.

    Raises:
        ValueError: a chunk has no place, so the file is damaged.
    """
    places = chunk_places(dataset)
    if (places == NOWHERE).any():
        raise ValueError("some of its chunks have no place in the file")
    return places


def _along_x(box: Box, start: int, stop: int) -> Box:
    return Box(box.start._replace(x=start), box.stop._replace(x=stop))


class HeldChanges(RawIOBase):
    """A file seen with changes that are kept here and never written to it.

    Args:
        descriptor: descriptor of the file, opened for reading.
        changes: changes to begin with.

    Attributes:
        changes: bytes with their places, in the order of writing.
    """

    def __init__(self, descriptor: int, changes: Iterable[tuple[int, bytes]] = ()) -> None:
        self.changes = list(changes)
        self._descriptor = descriptor
        ends = (place + len(data) for place, data in self.changes)
        self._length = max(os.fstat(descriptor).st_size, *ends, 0)
        self._position = 0

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        """Move to a place relative to the start, the current position or the end."""
        self._position = offset + {SEEK_CUR: self._position, SEEK_END: self._length}.get(whence, 0)
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read from the current position; zeros where the file has nothing."""
        view = memoryview(buffer).cast("B")
        start, stop = self._position, self._position + len(view)
        there = system.read_at(self._descriptor, len(view), start)
        view[:] = there + bytes(len(view) - len(there))
        for place, data in self.changes:
            low, high = max(start, place), min(stop, place + len(data))
            if low < high:
                view[low - start : high - start] = data[low - place : high - place]
        self._position = stop
        return len(view)

    def write(self, data: ReadableBuffer, /) -> int:
        """Keep the bytes for the current position."""
        kept = bytes(data)
        self.changes.append((self._position, kept))
        self._position += len(kept)
        self._length = max(self._length, self._position)
        return len(kept)

    def truncate(self, size: int | None = None, /) -> int:
        """Keep the new length, if it is larger."""
        length = self._position if size is None else size
        if length > self._length:
            self.changes.append((length, b""))
            self._length = length
        return length


def make_changes(descriptor: int, changes: list[tuple[int, bytes]]) -> None:
    """Write bytes to their places in a file, and lengthen it as needed.

    Doing so twice has the same result as once.
    """
    for place, data in changes:
        if os.fstat(descriptor).st_size < place:
            os.ftruncate(descriptor, place)
        write_all(descriptor, data, place)
