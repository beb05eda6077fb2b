"""Files of small outputs, made without HDF5 after it has made one like them.

HDF5 takes 1 ms for a file with the attributes of an output. Files of outputs of one shape mostly
have the same bytes but for values of the same lengths. So HDF5 makes such a file again, with marks
in place of these values, which tell their places.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import product
from math import prod
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.shapes import Box, Vec3
from znni.volumes.hdf5.chunked import chunk_places
from znni.volumes.hdf5.new_file import make_output, store_ledger

# Structures kept. Each takes a few times the bytes of a plan.
MOST_STRUCTURES = 64

# Bytes of the shortest mark: a shorter one could stand elsewhere by chance.
LEAST_MARK = 8

# What marks of text are made of.
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)

FLOAT = np.dtype(float)
DOUBLE = struct.Struct("d")


class Other:
    """A value of an attribute that is no text and no numbers. It equals no other."""

    def __init__(self, value: object) -> None:
        self.value = value


class Kind(NamedTuple):
    """The properties of an attribute that decide the structure of its file.

    Attributes:
        name: the name of the attribute.
        dtype: the type of its numbers; None: it is text.
        shape: its extents, in bytes if it is text.
        value: the value that all files with the template have, as bytes if it is text or numbers;
            None: each file has its own.
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    value: bytes | Other | None

    def mark(self, generator: np.random.Generator) -> bytes:
        """Return random bytes of a value of this kind."""
        if self.dtype is None:
            return bytes(generator.choice(LETTERS, self.shape))
        return generator.bytes(prod(self.shape) * self.dtype.itemsize)

    def made_of(self, stored: bytes | Other) -> Any:
        """Return the value of this kind that a file stores as some bytes."""
        if isinstance(stored, Other):
            return stored.value
        if self.dtype is None:
            return stored.decode()
        return np.frombuffer(stored, self.dtype).reshape(self.shape)


class Template(NamedTuple):
    """A file without the values that differ between files of the same structure.

    Attributes:
        pieces: the bytes between the chunks of the output, with their places.
        length: the length of the file.
        own: where the values begin that each file has its own of.
        dtype: the type of the values of the output.
        chunk: the extents of a chunk, which has one map.
        places: where each chunk begins.
    """

    pieces: Sequence[tuple[int, bytes]]
    length: int
    own: Sequence[int]
    dtype: np.dtype[Any]
    chunk: Vec3
    places: NDArray[np.int64]

    def filled(self, own: Sequence[bytes], values: NDArray[Any]) -> bytearray:
        """Return a file with its own values, and the values (f', z, y, x) of its output."""
        file = bytearray(self.length)
        for place, piece in self.pieces:
            file[place : place + len(piece)] = piece
        for place, value in zip(self.own, own, strict=True):
            file[place : place + len(value)] = value
        _put_chunks(file, values, self.dtype, self.chunk, self.places)
        return file


def whole_file(
    values: NDArray[Any],
    dtype: DTypeLike,
    chunk: Vec3,
    maps: tuple[str, ...],
    attributes: Mapping[str, Any],
    ledger: bytes,
) -> bytearray | memoryview:
    """Return a whole output as a file, with the same bytes as HDF5 writes.

    HDF5 makes the first file of a structure: a template takes three times as long.

    Args:
        values: its values (f', z, y, x).
        dtype: the type that they have in the file.
        chunk: the extents of a chunk, which has one map.
        maps: the names of its maps, if they have names.
        attributes: its other attributes.
        ledger: its ledger.
    """
    kinds, own = list[Kind](), list[bytes]()
    for name, value in attributes.items():
        kind, stored = _kind_of(name, value)
        kinds.append(kind)
        if kind.value is None:
            own.append(stored)
    about = values.shape, np.dtype(dtype), chunk, maps, tuple(kinds), len(ledger)
    structure = _structure(*about)
    if structure.template is None and not structure.used:
        structure.used = True
        made, places = _empty_file(values.shape, dtype, chunk, maps, attributes, ledger)
        # HDF5 would fill up chunks beyond the edges of the output with what its memory holds.
        _put_chunks(made, values, np.dtype(dtype), chunk, places)
        return made
    if structure.template is None:
        structure.template = _template(*about)
    return structure.template.filled([*own, ledger], values)


def _empty_file(
    shape: tuple[int, ...],
    dtype: DTypeLike,
    chunk: Vec3,
    maps: tuple[str, ...],
    attributes: Mapping[str, Any],
    ledger: bytes,
) -> tuple[memoryview, NDArray[np.int64]]:
    """Return the file of an output without its values, and where each of its chunks begins."""
    image = BytesIO()
    with h5py.File(image, "w") as file:
        places = chunk_places(make_output(file, shape, dtype, chunk, maps, attributes))
        store_ledger(file, ledger)
    return image.getbuffer(), places


def _put_chunks(
    file: bytearray | memoryview,
    values: NDArray[Any],
    dtype: np.dtype[Any],
    chunk: Vec3,
    places: NDArray[np.int64],
) -> None:
    """Put the values (f', z, y, x) of an output into its chunks, which hold zeros.

    Args:
        file: the file.
        values: the values.
        dtype: the type that they have in the file.
        chunk: the extents of a chunk, which has one map.
        places: where each chunk begins.
    """
    whole = Box(Vec3(0, 0, 0), Vec3(*values.shape[1:]))
    for feature, part in product(range(len(values)), whole.cut(chunk)):
        place = places[(feature, *(part.start // chunk))]
        stored = np.frombuffer(file, dtype, chunk.volume, place)
        inside = Box(Vec3(0, 0, 0), part.size)
        stored.reshape(chunk)[inside.slices] = values[(feature, *part.slices)]


class Structure:
    """The use of files with one structure.

    Attributes:
        used: whether a file with it was made.
        template: the template of further ones, once there is one.
    """

    def __init__(self) -> None:
        self.used = False
        self.template: Template | None = None


@lru_cache(maxsize=MOST_STRUCTURES)
def _structure(*_about: object) -> Structure:
    """Return the structure of files, given what decides it: the arguments of ``_template``."""
    return Structure()


def _kind_of(name: str, value: Any) -> tuple[Kind, bytes]:
    """Return the kind of an attribute, and the bytes that a file stores for its value."""
    if type(value) is float:
        return Kind(name, FLOAT, (), None), DOUBLE.pack(value)
    if type(value) is str:
        text = value.encode()
        has_mark = len(text) >= LEAST_MARK and b"\0" not in text  # which HDF5 refuses
        return Kind(name, None, (len(text),), None if has_mark else text), text
    held = np.asarray(value)
    if held.dtype.kind not in "iufb":
        return Kind(name, None, (), Other(value)), b""
    stored = held.tobytes()
    has_mark = len(stored) >= LEAST_MARK and held.dtype.kind != "b"
    return Kind(name, held.dtype, held.shape, None if has_mark else stored), stored


def _template(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunk: Vec3,
    maps: tuple[str, ...],
    kinds: tuple[Kind, ...],
    ledger_length: int,
) -> Template:
    """Return the template of files with kinds of attributes, then the ledger, of their own."""
    generator = np.random.default_rng(0)
    marks = [kind.mark(generator) for kind in kinds if kind.value is None]
    marks.append(generator.bytes(ledger_length))
    stored = iter(marks)
    attributes = {
        kind.name: kind.made_of(next(stored) if kind.value is None else kind.value)
        for kind in kinds
    }
    made, places = _empty_file(shape, dtype, chunk, maps, attributes, marks[-1])
    pieces = tuple(_between(bytes(made), places, chunk.volume * dtype.itemsize))
    own = [_place_of(mark, pieces) for mark in marks]
    return Template(pieces, len(made), own, dtype, chunk, places)


def _place_of(mark: bytes, pieces: Sequence[tuple[int, bytes]]) -> int:
    """Return where a mark begins in a file. Its chunks, which are large, have no marks."""
    return next(place + at for place, piece in pieces if (at := piece.find(mark)) >= 0)


def _between(file: bytes, places: NDArray[np.int64], length: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a file between chunks of a length, with their places."""
    end = 0
    for place in sorted(map(int, places.flat)):
        yield end, file[end:place]
        end = place + length
    yield end, file[end:]
