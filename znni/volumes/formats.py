"""The file formats of volumes, chosen by the ending of a name, and functions that they share.

To add a format, add a module to this folder that defines ``FORMAT``, or a package whose module
``format`` defines it. ``formats`` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import znni.volumes
from znni.core.errors import InvalidInput, option
from znni.core.members import members
from znni.core.options import Recheck
from znni.core.shapes import Box, Vec3
from znni.core.volume import Begun, BlockStore, NewOutput, Output, Volume
from znni.volumes.ledger_entries import Note

CHUNK = 64  # voxels per axis, about


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
    """

    begun: Callable[[str, NewOutput], Begun]
    create: Callable[[str, NewOutput], Output]
    ledger: Callable[[str], bytes]
    join: Callable[[str, NewOutput, Share], SharedOutput] | None = None
    gather: Callable[[str, Recheck, Summing], Gathered] | None = None
    blocks: Callable[[str, NewOutput, Note], BlockStore] | None = None


@dataclass(frozen=True)
class Format:
    """Functions that read, describe and make volumes of one format.

    A dataset is one of several volumes in a file.

    Attributes:
        name: name that users know.
        endings: endings of its file names, with their dot, in lower case.
        open: opens the volume at a path or URL; takes the chosen dataset or None.
        describe: describes a path or URL in lines for people; takes a dataset too.
        writer: functions that make outputs; None if the format is only read.
    """

    name: str
    endings: tuple[str, ...]
    open: Callable[[str, str | None], Volume]
    describe: Callable[[str, str | None], str]
    writer: Writer | None = None

    def has(self, name: str) -> bool:
        """Return whether a file or folder, complete or partial, has an ending of this format."""
        return name.lower().removesuffix(".partial").endswith(self.endings)


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats."""
    modules = members(znni.volumes, "format")
    return tuple(module.FORMAT for module in modules if hasattr(module, "FORMAT"))


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


def check_plain(place: str, wanted: NewOutput, format_name: str) -> None:
    """Refuse options that only formats with chunks in separate files have.

    Raises:
        InvalidInput: the output should be compressed or sharded.
    """
    given = {"compression": wanted.compression, "sharded": wanted.sharded}
    for name, value in given.items():
        if value and value != "none":
            raise InvalidInput(
                f"{place}: {format_name} takes no {option(name, value)}; leave it out, or write "
                f"to a name that ends in .zarr"
            )


def chunk_extents(patch: Vec3, size: Vec3, *, shared: bool = False) -> Vec3:
    """Return the extents of chunks for output that is written in patches.

    If a patch's extent has a divisor near 64, the chunk takes it: then no chunk is written twice.

    Args:
        patch: extents of the written blocks, which begin at multiples of them.
        size: extents of the output.
        shared: several processes write, so that chunks must divide patches.
    """
    extents = patch.minimum(size)
    chunk = (
        _chunk_extent(extent, shared=shared and extent < whole)
        for extent, whole in zip(extents, size, strict=True)
    )
    return Vec3(*chunk).minimum(size)


def _chunk_extent(patch: int, *, shared: bool) -> int:
    """Return the divisor of an extent nearest to 64 by ratio.

    If none is within twice, return 64, or with ``shared`` the nearest one all the same.
    """
    few = range(1, patch + 1) if shared else range(CHUNK // 2, 2 * CHUNK + 1)
    divisors = [extent for extent in few if patch % extent == 0]
    return min(divisors, key=lambda extent: max(extent / CHUNK, CHUNK / extent), default=CHUNK)
