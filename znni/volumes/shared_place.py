"""The places of an output that several processes write: its files, its ledger and its name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from znni.core.errors import InvalidInput
from znni.volumes.ledger_file import ledger_name
from znni.volumes.partial_file import check_folder_of, check_new, partial_name, refused_at
from znni.volumes.partial_folder import put_in_place
from znni.volumes.remote_files import RemoteFiles
from znni.volumes.remote_output import refused_at_url
from znni.volumes.shared_files import Files, LocalFiles
from znni.volumes.stored import is_url


class SharedPlace(Protocol):
    """The place of an output that several processes write.

    Attributes:
        place: path or URL of the output.
        files: its files while it is unfinished.
        ledger: its ledger's files.
    """

    place: str

    @property
    def files(self) -> Files:
        """Files of the output while it is unfinished."""

    @property
    def ledger(self) -> Files:
        """Files of its ledger."""

    def begun(self) -> bool:
        """Return whether there is an unfinished output."""

    def whole(self) -> bool:
        """Return whether there is a complete output, or something else of that name."""

    def check(self) -> None:
        """Refuse a place where no output can be made. Nothing is changed.

        Raises:
            InvalidInput: there is a complete output, or nothing can be made there.
        """

    def make(self) -> None:
        """Begin the unfinished output, unless another process has done so."""

    def settle(self) -> None:
        """Wait until all files are stored."""

    def complete(self) -> None:
        """Make the output a complete one."""


def shared_place(place: str) -> SharedPlace:
    """Return the place of an output at a path or a URL.

    Raises:
        InvalidInput: nothing can be made at such a URL.
    """
    return _RemotePlace(place) if is_url(place) else _LocalPlace(Path(place))


class _LocalPlace:
    """A folder ``NAME.partial``, which is renamed ``NAME`` when it is complete."""

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self._path = path
        self._partial = partial_name(path)
        self.files = LocalFiles(self._partial)
        self.ledger = LocalFiles(ledger_name(self._partial))

    def begun(self) -> bool:
        return self._partial.is_dir()

    def whole(self) -> bool:
        return self._path.exists()

    def check(self) -> None:
        with refused_at(self.place):
            _check_absent(self)
            check_new(self._path, overwrite=False)
            if not self._partial.exists():
                check_folder_of(self._path)

    def make(self) -> None:
        self._partial.mkdir(exist_ok=True)

    def settle(self) -> None:
        os.sync()

    def complete(self) -> None:
        for left in self._partial.rglob("*.partial"):  # a process was killed while it wrote
            left.unlink()
        os.sync()
        put_in_place(self._partial, self._path)


def _check_absent(place: SharedPlace) -> None:
    """Refuse an output that exists: of several processes, none may replace it."""
    if place.whole():
        raise InvalidInput(f"{place.place}: exists; delete it, or write elsewhere")


class _RemotePlace:
    """A folder at a URL, with a marker ``NAME.partial`` beside it until it is complete.

    Object stores rename by copying, so all files have their final names from the start. The file
    that makes the output readable has to be written last.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        with refused_at_url(place):
            self.files = RemoteFiles(place)
            self._marker = RemoteFiles(f"{place}.partial")
            self.ledger = RemoteFiles(f"{place}.partial.ledger")

    def begun(self) -> bool:
        return self._marker.has("")

    def whole(self) -> bool:
        return self.files.has("") and not self.begun()

    def check(self) -> None:
        with refused_at_url(self.place):
            _check_absent(self)

    def make(self) -> None:
        self._marker.make_once("", b"")

    def settle(self) -> None:
        """Do nothing: a store keeps all that it has accepted."""

    def complete(self) -> None:
        self._marker.delete()
