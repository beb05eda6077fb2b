"""A file that takes its final name only when it is complete."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from znni.core import system
from znni.core.errors import InvalidInput
from znni.core.volume import SAME_COMMAND

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SYNC_FILE_RANGE_WRITE = 2

AS_FILE = (
    os.O_RDWR | system.AS_BYTES
)  # flags to open a partial file: locks on some file systems need write access


def partial_name(path: Path) -> Path:
    """Return the name of a file while it is incomplete."""
    return Path(f"{path}.partial")


def check_finished(place: Path) -> None:
    """Refuse an output that only exists unfinished, under its final name or its partial one."""
    whole = place.with_name(place.name.removesuffix(".partial"))
    partial = partial_name(whole)
    if partial.exists() and (place == partial or not place.exists()):
        raise InvalidInput(
            f"{whole}: is no finished output: {partial} belongs to a run that was stopped, or is "
            f"still running; {SAME_COMMAND}"
        )


def hold(descriptor: int, partial: Path) -> None:
    """Lock a file or folder against other runs, until it is closed."""
    in_use = InvalidInput(
        f"{partial}: is in use, maybe by another run; wait for it, or write elsewhere"
    )
    try:
        is_locked = system.lock(descriptor)
    except OSError:  # a file system without locks
        return
    if not is_locked:
        raise in_use
    try:
        held = os.path.samestat(os.fstat(descriptor), partial.stat())
    except FileNotFoundError:
        held = False
    if not held:  # that run has just completed and renamed the locked file
        raise in_use


def is_at(path: Path, own: os.stat_result | None) -> bool:
    """Return whether a file or folder has a name.

    Args:
        path: the name.
        own: the state of the file or folder, under any name; None: there is none.
    """
    try:
        return own is not None and os.path.samestat(path.stat(), own)
    except OSError:
        return False


def write_all(descriptor: int, data: Any, place: int) -> None:
    """Write all bytes of ``data`` to a place in a file.

    Raises:
        OSError: they do not all fit.
    """
    view = memoryview(data).cast("B")
    written = 0
    while written < len(view):
        written += system.write_at(descriptor, view[written:], place + written)


def begin_flush(descriptor: int, place: int, length: int) -> None:
    """Have the system begin to bring bytes of a file to the disk, where it can, and do not wait.

    Otherwise the system begins only after seconds, and most runs wait for the disk at their end. If
    it fails, a later ``fsync`` fails.
    """
    if sync_file_range := _sync_file_range():
        sync_file_range(descriptor, place, length, SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the system's function that begins to bring a file to the disk; only Linux has it."""
    numbers = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
    return system.c_function("sync_file_range", *numbers)


class PartialFile(FileIO):
    """A locked file ``NAME.partial``, new or left by an earlier run, that becomes ``NAME``.

    Writing raises nothing: the first failure is kept, and all later writes are dropped. Otherwise
    HDF5 keeps data that it cannot write, and crashes the interpreter when it exits.

    Attributes:
        place: final name.
        root: name while the file is incomplete.
        failure: first error of a write, or None.

    Raises:
        InvalidInput: another run is writing the file.
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.place = path
        self.root = partial_name(path)
        self.failure: OSError | None = None
        self._whole: os.stat_result | None = None
        super().__init__(os.open(self.root, AS_FILE | os.O_CREAT, 0o666), "r+")
        try:
            hold(self.fileno(), self.root)
        except InvalidInput:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return os.fstat(self.fileno()).st_size

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data``, unless a write has failed before."""
        view = memoryview(data).cast("B")
        written = 0
        try:
            while self.failure is None and written < len(view):
                written += super().write(view[written:])
        except OSError as error:
            self.failure = error
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the length, unless a write has failed before."""
        try:
            if self.failure is None:
                return super().truncate(size)
        except OSError as error:
            self.failure = error
        return self.tell() if size is None else size

    def settle(self) -> None:
        """Flush the file to the disk.

        Raises:
            OSError: this or an earlier write failed.
        """
        if self.failure:
            raise self.failure
        os.fsync(self)

    def complete(self) -> None:
        """Flush the file to the disk, and give it its final name.

        Raises:
            OSError: this or an earlier write failed.
        """
        self.settle()
        self.take_name()

    def take_name(self) -> None:
        """Give the file its final name. The disk has it all.

        Raises:
            OSError: the system refuses.
        """
        self._whole = os.fstat(self.fileno())
        if not system.MOVES_OPEN_FILES:
            self.close()
        self.root.replace(self.place)
        self.close()

    @property
    def is_complete(self) -> bool:
        """True if the file has its final name, even if taking it was interrupted."""
        return is_at(self.place, self._whole)

    def keep(self) -> None:
        """Release the file as it is. Further calls do nothing."""
        self.close()

    def discard(self) -> None:
        """Delete the file."""
        if not system.MOVES_OPEN_FILES:
            self.close()
        self.root.unlink(missing_ok=True)
