"""Discovery of a package's members: file formats and primitives need no other registration."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType


@cache
def member_names(package: str) -> tuple[str, ...]:
    """Return the names of a package's modules and subpackages in alphabetical order.

    Nothing but the package is imported.

    Args:
        package: the full name of the package.
    """
    return tuple(found.name for found in iter_modules(import_module(package).__path__))


@cache
def subpackages(package: str) -> tuple[str, ...]:
    """Return the names of a package's subpackages in alphabetical order.

    Args:
        package: the full name of the package.
    """
    found = iter_modules(import_module(package).__path__)
    return tuple(it.name for it in found if it.ispkg)


@cache
def member(package: str, found: str, name: str) -> ModuleType | None:
    """Import one module of a package, and return it.

    Args:
        package: the full name of the package.
        found: the name of a module or subpackage within it.
        name: module that stands for a subpackage; for a subpackage without it, return None.
    """
    whole = f"{package}.{found}"
    module = import_module(whole)
    if not hasattr(module, "__path__"):
        return module
    return import_module(f"{whole}.{name}") if find_spec(f"{whole}.{name}") else None


def members(package: str, name: str) -> list[ModuleType]:
    """Import the modules of a package, and return them in alphabetical order.

    Args:
        package: the full name of the package.
        name: module that stands for a subpackage; a subpackage without it is skipped.
    """
    found = (member(package, each, name) for each in member_names(package))
    return [module for module in found if module]
