"""The installed packages, as the folders of their metadata name them, and what they offer znni."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from znni.core.errors import InvalidInput
from znni.core.user_cache import state_of_source

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = (".dist-info", ".egg-info")

# The group of entry points that bring primitives.
PRIMITIVES = "znni.primitives"

# The group of entry points that bring backends, for devices of other kinds.
BACKENDS = "znni.backends"


def package_folders() -> list[str]:
    """Return names and versions of all packages that can be imported, such as ``numpy-2.4.6``.

    The names of folders tell them: reading the metadata of all packages takes up to half a second.
    """
    return sorted({os.path.basename(path).rpartition(".")[0] for path in _metadata(sys.path)})  # noqa: PTH119


def _metadata(places: Iterable[str]) -> Iterator[str]:
    """Yield the folders of the metadata of all packages in some folders."""
    for folder in places:
        try:
            with os.scandir(folder or ".") as entries:
                yield from [entry.path for entry in entries if entry.name.endswith(KINDS)]
        except OSError:  # a file, or a folder that is not there
            continue


@dataclass(frozen=True)
class Offer:
    """An entry point: what an installed package offers znni.

    Attributes:
        package: the name of the package.
        version: its version; empty if its metadata's folder does not tell it.
    """

    entry: EntryPoint
    package: str
    version: str

    def __str__(self) -> str:
        """Return the package and the entry point, as errors name them."""
        named = " ".join(filter(None, ("package", self.package, self.version)))
        return f"{named}, entry point {self.entry.name} = {self.entry.value!r}"

    def unusable(self, reason: str) -> InvalidInput:
        """Return an error that names the package and the remedy."""
        return InvalidInput(
            f"{self}: {reason}; install another version of it, or remove it with pip uninstall "
            f"{self.package}"
        )

    def load(self) -> Any:
        """Import the object.

        Raises:
            InvalidInput: it cannot be imported.
        """
        try:
            return self.entry.load()
        except Exception as error:  # a module of others may raise anything
            raise self.unusable(f"cannot be imported: {type(error).__name__}: {error}") from error

    @property
    def state(self) -> str:
        """A text that changes with the version that is installed, and with its code."""
        return f"{self} {_state_of_module(self.entry.module.partition('.')[0])}"


def _state_of_module(name: str) -> str:
    """Return a text that changes with the code of a module or a package."""
    spec = find_spec(name)
    if spec is None or not spec.origin:
        return ""
    if spec.submodule_search_locations:
        return state_of_source(Path(spec.origin).parent)
    about = os.stat(spec.origin)  # noqa: PTH116
    return f"{about.st_size} {about.st_mtime_ns}"


def offers(group: str) -> tuple[Offer, ...]:
    """Return the entry points of a group, in the order of packages and names."""
    return _offers_in(tuple(sys.path), group)


@cache  # Python itself does not expect packages to change while it runs
def _entry_points_in(places: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """Return the folders of the metadata of all packages that have entry points, with the text."""
    found = []
    for folder in _metadata(places):
        try:
            with open(f"{folder}/entry_points.txt", "rb") as file:  # noqa: PTH123 - Path is slow
                found.append((folder, file.read()))
        except OSError:  # most packages have none
            continue
    return tuple(found)


@cache
def _offers_in(places: tuple[str, ...], group: str) -> tuple[Offer, ...]:
    found: dict[str, list[Offer]] = {}
    for folder, text in _entry_points_in(places):
        if f"[{group}]".encode() in text:
            from importlib.metadata import Distribution

            package, _, version = Path(folder).stem.partition("-")
            entries = sorted(Distribution.at(folder).entry_points.select(group=group))
            # If a package is installed twice, the first one on the path is imported.
            found.setdefault(package.lower(), [Offer(it, package, version) for it in entries])
    return tuple(it for _, each in sorted(found.items()) for it in each)
