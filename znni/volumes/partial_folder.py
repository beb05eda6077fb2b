"""A folder that takes its name only once it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.volumes.partial_file import check_free, hold, partial_name, refused_at
from znni.volumes.positioned_write import write_all

AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY


def check_folder(path: Path, marks: Sequence[str], *, overwrite: bool) -> None:
    """Refuse a place where no folder can be made, or there is one that may not be replaced.

    Nothing is touched.

    Args:
        path: the place.
        marks: names of files one of which a folder holds that may be replaced.
        overwrite: replace what has the name.

    Raises:
        InvalidInput: so it is, or another run is at it.
        OSError: the system says so.
    """
    check_free(path, AS_FOLDER, overwrite=overwrite)
    if path.is_dir() and not any((path / mark).exists() for mark in marks):
        raise InvalidInput(
            f"{path}: is a folder of something else, and is not replaced; name another"
        )


class PartialFolder:
    """A folder ``NAME.partial``, new or of an earlier run, locked, that becomes ``NAME``.

    What it replaces, which ``check_folder`` has allowed, stays until it is whole.

    Attributes:
        place: the name asked for.
        root: the name until the folder is whole, as text.
        path: the same.

    Raises:
        InvalidInput: another run is writing the folder, or it cannot be made there.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._path = Path(place)
        self.path = partial_name(self._path)
        self.root = str(self.path)
        with refused_at(place):
            self.path.mkdir(exist_ok=True)
            lock = os.open(self.path, AS_FOLDER)
        self._lock: int | None = lock
        try:
            hold(lock, self.path)
        except BaseException:
            self.keep()
            raise

    def put(self, name: str, *parts: bytes | memoryview) -> None:
        """Make a file in it, or replace one, whole or not at all; of no parts, have none there.

        Raises:
            OSError: it failed.
        """
        path = self.path / name
        if not parts:
            path.unlink(missing_ok=True)
            return
        new = partial_name(path)
        try:
            file = new.open("wb", buffering=0)
        except FileNotFoundError:  # the first one in its folder
            path.parent.mkdir(parents=True, exist_ok=True)
            file = new.open("wb", buffering=0)
        with file:
            place = 0
            for part in parts:
                write_all(file.fileno(), part, place)
                place += memoryview(part).nbytes
        new.replace(path)

    def empty(self) -> None:
        """Delete what is in it."""
        for entry in self.path.iterdir():
            _remove(entry)

    def settle(self) -> None:
        """See all files to the disk."""
        os.sync()

    def complete(self) -> None:
        """See all files to the disk, and give the folder its name.

        Raises:
            OSError: it failed.
        """
        self.settle()
        old = self._path.with_name(self._path.name + ".replaced")
        if self._path.exists() or self._path.is_symlink():
            _remove(old)
            self._path.rename(old)
        self.path.rename(self._path)
        self.keep()
        with suppress(OSError):  # the output is whole: what it has replaced does no harm
            _remove(old)

    def keep(self) -> None:
        """Let go of it as it is; again is no more."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def discard(self) -> None:
        """Delete it."""
        with suppress(OSError):  # an empty folder that stays does no harm
            shutil.rmtree(self.path)
        self.keep()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
