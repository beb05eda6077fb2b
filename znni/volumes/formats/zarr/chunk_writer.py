"""Writing blocks as the chunks or shards of a new Zarr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import DEFAULT_COMPRESSION
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.volume import NewOutput
from znni.machine.io_threads import at_once, finish, mapped
from znni.volumes.formats.zarr.encoding import Encoded, encoder, file_of
from znni.volumes.output_folder import Files


@dataclass(frozen=True)
class _Part:
    """A box of one map."""

    feature: int
    box: Box

    def of(self, values: NDArray[Any], block: Box) -> NDArray[Any]:
        """Return the part's values among those (f, z, y, x) of a block around it."""
        inside: NDArray[Any] = values[(self.feature, *self.box.shifted(ZERO - block.start).slices)]
        return inside


class ZarrChunks:
    """Writes blocks; threads encode the values and write the files.

    A file that the block covers is written anew. Other files are left to zarr, which reads the
    chunks around the block and replaces them. Together the threads hold at most one copy of the
    block.

    Args:
        array: the zarr.Array, of axes (f', z, y, x).
        folder: folder that contains the array's folder ``level``.
        level: name of the array in it.
        wanted: description of the output.
    """

    def __init__(self, array: Any, folder: Files, level: str, wanted: NewOutput) -> None:
        self._array = array
        self._folder = folder
        self._level = level
        self._wanted = wanted
        self._chunk = Vec3(*array.chunks[1:])
        self._file = Vec3(*(array.shards or array.chunks)[1:])
        self._in_shard = self._file // self._chunk if wanted.sharded else None
        self._encode = encoder(wanted.compression or DEFAULT_COMPRESSION)

    def write(self, block: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a block."""
        parts = [
            _Part(feature, part)
            for part in block.cut(self._file)
            for feature in range(self._wanted.features)
        ]
        self._make([part for part in parts if self._is_whole(part.box)], block, values)
        self._change([part for part in parts if not self._is_whole(part.box)], block, values)

    def _is_whole(self, part: Box) -> bool:
        """Return whether a part covers all that its file holds of the array."""
        whole = Box(part.start, (part.start + self._file).minimum(self._wanted.size))
        return part.start % self._file == ZERO and part == whole

    def _make(self, files: list[_Part], block: Box, values: NDArray[Any]) -> None:
        # Half of the copy is for chunks that are being encoded, and half for files. An encoded
        # chunk exists three times: contiguous, in a buffer for the worst compression, and as the
        # result.
        half = values.nbytes // 2
        encoding = at_once(half, 3 * self._chunk.volume * values.itemsize)
        writing = at_once(half, self._file.volume * values.itemsize)

        def encoded(chunk: _Part) -> Encoded:
            return self._encode(chunk.of(values, block), self._chunk, False)

        def write(file: tuple[_Part, list[Encoded]]) -> None:
            part, chunks = file
            index = part.feature, *(part.box.start // self._file)
            name = f"{self._level}/c/{'/'.join(map(str, index))}"
            if chunks.count(None) == len(chunks) and self._folder.stays(name):
                chunks[0] = self._encode(np.zeros((0, 0, 0), values.dtype), self._chunk, True)
            self._folder.put(name, *file_of(chunks, self._in_shard))

        chunks = [chunk for file in files for chunk in self._chunks_of(file)]
        with closing(mapped(encoded, chunks, encoding, "writing")) as done:
            per_file = (self._file // self._chunk).volume
            whole = ((file, list(islice(done, per_file))) for file in files)
            finish(mapped(write, whole if len(files) > 1 else list(whole), writing, "writing"))

    def _chunks_of(self, file: _Part) -> Iterator[_Part]:
        """Yield all chunks of a file, in order. Chunks beyond the array's end are empty."""
        for index in product(*map(range, self._file // self._chunk)):
            start = file.box.start + Vec3(*index) * self._chunk
            yield _Part(file.feature, Box(start, (start + self._chunk).minimum(self._wanted.size)))

    def _change(self, files: list[_Part], block: Box, values: NDArray[Any]) -> None:
        def change(part: _Part) -> None:
            self._array[(part.feature, *part.box.slices)] = part.of(values, block)

        # The file as read, decoded, changed and encoded again.
        changing = at_once(values.nbytes, 4 * self._file.volume * values.itemsize)
        finish(mapped(change, files, changing, "writing"))
