"""A folder at a URL, which cannot be renamed once it is whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from znni.core.errors import InvalidInput, option
from znni.volumes.formats import library
from znni.volumes.stored import reason


def check_url(place: str, marks: Sequence[str], *, overwrite: bool) -> None:
    """Refuse a URL where no folder can be made, or there is one that may not be deleted.

    Nothing is touched.

    Args:
        place: the URL.
        marks: names of files one of which a folder holds that may be deleted.
        overwrite: delete first what has the name, of a whole output or of another run's.

    Raises:
        InvalidInput: so it is, or another run is writing there.
    """
    with _refused_at(place):
        files, path = _files_at(place)
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
    """A new folder at a URL, with a marker ``NAME.partial`` beside it until it is whole.

    Object stores rename by copying: what is written has its final name from the start, so whoever
    writes must keep back what makes the whole of it, until ``complete``. What has the name, and
    ``check_url`` has allowed to be deleted, is deleted first.

    Attributes:
        place: the URL.
        root: where to write, the same.

    Raises:
        InvalidInput: another run is writing it, or nothing can be made there.
    """

    def __init__(self, place: str, *, overwrite: bool) -> None:
        self.place = self.root = place
        with _refused_at(place):
            self._files, self._path = _files_at(place)
            self._marker = _marker(self._path)
            if overwrite:
                for old, whole in ((self._path, True), (self._marker, False)):
                    if self._files.exists(old):
                        self._files.rm(old, recursive=whole)
            self._files.pipe_file(self._marker, b"", mode="create")

    def put(self, name: str, *parts: bytes | memoryview) -> None:
        """Make a file in it, or replace one; of no parts, there is none as there was none."""
        if parts:
            self._files.pipe_file(f"{self._path}/{name}", b"".join(parts))

    def settle(self) -> None:
        """Nothing to do: what a store has taken it keeps."""

    def complete(self) -> None:
        """All is written: take the marker away."""
        self._files.rm(self._marker)

    def keep(self) -> None:
        """Leave it as it is, marked as not whole."""

    def discard(self) -> None:
        """Delete it."""
        for path in (self._path, self._marker):
            with suppress(Exception):  # the run has failed already, as this may for the same reason
                self._files.rm(path, recursive=True)


def _files_at(place: str) -> tuple[Any, str]:
    """The file system of a URL, and its path there."""
    files, path = library("fsspec", "zarr").core.url_to_fs(place)
    return files, path


def _marker(path: str) -> str:
    return f"{path}.partial"


@contextmanager
def _refused_at(place: str) -> Iterator[None]:
    """Whatever keeps an output from being made at a URL is one error."""
    try:
        yield
    except InvalidInput:
        raise
    except FileExistsError:
        raise InvalidInput(
            f"{place}.partial: exists, so another run is writing {place}, or was stopped; wait "
            f"for it, write elsewhere, or give {option('overwrite', True)} to delete both: outputs "
            f"at URLs cannot be gone on with"
        ) from None
    except ImportError as error:  # of what a URL's protocol needs
        raise InvalidInput(
            f"{place}: cannot be written there: {reason(error)}; pip install it"
        ) from None
    except Exception as error:  # file systems and their libraries raise all kinds
        raise InvalidInput(
            f"{place}: cannot be written there: {reason(error)}; check the URL, and that you "
            f"may write there"
        ) from error
