"""The page that lists every module, with the first line of what it says of itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HEADER = """# Modules

This page lists every module with the first line of its own docstring. It is made from the code
when the site is built. [Architecture](architecture.md) explains the folders.
"""
PACKAGES = ("znni", "planner")


def module_map(root: Path) -> str:
    """Return the page: a section for each folder that has modules.

    Args:
        root: the repository.
    """
    return "\n".join([HEADER, *(_section(root, folder) for folder in _folders(root))])


def _folders(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        inner = (path.parent for path in (root / package).rglob("__init__.py"))
        yield from sorted(inner, key=lambda folder: folder.parts)


def _section(root: Path, folder: Path) -> str:
    title = str(folder.relative_to(root))
    rows = [
        f"| `{path.name}` | {_first_line(path)} |"
        for path in sorted(folder.glob("*.py"))
        if path.name != "__init__.py"
    ]
    table = ["", "| module | what it is |", "|---|---|", *rows] if rows else []
    return "\n".join([f"## {title}\n", _first_line(folder / "__init__.py"), *table, ""])


def _first_line(path: Path) -> str:
    """Return the first line of a module's docstring, with its code marked as Markdown has it.

    Raises:
        ValueError: the module has no docstring.
    """
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if docstring is None:
        raise ValueError(f"{path} has no docstring; give it one")
    return docstring.splitlines()[0].replace("``", "`").replace("|", "\\|")
