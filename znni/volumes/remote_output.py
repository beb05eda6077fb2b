"""A folder at a URL, which cannot be renamed when it is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from znni.core.errors import InvalidInput, option
from znni.volumes.ledger_file import in_parts
from znni.volumes.output_place import check_absent
from znni.volumes.remote_files import RemoteFiles
from znni.volumes.stored import reason


class RemoteFolder(RemoteFiles):
    """A folder at a URL, with a marker ``NAME.partial`` beside it until it is complete.

    Object stores rename by copying, so all files have their final names from the start. The writer
    must therefore hold back the file that makes the output readable, until ``complete``. One
    process takes the place by ``take``. Or several processes share it, and each calls ``make``.

    Raises:
        InvalidInput: nothing can be made at such a URL.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._is_taken = self._completes = False
        with refused_at_url(place):
            super().__init__(place)
            self._marker = RemoteFiles(f"{place}.partial")
            self.ledger = RemoteFiles(f"{place}.partial.ledger")

    def check(self, marks: Sequence[str], *, overwrite: bool, room: int = 0) -> None:  # noqa: ARG002
        """Refuse a URL where no folder can be made, or whose folder may not be deleted.

        Nothing is changed.

        Args:
            marks: file names; a folder may be deleted only if it holds one of them.
            overwrite: allow deleting an existing output, complete or left by another run.
            room: not used: nobody knows how much a store can take.

        Raises:
            InvalidInput: the URL is refused, or another run is writing there.
        """
        with refused_at_url(self.place):
            if self.ledger.has(""):
                raise in_parts(self._marker.root)
            if self.is_begun:
                if not overwrite:
                    raise FileExistsError
            elif self.has("") and not overwrite:
                again = option("overwrite", True)
                raise InvalidInput(f"{self.place}: exists; give {again} to delete it first")
            if self.has("") and not any(map(self.has, marks)):
                raise InvalidInput(
                    f"{self.place}: is a folder of something else, and is not deleted; name another"
                )

    def check_to_share(self) -> None:
        """Refuse a URL where several processes can make no output. Nothing is changed.

        Raises:
            InvalidInput: there is a complete output, or nothing can be made there.
        """
        with refused_at_url(self.place):
            check_absent(self.place, there=self.is_whole)

    @property
    def is_begun(self) -> bool:
        """True if there is an unfinished output."""
        return self._marker.has("")

    @property
    def is_whole(self) -> bool:
        """True if there is a complete output, or something else of that name."""
        return self.has("") and not self.is_begun

    @property
    def is_complete(self) -> bool:
        """True if the marker is removed, even if that was interrupted."""
        return self._completes and self._marker.is_gone()

    def make(self) -> None:
        """Make the marker, unless another process has done so."""
        self._marker.make_once("", b"")

    def take(self, *, overwrite: bool) -> None:
        """Make the marker, after deleting an existing output that may be deleted.

        Raises:
            InvalidInput: another run is writing the folder, or nothing can be made there.
        """
        with refused_at_url(self.place):
            for old in (self, self._marker) if overwrite else ():
                if old.has(""):
                    old.delete()
            if not self._marker.make_once("", b""):
                raise FileExistsError
        self._is_taken = True

    def stays(self, name: str) -> bool:
        """Return whether a file is there. A new folder of one process has each file once."""
        return not self._is_taken and super().stays(name)

    def settle(self) -> None:
        """Do nothing: a store keeps all that it has accepted."""

    def complete(self) -> None:
        """Remove the marker: the folder is complete."""
        self._completes = True
        self._marker.delete()

    def keep(self) -> None:
        """Leave the folder as it is, marked as incomplete."""

    def discard(self) -> None:
        """Delete the folder and its marker, if that is possible."""
        super().discard()
        self._marker.discard()


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
