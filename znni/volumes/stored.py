"""Volumes in a file or a store."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from numpy.typing import NDArray
from zlib_ng import zlib_ng

from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput, RunFailed, Unreachable, Unreadable, ZnniError
from znni.core.option_types import Codec, Form
from znni.core.shapes import Box, Vec3
from znni.core.volume import Grid
from znni.plans.stored_values import InputChunks
from znni.volumes.array import ALL, ArrayVolume

# Errors of a disk, or a user's share of it, that is full.
FULL = (errno.ENOSPC, errno.EDQUOT)

# Errors by which the system says that data is out of reach, not damaged. Libraries raise other
# kinds of OSError for damage in local files.
OUT_OF_REACH = (ConnectionError, TimeoutError, PermissionError)


class StoredVolume(ArrayVolume):
    """A volume over an array that is read from a file or a store when it is sliced.

    Args:
        name: its name, for messages.
        grid: position of its voxels in space.
        attributes: what is stored with it.
        coarser: opens its coarser resolutions, the finest first.
        chunks: what reads its chunks, their codec and extents (..., z, y, x), if they are known.
        chunk_bytes: bytes that reading takes for a chunk, of which it needs a part.

    Raises:
        Unreachable: the data is out of reach, for example on a server that does not answer.
        Unreadable: a part cannot be read, for example from a damaged or truncated file.
    """

    def __init__(
        self,
        array: ArrayLike,
        name: str,
        grid: Grid | None = None,
        attributes: Mapping[str, Any] = MappingProxyType({}),
        coarser: Callable[[], list[ArrayVolume]] = list,
        chunks: tuple[Form, Codec | None, tuple[int, ...]] | None = None,
        chunk_bytes: int = 0,
    ) -> None:
        super().__init__(array, name, grid)
        self.chunk_bytes = chunk_bytes
        self._attributes = attributes
        self._coarser = coarser
        if chunks:
            form, codec, chunk = chunks
            extents = Vec3(*(1, *chunk)[-3:]).minimum(self.size)
            self.chunks = InputChunks(form, codec, extents, self.size)

    def coarser(self) -> list[ArrayVolume]:
        """Return the coarser resolutions that are stored too, the finest first.

        Raises:
            InvalidInput: one of them cannot be opened.
        """
        return self._coarser()

    def attribute(self, name: str) -> Any:
        """Return an attribute stored with the volume, or None. Outputs store how they were made.

        Raises:
            InvalidInput: the attribute cannot be read, for example from a damaged file.
        """
        try:
            return self._attributes.get(name)
        except Exception as error:  # libraries and their codecs raise all kinds
            raise InvalidInput(
                f"{self.name}: its attribute {name!r} cannot be read: {reason(error)}; copy the "
                f"file again"
            ) from None

    def attributes(self) -> dict[str, Any]:
        """Return all attributes that are stored with the volume.

        Raises:
            InvalidInput: they cannot be read.
        """
        try:
            return dict(self._attributes)
        except Exception as error:  # as above
            raise InvalidInput(
                f"{self.name}: its attributes cannot be read: {reason(error)}; copy the file again"
            ) from None

    def read(self, box: Box, maps: slice = ALL) -> NDArray[Any]:
        """Return the values (f, z, y, x) of a box within the volume, of all maps or of some."""
        try:
            return super().read(box, maps)
        except MemoryError:
            raise
        except Exception as error:  # as above
            said = f"{self.name}: cannot be read at {box}: {reason(error)}"
            if is_url(self.name):
                said += "; check the data, the network, and that the server sends parts of files"
                kind = Unreachable if isinstance(error, OSError) else Unreadable
            elif isinstance(error, OUT_OF_REACH):
                said += "; check that it may be read from here"
                kind = Unreachable
            else:
                said += "; check or copy the file again"
                kind = Unreadable
            raise kind(said) from error


def local_file(place: str, format_name: str) -> Path:
    """Return the path of a file that a format reads only from the local file system.

    Raises:
        InvalidInput: there is no such file, or it is a folder or a URL.
    """
    if is_url(place):
        raise InvalidInput(
            f"{place}: {format_name} files are read from this machine only; copy it here first, or "
            f"give a Zarr, whose chunks are read as they are needed"
        )
    path = Path(place)
    if path.is_file():
        return path
    if not path.exists():
        raise no_such_file(place)
    if path.is_dir():
        raise InvalidInput(
            f"{place}: is a folder, and this ending is one of {format_name} files; give a file, "
            f"or rename the folder if it holds the slices of a volume"
        )
    return path


def no_such_file(place: str) -> InvalidInput:
    """Return the error about a file or folder that is not there, or not finished yet."""
    partial = f"{place}.partial"
    if Path(partial).exists():
        return InvalidInput(
            f"{place}: is not finished; run the command that makes it again, which goes on, or "
            f"give {partial} for what there is"
        )
    return InvalidInput(f"{place}: no such file; check the path")


def check_no_dataset(place: str, dataset: str | None) -> None:
    """Refuse a dataset of a file that holds one image."""
    if dataset:
        raise InvalidInput(f"{place}: holds one image, and no dataset {dataset!r}; leave it out")


def decompressed(
    place: str, copy: Path | None, ending: str, write: Callable[[IO[bytes]], object]
) -> Path:
    """Return a copy of a file that is not compressed. An earlier copy is used again.

    Args:
        place: the file.
        copy: the path of the copy without its ending; None: it is written nowhere, as a check of
            the file, whose path is returned.
        ending: the ending of the copy.
        write: writes the copy.

    Raises:
        InvalidInput: the file is damaged, or the copy cannot be written.
        RunFailed: the disk is full.
    """
    made = copy and copy.with_suffix(ending)
    if made and made.exists():
        return made
    partial = made.with_name(f"{made.name}.partial") if made else Path(os.devnull)
    try:
        with partial.open("wb") as file:
            write(file)
    except (OSError, EOFError, zlib_ng.error) as error:  # type: ignore[misc] # a class it is
        if isinstance(error, OSError) and error.errno in FULL:
            raise RunFailed(
                f"{partial.parent}: {error.strerror}, while {place} is decompressed; make room, "
                f"and run the same command again"
            ) from None
        raise InvalidInput(
            f"{place}: cannot be decompressed: {reason(error)}; check or copy the file again"
        ) from None
    return partial.replace(made) if made else Path(place)


def is_url(place: str) -> bool:
    """Return whether a text is a URL, as ``s3://bucket/volume.zarr``."""
    return "://" in place


def reason(error: BaseException) -> str:
    """Return a library's error message on one line."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split()) or type(error).__name__


@contextmanager
def errors_as(
    to_error: Callable[[Exception], ZnniError], *passed: type[Exception]
) -> Iterator[None]:
    """Turn errors of libraries and file systems, which are of all kinds, into one of znni."""
    unchanged: tuple[type[Exception], ...] = (ZnniError, MemoryError, *passed)
    try:
        yield
    except unchanged:
        raise
    except Exception as error:
        raise to_error(error) from error
