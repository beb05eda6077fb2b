"""A folder that takes its final name only when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from znni.core import system
from znni.core.errors import InvalidInput
from znni.volumes.ledger_file import ledger_name
from znni.volumes.output_place import (
    check_absent,
    check_folder_of,
    check_free,
    check_new,
    check_room,
    refused_at,
)
from znni.volumes.partial_file import hold, is_at, partial_name
from znni.volumes.shared_files import LocalFiles

AS_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


class PartialFolder(LocalFiles):
    """A folder ``NAME.partial``, new or left by an earlier run, that becomes ``NAME``.

    An existing ``NAME``, which ``check`` has allowed to be replaced, stays until then. One process
    locks the folder by ``take``. Or several processes share it, and each calls ``make``.

    Attributes:
        place: final name.
        path: name while the folder is incomplete.
        root: the same, as text.
        ledger: folder of the ledger, if several processes write.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._final = Path(place)
        super().__init__(partial_name(self._final))
        self.ledger = LocalFiles(ledger_name(self.path))
        self._lock: int | None = None
        self._whole: os.stat_result | None = None

    def check(self, marks: Sequence[str], *, overwrite: bool, room: int = 0) -> None:
        """Refuse a place where no folder can be made, or whose folder may not be replaced.

        Nothing is changed.

        Args:
            marks: file names; a folder may be replaced only if it holds one of them.
            overwrite: allow replacing an existing output.
            room: bytes that the disk must have.

        Raises:
            InvalidInput: the place is refused, or another run is writing there.
        """
        with refused_at(self.place):
            if system.OPENS_FOLDERS:
                check_free(self._final, AS_FOLDER, overwrite=overwrite)
            else:
                check_new(self._final, overwrite=overwrite)
            if self._final.is_dir() and not any((self._final / mark).exists() for mark in marks):
                raise InvalidInput(
                    f"{self.place}: is a folder of something else, and is not replaced; name "
                    f"another"
                )
            check_room(self._final, room)

    def check_to_share(self) -> None:
        """Refuse a place where several processes can make no output. Nothing is changed.

        Raises:
            InvalidInput: there is a complete output, or nothing can be made there.
        """
        with refused_at(self.place):
            check_absent(self.place, there=self.is_whole)
            check_new(self._final, overwrite=False)
            if not self.path.exists():
                check_folder_of(self._final)

    @property
    def is_begun(self) -> bool:
        """True if there is an unfinished output."""
        return self.path.is_dir()

    @property
    def is_whole(self) -> bool:
        """True if there is a complete output, or something else of that name."""
        return self._final.exists()

    @property
    def is_complete(self) -> bool:
        """True if this folder has its final name, even if taking it was interrupted."""
        return is_at(self._final, self._whole)

    def make(self) -> None:
        """Make the folder, unless another process has done so."""
        self.path.mkdir(exist_ok=True)

    def take(self, *, overwrite: bool) -> None:  # noqa: ARG002
        """Make the folder, and lock it against other runs.

        Raises:
            InvalidInput: another run is writing the folder, or it cannot be made.
        """
        with refused_at(self.place):
            self.make()
            if not system.OPENS_FOLDERS:
                return
            self._lock = os.open(self.path, AS_FOLDER)
        try:
            hold(self._lock, self.path)
        except BaseException:
            self.keep()
            raise

    def empty(self) -> None:
        """Delete all contents."""
        for entry in self.path.iterdir():
            _remove(entry)

    def settle(self) -> None:
        """Flush all files to the disk."""
        system.flush_files(self.path)

    def complete(self) -> None:
        """Flush all files to the disk, and give the folder its final name.

        Raises:
            OSError: it failed.
        """
        if self._lock is None:  # one of several processes may have been killed while it wrote
            for left in self.path.rglob("*.partial"):
                left.unlink()
        self.settle()
        self._whole = self.path.stat()
        old = self._final.with_name(self._final.name + ".replaced")
        if self._final.exists() or self._final.is_symlink():
            _remove(old)
            self._final.rename(old)
        self.path.rename(self._final)
        with suppress(OSError):  # the output is complete; a leftover old one does no harm
            _remove(old)
        self.keep()

    def keep(self) -> None:
        """Release the folder as it is. Further calls do nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
