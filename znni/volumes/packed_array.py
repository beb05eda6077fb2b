"""Arrays that lie in files as one compressed stream."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from pathlib import Path
from threading import Lock
from typing import IO, Any
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray
from zlib_ng import zlib_ng

EITHER = 32 + zlib_ng.MAX_WBITS  # zlib's number of streams with a header of zlib or of gzip
TAKEN = 2**18  # bytes that are read or unpacked at a time
DIMENSIONS = 3  # of the part that is unpacked plane by plane


class PackedArray:
    """An array of a file that is compressed as one stream, by deflate.

    To read a part, the stream is unpacked from its start, or from the end of the part before. One
    thread at a time does so.

    Attributes:
        shape: the extents.
        dtype: the type of the values.
        chunk_bytes: the bytes that reading takes: those of a plane, twice.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, file: Path, dtype: DTypeLike, offset: int, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.chunk_bytes = 2 * prod(shape[1 - DIMENSIONS :]) * self.dtype.itemsize
        self._file, self._offset = file, offset
        self._stream = _Stream(file, offset)
        self._lock = Lock()

    def __getitem__(self, key: Any, /) -> NDArray[Any]:
        """Return a copy of the values at slices.

        Raises:
            EOFError: the stream is too short.
            zlib_ng.error: it is damaged.
        """
        parts = [range(*part.indices(extent)) for part, extent in zip(key, self.shape, strict=True)]
        outer = max(0, len(parts) - DIMENSIONS) + 1
        made = np.empty([len(part) for part in parts], self.dtype)
        plane, nbytes = self.shape[outer:], prod(self.shape[outer:]) * self.dtype.itemsize
        with self._lock:
            for to, at in zip(
                np.ndindex(*made.shape[:outer]), product(*parts[:outer]), strict=True
            ):
                place = int(np.ravel_multi_index(at, self.shape[:outer])) * nbytes
                made[to] = self._plane(place, nbytes).reshape(plane)[tuple(key[outer:])]
        return made

    def unpack(self, target: IO[bytes]) -> None:
        """Write all values to a file.

        Raises:
            EOFError: the stream is too short.
            zlib_ng.error: it is damaged.
        """
        stream = _Stream(self._file, self._offset)
        left = prod(self.shape) * self.dtype.itemsize
        try:
            while left:
                left -= target.write(stream.read(min(left, TAKEN)))
        finally:
            stream.close()

    def _plane(self, place: int, nbytes: int) -> NDArray[Any]:
        """Return the values of a plane. The caller keeps none of them while it reads the next."""
        return np.frombuffer(self._bytes(place, nbytes), self.dtype)

    def _bytes(self, place: int, count: int) -> bytes:
        """Return bytes of the unpacked stream."""
        if place < self._stream.position:
            self._restart()
        try:
            while self._stream.position < place:
                self._stream.read(min(place - self._stream.position, TAKEN))
            return self._stream.read(count)
        except BaseException:
            self._restart()
            raise

    def _restart(self) -> None:
        self._stream.close()
        self._stream = _Stream(self._file, self._offset)


class _Stream:
    """A stream while it is unpacked.

    Attributes:
        position: the number of bytes that were unpacked.
        close: closes the file. It is called at the latest when the stream is not used any more.
    """

    def __init__(self, file: Path, offset: int) -> None:
        self.position = 0
        self._file = file.open("rb")
        self._file.seek(offset)
        self._decoder = zlib_ng.decompressobj(EITHER)
        self.close = finalize(self, self._file.close)

    def read(self, count: int) -> bytes:
        """Return the next bytes.

        Raises:
            EOFError: there are fewer.
            zlib_ng.error: the stream is damaged.
        """
        found = b"".join(self._pieces(count))
        self.position += count
        return found

    def _pieces(self, count: int) -> Iterator[bytes]:
        while count:
            if self._decoder.eof:  # gzip's files may have several streams
                rest, self._decoder = self._decoder.unused_data, zlib_ng.decompressobj(EITHER)
            else:
                rest = self._decoder.unconsumed_tail
            packed = rest or self._file.read(TAKEN)
            piece = self._decoder.decompress(packed, count)
            if not (packed or piece):
                raise EOFError("its compressed values end too early")
            count -= len(piece)
            yield piece
