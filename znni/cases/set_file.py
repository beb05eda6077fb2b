"""Recognition of set files, which name several networks. It loads no other module."""

from __future__ import annotations

import re
from pathlib import Path

ENDINGS = (".yaml", ".yml")
KEY = re.compile(r"^networks *:", re.MULTILINE)


def is_set(path: Path) -> bool:
    """Return whether a file is a set file: it has ``networks:`` at its top."""
    try:
        known = path.suffix in ENDINGS and path.is_file()
        return known and bool(KEY.search(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return False
