"""A folder at a URL, which cannot be renamed once it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from znni.errors import InvalidInput, option
from znni.volumes.formats import library
from znni.volumes.stored import reason


class RemoteFolder:
    """A new folder at a URL, with a marker ``NAME.partial`` beside it until it is whole.

    Object stores rename by copying: what is written has its final name from the start, so whoever
    writes must keep back what makes the whole of it, until ``complete``.

    Attributes:
        place: the URL.
        root: where to write, the same.

    Raises:
        InvalidInput: there is something already, another run is writing it, or nothing can be
            made there.
    """

    def __init__(self, place: str, marks: Sequence[str], *, overwrite: bool) -> None:
        """Make it.

        Args:
            place: its URL.
            marks: names of files one of which a folder holds that may be deleted.
            overwrite: delete first what has the name, of a whole output or of another run's.
        """
        self.place = self.root = place
        fsspec = library("fsspec", "zarr")
        try:
            self._files, self._path = fsspec.core.url_to_fs(place)
            self._marker = f"{self._path}.partial"
            if overwrite:
                self._clear(marks)
            elif self._files.exists(self._path) and not self._files.exists(self._marker):
                again = option("overwrite", True)
                raise InvalidInput(f"{place}: exists; give {again} to delete it first")
            self._files.pipe_file(self._marker, b"", mode="create")
        except InvalidInput:
            raise
        except FileExistsError:
            raise InvalidInput(
                f"{place}.partial: exists, so another run is writing {place}, or was stopped; wait "
                f"for it, write elsewhere, or give {option('overwrite', True)} to delete both"
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

    def _clear(self, marks: Sequence[str]) -> None:
        if self._files.exists(self._path):
            if not any(self._files.exists(f"{self._path}/{mark}") for mark in marks):
                raise InvalidInput(
                    f"{self.place}: is a folder of something else, and is not deleted; name another"
                )
            self._files.rm(self._path, recursive=True)
        if self._files.exists(self._marker):
            self._files.rm(self._marker)

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
