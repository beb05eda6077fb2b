"""Packages that bring something to znni, installed in a folder as pip installs them."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from paths import EXAMPLES

PLANE_PRODUCTS = EXAMPLES / "plane_products"


def install(project: Path, site: Path) -> None:
    """Install a project of single modules, as its ``pyproject.toml`` describes it."""
    described = tomllib.loads((project / "pyproject.toml").read_text())
    about = described["project"]
    for module in described["tool"]["setuptools"]["py-modules"]:
        shutil.copy(project / f"{module}.py", site)
    (points,) = about["entry-points"].items()
    write_metadata(site, about["name"].replace("-", "_"), points, version=about["version"])


def write_metadata(
    site: Path, name: str, points: tuple[str, dict[str, str]], version: str = "1.0"
) -> None:
    """Write the metadata of a package, with the entry points of one group."""
    group, entries = points
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
