"""A folder that takes its final name only when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.volumes.partial_file import check_free, hold, is_at, partial_name, refused_at, write_all

AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY


def check_folder(path: Path, marks: Sequence[str], *, overwrite: bool) -> None:
    """Refuse a path where no folder can be made, or whose folder may not be replaced.

    Nothing is changed.

    Args:
        path: path of the output.
        marks: file names; a folder may be replaced only if it holds one of them.
        overwrite: allow replacing an existing output.

    Raises:
        InvalidInput: the path is refused, or another run is writing it.
        OSError: the system refuses.
    """
    check_free(path, AS_FOLDER, overwrite=overwrite)
    if path.is_dir() and not any((path / mark).exists() for mark in marks):
        raise InvalidInput(
            f"{path}: is a folder of something else, and is not replaced; name another"
        )


class PartialFolder:
    """A locked folder ``NAME.partial``, new or left by an earlier run, that becomes ``NAME``.

    An existing ``NAME``, which ``check_folder`` has allowed to be replaced, stays until then.

    Attributes:
        place: final name.
        root: name while the folder is incomplete, as text.
        path: ``root`` as a path.

    Raises:
        InvalidInput: another run is writing the folder, or it cannot be made.
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
        self._whole: os.stat_result | None = None
        try:
            hold(lock, self.path)
        except BaseException:
            self.keep()
            raise

    def put(self, name: str, *parts: bytes | memoryview) -> None:
        """Create or replace a file in the folder, atomically. Without parts, delete the file.

        Raises:
            OSError: writing failed.
        """
        path = self.path / name
        put_file(path, partial_name(path), parts)

    def stays(self, name: str) -> bool:  # noqa: ARG002
        """Return False: no other process writes here, so all files may be deleted."""
        return False

    def empty(self) -> None:
        """Delete all contents."""
        for entry in self.path.iterdir():
            _remove(entry)

    def settle(self) -> None:
        """Flush all files to the disk."""
        os.sync()

    def complete(self) -> None:
        """Flush all files to the disk, and give the folder its final name.

        Raises:
            OSError: it failed.
        """
        self.settle()
        self._whole = self.path.stat()
        put_in_place(self.path, self._path)
        self.keep()

    @property
    def is_complete(self) -> bool:
        """True if the folder has its final name, even if taking it was interrupted."""
        return is_at(self._path, self._whole)

    def keep(self) -> None:
        """Release the folder as it is. Further calls do nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def discard(self) -> None:
        """Delete the folder."""
        with suppress(OSError):  # a leftover empty folder does no harm
            shutil.rmtree(self.path)
        self.keep()


def put_file(path: Path, new: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Create or replace a file, atomically. Without parts, delete it.

    Args:
        path: the file. Its folder is made if need be.
        new: name of the new file until it is complete; nobody else writes to it.
        parts: its content.

    Raises:
        OSError: writing failed.
    """
    if not parts:
        path.unlink(missing_ok=True)
        return
    try:
        file = new.open("wb", buffering=0)
    except FileNotFoundError:  # first file in its folder
        path.parent.mkdir(parents=True, exist_ok=True)
        file = new.open("wb", buffering=0)
    with file:
        place = 0
        for part in parts:
            write_all(file.fileno(), part, place)
            place += memoryview(part).nbytes
    new.replace(path)


def put_in_place(new: Path, path: Path) -> None:
    """Give a complete folder its final name. What has that name already is replaced.

    Raises:
        OSError: it failed.
    """
    old = path.with_name(path.name + ".replaced")
    if path.exists() or path.is_symlink():
        _remove(old)
        path.rename(old)
    new.rename(path)
    with suppress(OSError):  # the output is complete; a leftover old one does no harm
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
