"""The file formats of volumes, chosen by the ending of a name, and functions that they share.

To add a format, add a package to this folder that defines ``NAME`` and ``ENDINGS``. Its module
``format`` defines ``FUNCTIONS``, which read. Its module ``writer`` defines ``WRITER``, if outputs
can have this format. They are imported when a file of that format is met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np

from znni.core.discovery import subpackages
from znni.core.errors import InvalidInput, option
from znni.core.option_types import Moment
from znni.core.run_options import StorageOptions
from znni.core.volume import NewOutput
from znni.volumes.array import ArrayVolume
from znni.volumes.orientation import in_words
from znni.volumes.stored import StoredVolume
from znni.volumes.writer import Writer

LONGEST_SHOWN = 160  # characters of an attribute


def its_path(place: str) -> list[Path]:
    """Return the only file of a volume, which is at the given path."""
    return [Path(place)]


@dataclass(frozen=True)
class Functions:
    """Functions that read and describe volumes of one format.

    A dataset is one of several volumes in a file.

    Attributes:
        open: opens the volume at a path or URL; takes the chosen dataset or None, and the point in
            time or None.
        describe: describes a path or URL in lines for people; takes a dataset too.
        unpack: returns a file with the same image that is not compressed: the given file, or a copy
            with the given path and an ending. Without a path, it decompresses the file as a check.
            None: files are never compressed as a whole.
        files: returns the files of the volume at a local path, the given one first. None: a file
            for each chunk, so there may be very many.
    """

    open: Callable[[str, str | None, Moment | None], ArrayVolume]
    describe: Callable[[str, str | None], str]
    unpack: Callable[[str, Path | None], Path] | None = None
    files: Callable[[str], list[Path]] | None = its_path


@dataclass(frozen=True)
class Format:
    """A format. Its modules are imported when they are needed.

    Attributes:
        name: name that users know.
        endings: endings of its file names, with their dot, in lower case.
    """

    name: str
    endings: tuple[str, ...]
    package: str

    def has(self, name: str) -> bool:
        """Return whether a file or folder, complete or partial, has an ending of this format."""
        return names_one_of(self.endings, name)

    @property
    def functions(self) -> Functions:
        """The functions that read volumes of this format."""
        found: Functions = _member(self.package, "format", "FUNCTIONS")
        return found

    @property
    def writer(self) -> type[Writer] | None:
        """The class that makes outputs; None if the format is only read."""
        found: type[Writer] | None = _member(self.package, "writer", "WRITER")
        return found


@cache
def _member(package: str, module: str, name: str) -> Any:
    """Return what a module of a format's package defines; None if there is no such module."""
    whole = f"{package}.{module}"
    return getattr(import_module(whole), name) if find_spec(whole) else None


def names_one_of(endings: tuple[str, ...], name: str) -> bool:
    """Return whether a file or folder, complete or partial, has one of some endings."""
    return name.lower().removesuffix(".partial").endswith(endings)


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats."""
    found = (import_module(f"{__name__}.{name}") for name in subpackages(__name__))
    return tuple(Format(module.NAME, module.ENDINGS, module.__name__) for module in found)


def described(attributes: Mapping[str, Any], *left_out: str) -> list[str]:
    """Return a line for each attribute of an output, shortened; its plan is too long for one."""
    shown = (name for name in attributes if name not in ("plan", *left_out))
    return [f"    {name}: {_in_a_line(str(attributes[name]))}" for name in shown]


def describe_image(place: str, volume: StoredVolume, moments: int = 1) -> str:
    """Describe an image: its shape, type, voxels, orientation, and how it was made as an output.

    Args:
        place: the file.
        volume: the image, at one point in time.
        moments: its points in time.
    """
    lines = [place, f"  {volume.shape} {volume.dtype}, {volume.grid}"]
    if affine := volume.grid.affine:
        lines.append(f"    {in_words(affine)}")
    if moments > 1:
        lines.append(f"    at each of {moments} points in time")
    return "\n".join([*lines, *described(volume.attributes())])


def _in_a_line(text: str) -> str:
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[:LONGEST_SHOWN]}... ({len(text):,} characters)"


def library(name: str, extra: str) -> ModuleType:
    """Return a library that a format needs. An extra of znni installs it.

    Raises:
        InvalidInput: the library is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidInput(
            f"{name} is needed for this format and cannot be imported ({error}); "
            f"pip install 'znni[{extra}]'"
        ) from None


class _Named(Protocol):
    """A dataset of a file."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> Any: ...


# Parts of names that images have, and those that results have.
OF_IMAGES = ("raw", "image", "img", "data", "volume", "em", "main")
OF_RESULTS = ("label", "seg", "mask", "pred", "prob", "id", "ledger", "weight")

Dataset = TypeVar("Dataset", bound=_Named)


def likely_image(datasets: Sequence[Dataset]) -> Dataset:
    """Return the dataset that is most likely an image, by its name and its type.

    Types of 32 or 64 bits are likely of labels; the first of equally likely ones is returned.
    """

    def likely(dataset: Dataset) -> int:
        name, dtype = dataset.name.lower().strip("/"), np.dtype(dataset.dtype)
        score = 2 * int(any(part in name for part in OF_IMAGES))
        score -= 4 * int(any(part in name for part in OF_RESULTS))
        return score + int(dtype.kind == "f" or dtype.itemsize <= 2) - 2 * int(dtype.kind == "b")

    return max(datasets, key=likely)


def check_plain(place: str, wanted: NewOutput, format_name: str) -> None:
    """Refuse options that only Zarr has."""
    for storage in fields(StorageOptions):
        value = getattr(wanted, storage.name)
        if value and value != "none":
            raise InvalidInput(
                f"{place}: {format_name} takes no {option(storage.name, value)}; leave it out, or "
                f"write to a name that ends in .zarr"
            )
