"""A folder at a URL, which cannot be renamed when it is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from znni.core.errors import InvalidInput, option
from znni.volumes.formats import library
from znni.volumes.ledger_file import in_parts
from znni.volumes.stored import reason


def check_url(place: str, marks: Sequence[str], *, overwrite: bool) -> None:
    """Refuse a URL where no folder can be made, or whose folder may not be deleted.

    Nothing is changed.

    Args:
        place: the URL.
        marks: file names; a folder may be deleted only if it holds one of them.
        overwrite: allow deleting an existing output, complete or left by another run.

    Raises:
        InvalidInput: the URL is refused, or another run is writing there.
    """
    with refused_at_url(place):
        files, path = _files_at(place)
        if files.exists(f"{_marker(path)}.ledger"):
            raise in_parts(_marker(place))
        if files.exists(_marker(path)):
            if not overwrite:
                raise FileExistsError
        elif files.exists(path) and not overwrite:
            again = option("overwrite", True)
            raise InvalidInput(f"{place}: exists; give {again} to delete it first")
        if files.exists(path) and not any(files.exists(f"{path}/{mark}") for mark in marks):
            raise InvalidInput(
                f"{place}: is a folder of something else, and is not deleted; name another"
            )


class RemoteFolder:
    """A new folder at a URL, with a marker ``NAME.partial`` beside it until it is complete.

    Object stores rename by copying, so all files have their final names from the start. The writer
    must therefore hold back the file that makes the output readable, until ``complete``. An
    existing folder that ``check_url`` allows to be deleted is deleted first.

    Attributes:
        place: the URL.
        root: URL to write to, the same.

    Raises:
        InvalidInput: another run is writing the folder, or nothing can be made there.
    """

    def __init__(self, place: str, *, overwrite: bool) -> None:
        self.place = self.root = place
        self._completes = False
        with refused_at_url(place):
            self._files, self._path = _files_at(place)
            self._marker = _marker(self._path)
            if overwrite:
                for old, whole in ((self._path, True), (self._marker, False)):
                    if self._files.exists(old):
                        self._files.rm(old, recursive=whole)
            self._files.pipe_file(self._marker, b"", mode="create")

    def put(self, name: str, *parts: bytes | memoryview) -> None:
        """Create or replace a file in the folder. Without parts, do nothing: no file exists yet."""
        if parts:
            self._files.pipe_file(f"{self._path}/{name}", b"".join(parts))

    def stays(self, name: str) -> bool:  # noqa: ARG002
        """Return False: the folder is new, and each file is written once."""
        return False

    def settle(self) -> None:
        """Do nothing: a store keeps all that it has accepted."""

    def complete(self) -> None:
        """Remove the marker: the folder is complete."""
        self._completes = True
        self._files.rm(self._marker)

    @property
    def is_complete(self) -> bool:
        """True if the marker is removed, even if that was interrupted."""
        if self._completes:
            try:
                self._files.info(self._marker)
            except FileNotFoundError:
                return True
            except Exception:  # nobody knows
                return False
        return False

    def keep(self) -> None:
        """Leave the folder as it is, marked as incomplete."""

    def discard(self) -> None:
        """Delete the folder and its marker."""
        for path in (self._path, self._marker):
            with suppress(Exception):  # the run has already failed, perhaps for the same reason
                self._files.rm(path, recursive=True)


def _files_at(place: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path there."""
    files, path = library("fsspec", "zarr").core.url_to_fs(place)
    return files, path


def _marker(path: str) -> str:
    return f"{path}.partial"


@contextmanager
def refused_at_url(place: str) -> Iterator[None]:
    """Turn any failure to make an output at a URL into one clear error."""
    try:
        yield
    except InvalidInput:
        raise
    except FileExistsError:
        raise InvalidInput(
            f"{place}.partial: exists, so another run is writing {place}, or was stopped; wait "
            f"for it, write elsewhere, or give {option('overwrite', True)} to delete both: outputs "
            f"at URLs cannot be continued"
        ) from None
    except ImportError as error:  # the URL's protocol needs a library
        raise InvalidInput(
            f"{place}: cannot be written there: {reason(error)}; pip install it"
        ) from None
    except Exception as error:  # file systems and their libraries raise all kinds
        raise InvalidInput(
            f"{place}: cannot be written there: {reason(error)}; check the URL, and that you "
            f"may write there"
        ) from error
