"""The networks that come with znni, found by their names."""

from __future__ import annotations

from pathlib import Path

from znni.core.errors import InvalidInput

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


def found_network(path: Path) -> Path:
    """Return the path of a network file that is there, or that comes with znni under this name.

    Raises:
        InvalidInput: it is only a name, and neither is there.
    """
    if path.suffix or len(path.parts) > 1 or path.exists():
        return path
    if known := shipped_network(str(path)):
        return known
    raise InvalidInput(
        f"{path}: no such file, and no network of this name comes with znni; it has "
        f"{', '.join(shipped_names())}"
    )


def picture(name: str) -> str:
    """Return the address of a picture of a network's output; empty if there is none."""
    return {"cells-unet": f"{PAGE}/cells-unet.png"}.get(name, "")


def _folder() -> Path:
    return next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
