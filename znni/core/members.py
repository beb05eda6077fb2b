"""Discovery of a package's members: file formats and primitives need no other registration."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


@cache
def members(package: ModuleType, name: str) -> tuple[ModuleType, ...]:
    """Import the modules of a package, and return them in alphabetical order.

    Args:
        package: the package to search.
        name: module that stands for a subpackage; a subpackage without it is skipped.
    """
    return tuple(_members(package, name))


def _members(package: ModuleType, name: str) -> Iterator[ModuleType]:
    for found in iter_modules(package.__path__, f"{package.__name__}."):
        if not found.ispkg:
            yield import_module(found.name)
        elif any(inner.name == name for inner in iter_modules(import_module(found.name).__path__)):
            yield import_module(f"{found.name}.{name}")
