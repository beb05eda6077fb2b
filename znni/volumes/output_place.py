"""Checks of the place of an output: it does not exist, its folder does, and the disk has room."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from znni.core import system
from znni.core.errors import InvalidInput, option
from znni.core.text import in_units
from znni.volumes.partial_file import hold, partial_name


def check_replaceable(path: Path, *, overwrite: bool, what: str = "output") -> None:
    """Refuse a path that exists and may not be replaced."""
    if path.exists() and not overwrite:
        raise InvalidInput(
            f"{path}: exists; give {option('overwrite', True)} to replace it, or another {what}"
        )


def check_new(path: Path, *, overwrite: bool) -> None:
    """Refuse a path that exists and may not be replaced, or that has no folder."""
    check_replaceable(path, overwrite=overwrite)
    if not path.parent.is_dir():
        raise InvalidInput(f"{path}: there is no folder {path.parent}; make it first")


def check_absent(place: str, *, there: bool) -> None:
    """Refuse an output that exists: none of several processes may replace it."""
    if there:
        raise InvalidInput(f"{place}: exists; delete it, or write elsewhere")


def check_free(path: Path, opened: int, *, overwrite: bool) -> None:
    """Refuse a path that cannot be created, or that exists and may not be replaced.

    Nothing is changed.

    Args:
        path: path of the output.
        opened: flags of ``os.open`` for its partial file or folder.
        overwrite: allow replacing an existing output.

    Raises:
        InvalidInput: the path is refused, or another run is writing it.
        OSError: the system refuses.
    """
    check_new(path, overwrite=overwrite)
    partial = partial_name(path)
    try:
        descriptor = os.open(partial, opened)
    except FileNotFoundError:
        check_folder_of(path)
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


def check_folder_of(path: Path) -> None:
    """Refuse a path in a folder where this process cannot create anything.

    If there is no such folder yet, it is the nearest one above that exists.

    Raises:
        InvalidInput: the file system has no room at all, as that of /proc.
        OSError: the system refuses.
    """
    folder = next(each for each in path.absolute().parents if os.path.lexists(each))
    found = system.file_system(folder)
    if not found.takes_files:
        raise InvalidInput(f"{path}: {folder} is no place for files; write elsewhere")
    if found.is_read_only:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    as_it_is = os.access in os.supports_effective_ids
    if not os.access(f"{folder}{os.sep}", os.W_OK | os.X_OK, effective_ids=as_it_is):
        number = errno.EACCES if folder.is_dir() else errno.ENOTDIR
        raise OSError(number, os.strerror(number))


def check_room(path: Path, needed: int) -> None:
    """Refuse a disk without enough room for an output."""
    free = shutil.disk_usage(path.parent).free
    if needed <= free:
        return
    left_over = partial_name(path)
    if left_over.exists():  # from an earlier run; its room is used again
        parts = left_over.rglob("*") if left_over.is_dir() else (left_over,)
        free += sum(system.disk_bytes(part.lstat()) for part in parts)
    if needed > free:
        raise InvalidInput(
            f"{path}: the output takes {in_units(needed)} and the disk has {in_units(free)} "
            f"free; make room, write elsewhere, or give a smaller type, as "
            f"{option('dtype', 'uint8')}"
        )


@contextmanager
def refused_at(place: Path | str) -> Iterator[None]:
    """Turn an OSError about writing at a path into one clear error.

    Raises:
        InvalidInput: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise InvalidInput(
            f"{place}: cannot be written there: {error.strerror}; write elsewhere"
        ) from None
