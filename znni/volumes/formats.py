"""The file formats of volumes, chosen by the ending of a name, and functions that they share.

To add a format, add a package to this folder that defines ``NAME`` and ``ENDINGS``. Its module
``format`` defines ``FUNCTIONS``, and is imported when a file of that format is met.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import IO, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from znni.core.discovery import subpackages
from znni.core.errors import InvalidInput, option
from znni.core.options import Moment, Packing, Recheck
from znni.core.run_options import StorageOptions
from znni.core.shapes import Box, Vec3
from znni.core.volume import Begun, BlockStore, NewOutput, Output
from znni.volumes.array import ArrayVolume
from znni.volumes.ledger_entries import Note

LONGEST_SHOWN = 160  # characters of an attribute


# Returns the boxes of the output that one of several processes writes, in patches of given extents.
Share: TypeAlias = Callable[[Vec3], list[Box]]

# Returns the attributes that describe a whole run, given its plan and what its processes measured.
Summing: TypeAlias = Callable[[str, Sequence[Mapping[str, Any]]], dict[str, Any]]


@dataclass(frozen=True)
class Gathered:
    """An output that several processes have written, and that is complete now.

    Attributes:
        blocks: number of its blocks.
        checked: number of blocks that were compared with their checksums.
        runs: what the processes measured.
    """

    blocks: int
    checked: int
    runs: Sequence[Mapping[str, Any]]


class SharedOutput(Output, Protocol):
    """An output that several processes write, with the ledger of all of them."""

    def finished(self) -> Mapping[Box, Sequence[str]]:
        """Return the blocks that any process has finished, each with the checksums it may have."""

    def note(self, entry: Mapping[str, Any]) -> None:
        """Note what another process has written."""

    def checksum(self, box: Box) -> str | None:
        """Return the checksum of a block as it is read now; None if it cannot be read."""

    def strike_off(self, box: Box) -> None:
        """Note that a block is not as it was written, however often that was."""

    def close(self) -> None:
        """Have all that was noted reach the disk, and release the unfinished output."""


@dataclass(frozen=True)
class Content:
    """Values of a file that is written from its start to its end, and what it says about them.

    Attributes:
        wanted: shape, type, grid and compression.
        planes: returns the planes (y, x), first those of the first map, each map by z.
        attributes: how the values were made; empty if that is not known.
        ledger: text of the ledger; empty if there is none.
    """

    wanted: NewOutput
    planes: Callable[[], Generator[NDArray[np.generic], None, None]]
    attributes: Mapping[str, Any]
    ledger: bytes = b""


@dataclass(frozen=True)
class Sequential:
    """Functions that write whole files of one format, from their start to their end.

    Attributes:
        check: refuses what such a file cannot hold: takes its place and its description.
        save: writes a file that is open for writing; its name is given too.
        packing: returns how the file of a place and a description is compressed.
    """

    check: Callable[[str, NewOutput], None]
    save: Callable[[IO[bytes], str, Content], None]
    packing: Callable[[str, NewOutput], Packing]


@dataclass(frozen=True)
class Writer:
    """Functions that make outputs of one format.

    Attributes:
        begun: returns the state of an output at a path or URL; changes nothing, and raises the
            errors of ``create``.
        create: makes a new output, or opens an unfinished one to continue it.
        ledger: returns the text of an output's ledger (``ledger_entries.py``), or nothing.
        join: opens an output that several processes write, each its share; None if the format has
            no such outputs.
        gather: completes such an output. It takes the path, how to check blocks, and what makes
            the attributes of what the processes measured.
        blocks: opens such an output, which another process has described, to write blocks only.
            It takes the path, the output's description, and what notes that a block is written.
        sequential: writes whole files, if blocks cannot be written in any order.
    """

    begun: Callable[[str, NewOutput], Begun]
    create: Callable[[str, NewOutput], Output]
    ledger: Callable[[str], bytes]
    join: Callable[[str, NewOutput, Share], SharedOutput] | None = None
    gather: Callable[[str, Recheck, Summing], Gathered] | None = None
    blocks: Callable[[str, NewOutput, Note], BlockStore] | None = None
    sequential: Sequential | None = None


@dataclass(frozen=True)
class Functions:
    """Functions that read, describe and make volumes of one format.

    A dataset is one of several volumes in a file.

    Attributes:
        open: opens the volume at a path or URL; takes the chosen dataset or None, and the point in
            time or None.
        describe: describes a path or URL in lines for people; takes a dataset too.
        writer: functions that make outputs; None if the format is only read.
    """

    open: Callable[[str, str | None, Moment | None], ArrayVolume]
    describe: Callable[[str, str | None], str]
    writer: Writer | None = None


@dataclass(frozen=True)
class Format:
    """A format. Its functions are imported when they are needed.

    Attributes:
        name: name that users know.
        endings: endings of its file names, with their dot, in lower case.
        package: the package that it is in.
    """

    name: str
    endings: tuple[str, ...]
    package: str

    def has(self, name: str) -> bool:
        """Return whether a file or folder, complete or partial, has an ending of this format."""
        return names_one_of(self.endings, name)

    @property
    def functions(self) -> Functions:
        """The functions for volumes of this format."""
        return _functions(self.package)

    @property
    def writer(self) -> Writer | None:
        """Functions that make outputs; None if the format is only read."""
        return self.functions.writer


@cache
def _functions(package: str) -> Functions:
    """Return the functions of a format's package. To look for its module takes long."""
    found: Functions = import_module(f"{package}.format").FUNCTIONS
    return found


def names_one_of(endings: tuple[str, ...], name: str) -> bool:
    """Return whether a file or folder, complete or partial, has one of some endings."""
    return name.lower().removesuffix(".partial").endswith(endings)


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats."""
    packages = (f"znni.volumes.{name}" for name in subpackages("znni.volumes"))
    found = ((package, import_module(package)) for package in packages)
    return tuple(
        Format(module.NAME, module.ENDINGS, package)
        for package, module in found
        if hasattr(module, "ENDINGS")
    )


def described(attributes: Mapping[str, Any], *left_out: str) -> list[str]:
    """Return a line for each attribute of an output, shortened; its plan is too long for one."""
    shown = (name for name in attributes if name not in ("plan", *left_out))
    return [f"    {name}: {_in_a_line(str(attributes[name]))}" for name in shown]


def _in_a_line(text: str) -> str:
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[:LONGEST_SHOWN]}... ({len(text):,} characters)"


def library(name: str, extra: str) -> ModuleType:
    """Return a library that a format needs for reading or writing.

    Args:
        name: name of its module.
        extra: extra of znni that installs it.

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
    """Refuse options that only Zarr has.

    Raises:
        InvalidInput: the output has one.
    """
    for storage in fields(StorageOptions):
        value = getattr(wanted, storage.name)
        if value and value != "none":
            raise InvalidInput(
                f"{place}: {format_name} takes no {option(storage.name, value)}; leave it out, or "
                f"write to a name that ends in .zarr"
            )
