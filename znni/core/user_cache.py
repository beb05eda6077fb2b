"""The user's cache: a folder of files that can be made again, such as compiled code and plans.

All of them are written completely or not at all. A file that cannot be read counts as absent, and
so does a file with a checksum if it is damaged.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from stat import S_ISDIR
from tempfile import NamedTemporaryFile, mkstemp
from time import perf_counter, sleep, time

from znni.core import system

_log = logging.getLogger("znni")

# Seconds of a day.
DAY = 24 * 60 * 60

# A file is deleted if it was not used for the most days. If a folder takes more than the most
# bytes, files that were used longest ago are deleted first. Files that were used within the fewest
# days stay.
MOST_DAYS = 90
MOST_BYTES = 2**24
MOST_BYTES_OF_CODE = 2**30
MOST_BYTES_OF_IMPORTS = 2**30
FEWEST_DAYS = 2

_DIGEST_BYTES = 32

# Seconds between two looks whether another process has made a file.
LOOK_SECONDS = 0.02


def user_cache() -> Path:
    """Return the folder, by the platform's convention. It need not exist."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "znni"


@cache
def state_of_source(root: Path) -> str:
    """Return a text that changes with the code in a folder, released or not."""
    return sha256("\n".join(sorted(_states(str(root), ""))).encode()).hexdigest()


def _states(folder: str, within: str) -> Iterator[str]:
    """Yield the name, the size and the time of each file of code in a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                about = entry.stat()
                yield f"{within}{entry.name} {about.st_size} {about.st_mtime_ns}"
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _states(entry.path, f"{within}{entry.name}/")


def write_whole(path: Path, content: bytes) -> Path:
    """Make a file completely or not at all, even if another process makes it too; return its path.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = mkstemp(dir=path.parent, suffix=".partial")
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # an interrupt may come when it has its name
        raise


def store(path: Path, content: bytes, most_bytes: int = MOST_BYTES) -> bool:
    """Make a file of a cache. If it cannot be made, warn once, and return False.

    In the user's cache, delete what nobody uses beside it, once for each folder and process.

    Args:
        path: the file.
        most_bytes: the bytes that all files of its folder may take.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        warn_not_stored(path, error)
        return False
    if path.is_relative_to(user_cache()):
        delete_unused_once(path.parent, most_bytes)
    return True


def can_store(folder: Path) -> bool:
    """Return whether files can be made in a folder. If they cannot, warn once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, suffix=".partial") as file:
            file.write(b"a")  # which a full disk refuses
    except OSError as error:
        warn_not_stored(folder / "any", error)
        return False
    return True


def load(path: Path) -> bytes | None:
    """Return the contents of a file of a cache, or None if there is none that can be read.

    The file's time is that of its last use, give or take a day.
    """
    try:
        with path.open("rb") as file:
            content = file.read()
            unused = time() - os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    if unused > DAY:
        with suppress(OSError):  # somebody else's file, or a disk that is only read
            os.utime(path)
    return content


def store_checked(path: Path, content: bytes, most_bytes: int = MOST_BYTES) -> None:
    """Make a file of a cache with a checksum, as ``store``."""
    store(path, sha256(content).digest() + content, most_bytes)


def load_checked(path: Path) -> bytes | None:
    """Return the contents of a file with a checksum, or None if it is absent or damaged."""
    found = load(path) or b""
    content = found[_DIGEST_BYTES:]
    return content if found[:_DIGEST_BYTES] == sha256(content).digest() else None


@contextmanager
def in_turn(lock: Path, needed: Callable[[], bool], longest_wait: float) -> Iterator[None]:
    """Wait until no other process makes the same, and let none make it within a ``with`` block.

    Stop waiting if nothing needs to be made any more, or if the other process hangs. The locked
    file may be deleted as an old one. Then two processes make the same, which harms nothing.

    Args:
        lock: the file that is locked.
        needed: says whether something still needs to be made.
        longest_wait: seconds after which the other process counts as hanging.
    """
    with ExitStack() as entered:
        with suppress(OSError):  # a file that cannot be locked keeps nobody from making files
            file = entered.enter_context(lock.open("ab"))
            until = perf_counter() + longest_wait
            while needed() and perf_counter() < until and not system.lock(file.fileno()):
                sleep(LOOK_SECONDS)
        yield


@cache
def delete_unused_once(folder: Path, most_bytes: int) -> None:
    """Delete what nobody uses in a folder, as ``delete_unused``, once in a process."""
    delete_unused(folder, most_bytes)


def delete_unused(folder: Path, most_bytes: int) -> None:
    """Delete files that nobody uses, as far as that is possible.

    These are files that were not used for ``MOST_DAYS``, and those used longest ago while all have
    more than the most bytes. Files that were used within ``FEWEST_DAYS`` stay, because a process
    may be about to load them. Other processes may do the same at the same time.

    A folder within the folder counts as one file, which is used when any of its files is.
    """
    with suppress(OSError):
        files: list[tuple[float, int, Path]] = []
        for path in [Path(entry.path) for entry in os.scandir(folder)]:
            with suppress(FileNotFoundError):
                files.append((*_use_of(path), path))
        left, now = sum(size for _, size, _ in files), time()
        for used, size, path in sorted(files):
            days = (now - used) / DAY
            if days < FEWEST_DAYS or (days < MOST_DAYS and left <= most_bytes):
                return
            with suppress(FileNotFoundError):
                _delete(path)
            left -= size


def _use_of(path: Path) -> tuple[float, int]:
    """Return the time of the last use of a file or folder, and its bytes.

    Raises:
        FileNotFoundError: another process has deleted it, or a part of it.
    """
    about = path.stat()
    if not S_ISDIR(about.st_mode):
        return about.st_mtime, about.st_size
    files = [about for it in path.rglob("*") if not S_ISDIR((about := it.stat()).st_mode)]
    used = max((it.st_mtime for it in files), default=about.st_mtime)
    return used, sum(it.st_size for it in files)


def _delete(path: Path) -> None:
    """Delete a file, or a folder in such a way that no process takes a part of it for the whole.

    Raises:
        OSError: it cannot be deleted.
    """
    if path.is_dir():
        rmtree(path.rename(path.with_name(f"{path.name}.partial")))
    else:
        path.unlink()


def warn_not_stored(path: Path, error: OSError) -> None:
    """Warn that nothing is stored, once for each folder."""
    root = user_cache()
    _warn_once(root if path.is_relative_to(root) else path.parent, error.strerror or str(error))


@cache
def _warn_once(folder: Path, reason: str) -> None:
    _log.warning(
        "%s: cannot be written: %s; compiled code, plans and measurements are not kept there, so "
        "each run makes them again; make it writable, or name another folder%s",
        folder,
        reason,
        " with XDG_CACHE_HOME" * (sys.platform not in ("win32", "darwin")),
    )
