"""The installed packages, as the folders of their metadata name them."""

from __future__ import annotations

import os
import sys

KINDS = (".dist-info", ".egg-info")


def package_folders() -> list[str]:
    """Return names and versions of all packages that can be imported, such as ``numpy-2.4.6``.

    The names of folders tell them: reading the metadata of all packages takes up to half a second.
    """
    found = set[str]()
    for folder in sys.path:
        try:
            with os.scandir(folder or ".") as entries:
                names = [entry.name for entry in entries]
        except OSError:  # a file, or a folder that is not there
            continue
        found.update(name.rpartition(".")[0] for name in names if name.endswith(KINDS))
    return sorted(found)
