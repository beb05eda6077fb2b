"""Checks of names that need no plan, so that the window answers at once."""

from __future__ import annotations

import os
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.core.shipped import NETWORKS
from znni.napari.words import OVERWRITE


def check_network(name: str) -> None:
    """Refuse a network that is not there.

    Raises:
        InvalidInput: there is no such file, and no such network comes with znni.
    """
    if not NETWORKS.found(Path(name)).exists():
        raise InvalidInput(f"{name}: no such network file; check the path")


def check_output(name: str, *, overwrite: bool) -> None:
    """Refuse an output on this machine that exists and may not be replaced.

    Raises:
        InvalidInput: it exists.
    """
    if not overwrite and Path(name).exists():
        raise InvalidInput(f"{name} exists; {OVERWRITE}")


def folder_for_outputs() -> Path:
    """Return the folder in which napari was started, or the user's own if it cannot be written."""
    here = Path.cwd()
    return here if os.access(here, os.W_OK) else Path.home()


def full_name(name: str) -> str:
    """Return the full path of an output. A URL stays as it is."""
    return name if "://" in name else str(Path(name).absolute())
