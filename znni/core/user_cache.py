"""The user's folder for what can be made again: compiled code, measured costs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache() -> Path:
    """Where it is, by the platform's convention. It need not exist."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "znni"
