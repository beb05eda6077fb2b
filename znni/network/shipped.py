"""The networks that come with znni, found by their names."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# In an installed package, and in the repository.
FOLDERS = (PACKAGE / "shipped", PACKAGE.parent / "networks")
PAGE = "https://github.com/znni/znni/blob/main/networks"


def shipped_names() -> list[str]:
    """Return the names of all networks that come with znni."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def shipped_network(name: str) -> Path | None:
    """Return the network file of a name; None if no such network comes with znni."""
    path = _folder() / f"{name}.yaml"
    return path if name in shipped_names() else None


def picture(name: str) -> str:
    """Return the address of a picture of a network's output; empty if there is none."""
    return {"cells-unet": f"{PAGE}/cells-unet.png"}.get(name, "")


def _folder() -> Path:
    return next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
