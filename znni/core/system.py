"""Functions that only some operating systems have, and replacements for the others.

The rest of the code asks this module, and never asks for a system by its name. Files such as those
in ``/proc`` are read where their figures are needed. Each reader has another source, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Flags of os.open: Windows converts no line ends, and child processes do not inherit the file.
AS_BYTES = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

# True if a folder can be opened, and so locked.
OPENS_FOLDERS = hasattr(os, "O_DIRECTORY")

# True if a file may be renamed or removed while it is open.
MOVES_OPEN_FILES = fcntl is not None

# True if a new process can inherit open descriptors of this one.
PASSES_DESCRIPTORS = fcntl is not None

# Ctrl-C, a request to terminate, and a closed terminal.
ASKING_TO_STOP = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

LOCKED_BYTE = 2**31 - 2  # Windows locks bytes, which others cannot read; no file has this one
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux

_seeking = Lock()


def text_of(path: Path) -> str:
    """Return the text of a small file such as those in ``/sys``; empty if there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def lock(descriptor: int) -> bool:
    """Lock a file or a folder until it is closed, unless another process has locked it.

    Returns:
        False if another process has.

    Raises:
        OSError: its file system has no locks.
    """
    if fcntl is None:
        return _lock_a_byte(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_a_byte(descriptor: int) -> bool:
    try:
        import msvcrt
    except ImportError:  # neither kind of locks
        return True
    locking: Callable[[int, int, int], None] = getattr(msvcrt, "locking")  # noqa: B009
    not_waiting: int = getattr(msvcrt, "LK_NBLCK")  # noqa: B009
    with _seeking:
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
            locking(descriptor, not_waiting, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(descriptor, place, os.SEEK_SET)
    return True


def write_at(descriptor: int, data: memoryview, place: int) -> int:
    """Write bytes to a place in a file; return how many were written.

    Raises:
        OSError: writing failed.
    """
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, place)
    with _seeking:
        os.lseek(descriptor, place, os.SEEK_SET)
        return os.write(descriptor, data)


def read_at(descriptor: int, count: int, place: int) -> bytes:
    """Return bytes from a place in a file, fewer where it ends.

    Raises:
        OSError: reading failed.
    """
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, place)
    with _seeking:
        os.lseek(descriptor, place, os.SEEK_SET)
        return os.read(descriptor, count)


def read_into(descriptor: int, into: memoryview, place: int) -> int:
    """Fill memory with bytes from a place in a file; return how many were read.

    Raises:
        OSError: reading failed.
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [into], place)
    there = read_at(descriptor, len(into), place)
    into[: len(there)] = there
    return len(there)


class FileSystem(NamedTuple):
    """A file system, as far as the system tells.

    Attributes:
        takes_files: whether it has room for files at all; that of ``/proc`` has none.
        is_read_only: whether nothing can be written.
    """

    takes_files: bool = True
    is_read_only: bool = False


def file_system(folder: Path) -> FileSystem:
    """Return the file system of a folder.

    Raises:
        OSError: the system refuses.
    """
    if not hasattr(os, "statvfs"):
        return FileSystem()
    found = os.statvfs(folder)
    return FileSystem(found.f_blocks > 0, bool(found.f_flag & os.ST_RDONLY))


def disk_bytes(about: os.stat_result) -> int:
    """Return the bytes that a file takes on the disk."""
    blocks: int | None = getattr(about, "st_blocks", None)
    return about.st_size if blocks is None else blocks * 512


def flush_files(folder: Path) -> None:
    """Wait until the disk has all files of a folder.

    Raises:
        OSError: the disk fails.
    """
    if hasattr(os, "sync"):
        os.sync()
        return
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())


def new_memory() -> int:
    """Return the descriptor of a new file without a name, in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("znni")
    with tempfile.TemporaryFile(prefix="znni") as file:
        return os.dup(file.fileno())


def peak_resident_bytes() -> int:
    """Return the most resident bytes that this process ever had."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        about = psutil.Process().memory_info()
        return int(getattr(about, "peak_wset", about.rss))
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024  # macOS counts in bytes


def c_function(name: str, *argument_types: Any) -> Callable[..., int] | None:
    """Return a function of the C library, if the system has it.

    Args:
        argument_types: types of its arguments, those of ``ctypes``.
    """
    try:
        function = getattr(ctypes.CDLL(None), name, None)
    except TypeError:  # Windows opens no library without a name
        return None
    if function is not None and argument_types:
        function.argtypes = argument_types
    return function


def end_with_parent() -> None:
    """Have the system kill this process when the thread that has started it is gone, on Linux."""
    if prctl := c_function("prctl"):
        prctl(DIE_WITH_PARENT, KILLED)


def after_fork(in_child: Callable[[], object]) -> None:
    """Have a function called in each fork of this process, where there are forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)


# The number by which a process that was killed reports it.
KILLED: int = getattr(signal, "SIGKILL", 9)


def kill_group(leader: int) -> None:
    """Kill a process that leads a group, and all processes of its group.

    Raises:
        ProcessLookupError: it is gone.
    """
    if hasattr(os, "killpg"):
        os.killpg(leader, KILLED)
    else:
        os.kill(leader, signal.SIGTERM)  # which ends a process of Windows at once
