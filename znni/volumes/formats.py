"""The formats that volumes are kept in, each by the endings of its names.

To add a format, add a module to this folder that defines ``FORMAT``, or a package whose module
``format`` does. ``formats`` finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

import znni.volumes
from znni.core.errors import InvalidInput, option
from znni.core.members import members
from znni.core.volume import Begun, NewOutput, Output, Volume


@dataclass(frozen=True)
class Writer:
    """How outputs of one kind are made.

    Attributes:
        begun: what there is of an output at a place (a path or a URL), which is refused as
            ``create`` refuses it; nothing is touched.
        create: a new output there, or an unfinished one to go on with.
        ledger: the text of an output's ledger (``ledger.py``), empty where it has none.
    """

    begun: Callable[[str, NewOutput], Begun]
    create: Callable[[str, NewOutput], Output]
    ledger: Callable[[str], bytes]


@dataclass(frozen=True)
class Format:
    """How volumes of one kind are read, described and made. A dataset is one of several in a file.

    Attributes:
        name: as users know it.
        endings: of the names of its files, with their dot, in lower case.
        open: a volume, of a place (a path or a URL) and the dataset asked for, if any.
        describe: what is there, in lines for people, of a place and a dataset.
        writer: makes outputs; None where the format is only read.
    """

    name: str
    endings: tuple[str, ...]
    open: Callable[[str, str | None], Volume]
    describe: Callable[[str, str | None], str]
    writer: Writer | None = None

    def has(self, name: str) -> bool:
        """Whether the name of a file or folder, whole or partial, ends as this format's do."""
        return name.lower().removesuffix(".partial").endswith(self.endings)


@cache
def formats() -> tuple[Format, ...]:
    """All formats there are."""
    modules = members(znni.volumes, "format")
    return tuple(module.FORMAT for module in modules if hasattr(module, "FORMAT"))


def library(name: str, extra: str) -> ModuleType:
    """A library that a format is read or written with.

    Args:
        name: of its module.
        extra: of znni that brings it.

    Raises:
        InvalidInput: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidInput(
            f"{name} is needed for this format and cannot be imported ({error}); "
            f"pip install 'znni[{extra}]'"
        ) from None


def check_plain(place: str, wanted: NewOutput, format_name: str) -> None:
    """Refuse options that only chunks in files of their own have.

    Raises:
        InvalidInput: the output is to be compressed or sharded.
    """
    given = {"compression": wanted.compression, "sharded": wanted.sharded}
    for name, value in given.items():
        if value and value != "none":
            raise InvalidInput(
                f"{place}: {format_name} takes no {option(name, value)}; leave it out, or write "
                f"to a name that ends in .zarr"
            )
