"""The files of plans that were found and printed before, in one folder of the user's cache."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from znni.core.user_cache import user_cache, warn_not_kept, write_whole

# The environment variable that names the folder; ``none`` keeps no plans.
VARIABLE = "ZNNI_PLANS"
NONE = "none"

# The number of files kept; the ones used longest ago are deleted.
MOST_KEPT = 128


def plans_folder() -> Path | None:
    """Return the folder of kept plans, or None if none are to be kept."""
    named = os.environ.get(VARIABLE)
    if named == NONE:
        return None
    return Path(named) if named else user_cache() / "plans"


def keep_file(file: Path, content: bytes) -> None:
    """Make a file in the folder, and delete what was used longest ago if there is too much.

    A file that cannot be made is a warning, once.
    """
    try:
        write_whole(file, content)
        _delete_oldest(file.parent)
    except OSError as error:
        warn_not_kept(file, error)


def _delete_oldest(folder: Path) -> None:
    """Delete what was used longest ago, if there is too much. Others may do so at the same time."""
    found: list[tuple[float, Path]] = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found)[:-MOST_KEPT]:
        path.unlink(missing_ok=True)
