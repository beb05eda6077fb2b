"""The members of a package that are found by being there: file formats and primitives."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def members(package: ModuleType, name: str) -> Iterator[ModuleType]:
    """Import the modules of a package in alphabetical order.

    Args:
        package: where to look.
        name: the module that stands for a package within it; packages without it are passed over.
    """
    for found in iter_modules(package.__path__, f"{package.__name__}."):
        if not found.ispkg:
            yield import_module(found.name)
        elif any(inner.name == name for inner in iter_modules(import_module(found.name).__path__)):
            yield import_module(f"{found.name}.{name}")
