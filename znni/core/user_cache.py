"""The user's folder for files that can be made again: compiled code, measured costs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

_log = logging.getLogger("znni")


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
    """Return a text that differs if the code in a folder differs, released or not."""
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
    with NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as partial:
        partial.write(content)
    return Path(partial.name).replace(path)


def keep(path: Path, content: bytes) -> bool:
    """Make a file that saves time later. If it cannot be made, warn once, and return False."""
    try:
        write_whole(path, content)
    except OSError as error:
        warn_not_kept(path, error)
        return False
    return True


def kept(path: Path) -> bytes | None:
    """Return the contents of such a file, or None if there is none that can be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def warn_not_kept(path: Path, error: OSError) -> None:
    """Warn that nothing is kept, once for each folder."""
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
