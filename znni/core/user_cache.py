"""The user's folder for files that can be made again: compiled code, measured costs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile


def user_cache() -> Path:
    """Return the folder, by the platform's convention. It need not exist."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "znni"


def write_whole(path: Path, content: bytes) -> Path:
    """Make a file completely or not at all, even if another process makes it too; return its path.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as partial:
        partial.write(content)
    return Path(partial.name).replace(path)
