"""A file that takes its name only once it is whole."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from znni.core.errors import InvalidInput, option
from znni.core.text import in_units
from znni.core.volume import SAME_COMMAND

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

AS_FILE = os.O_RDWR  # how a partial file is opened, so that it can be locked on any file system


def partial_name(path: Path) -> Path:
    """What a file is called until it is whole."""
    return path.parent / f"{path.name}.partial"


def check_finished(place: Path) -> None:
    """Refuse an output of which there is only what a run has not finished.

    Args:
        place: its name, or that of its partial file or folder.

    Raises:
        InvalidInput: so it is.
    """
    whole = place.with_name(place.name.removesuffix(".partial"))
    partial = partial_name(whole)
    if partial.exists() and (place == partial or not place.exists()):
        raise InvalidInput(
            f"{whole}: is no finished output: {partial} is what a run has left that was stopped, "
            f"or is still at it; {SAME_COMMAND}"
        )


def check_free(path: Path, opened: int, *, overwrite: bool) -> None:
    """Refuse a place where nothing can be made, or something is that may not be replaced.

    Nothing is touched.

    Args:
        path: the place.
        opened: how its partial file or folder is opened, by flags of ``os.open``.
        overwrite: what is there may be replaced.

    Raises:
        InvalidInput: so it is, or another run is at it.
        OSError: the system says so.
    """
    if path.exists() and not overwrite:
        raise InvalidInput(f"{path}: exists; give {option('overwrite', True)} to replace it")
    if not path.parent.is_dir():
        raise InvalidInput(f"{path}: there is no folder {path.parent}; make it first")
    partial = partial_name(path)
    try:
        descriptor = os.open(partial, opened)
    except FileNotFoundError:
        _check_folder(path)
        return
    except (IsADirectoryError, NotADirectoryError):
        raise InvalidInput(
            f"{partial}: is no unfinished output, and is in the way of one; move it, or write "
            f"elsewhere"
        ) from None
    try:
        hold(descriptor, partial)
    finally:
        os.close(descriptor)


@contextmanager
def refused_at(place: Path | str) -> Iterator[None]:
    """What the system says against writing at a place is one error.

    Raises:
        InvalidInput: in the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise InvalidInput(
            f"{place}: cannot be written there: {error.strerror}; write elsewhere"
        ) from None


def _check_folder(path: Path) -> None:
    """Refuse a place in a folder in which this process can make nothing.

    Raises:
        InvalidInput: its file system has no room for anything, as that of /proc.
        OSError: the system says so.
    """
    folder = path.parent
    if not shutil.disk_usage(folder).total:
        raise InvalidInput(f"{path}: {folder} is no place for files; write elsewhere")
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    as_it_is = os.access in os.supports_effective_ids
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=as_it_is):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_room(path: Path, needed: int) -> None:
    """Refuse a disk without room for an output of so many bytes.

    Raises:
        InvalidInput: it is too small.
    """
    free = shutil.disk_usage(path.parent).free
    left_over = partial_name(path)
    if left_over.exists():  # of an earlier run; its room is used again
        parts = left_over.rglob("*") if left_over.is_dir() else (left_over,)
        free += sum(part.lstat().st_blocks for part in parts) * 512
    if needed > free:
        raise InvalidInput(
            f"{path}: the output takes {in_units(needed)} and the disk has {in_units(free)} "
            f"free; make room, write elsewhere, or give a smaller type, as "
            f"{option('dtype', 'uint8')}"
        )


def hold(descriptor: int, partial: Path) -> None:
    """Lock a file or folder against other runs, until it is closed.

    Raises:
        InvalidInput: another run has it.
    """
    in_use = InvalidInput(
        f"{partial}: is in use, as by another run; wait for it, or write elsewhere"
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise in_use from None
    except OSError:  # a file system without locks
        return
    if not partial.exists() or not os.path.samestat(os.fstat(descriptor), partial.stat()):
        raise in_use  # that run has just completed it: what is locked has another name by now


class PartialFile(FileIO):
    """A file ``NAME.partial``, new or of an earlier run, locked, that becomes ``NAME``.

    Writing raises nothing: the first failure is kept, and all that is written after it is
    dropped. HDF5 holds on to what it cannot write, and crashes the interpreter at its end.

    Attributes:
        path: the name asked for.
        partial: the name until the file is whole.
        failure: why a write failed, if one did.

    Raises:
        InvalidInput: another run is writing the file.
        OSError: it cannot be made there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = partial_name(path)
        self.failure: OSError | None = None
        super().__init__(os.open(self.partial, AS_FILE | os.O_CREAT, 0o666), "r+")
        try:
            hold(self.fileno(), self.partial)
        except InvalidInput:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return os.fstat(self.fileno()).st_size

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data``, unless a write has failed."""
        view = memoryview(data).cast("B")
        written = 0
        try:
            while self.failure is None and written < len(view):
                written += super().write(view[written:])
        except OSError as error:
            self.failure = error
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the length, unless a write has failed."""
        try:
            if self.failure is None:
                return super().truncate(size)
        except OSError as error:
            self.failure = error
        return self.tell() if size is None else size

    def settle(self) -> None:
        """See the file to the disk.

        Raises:
            OSError: it, or an earlier write, failed.
        """
        if self.failure:
            raise self.failure
        os.fsync(self)

    def complete(self) -> None:
        """See the file to the disk, and give it its name.

        Raises:
            OSError: it, or an earlier write, failed.
        """
        self.settle()
        self.partial.replace(self.path)
        self.close()
