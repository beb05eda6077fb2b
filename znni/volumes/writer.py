"""Writers of outputs: each format has a class of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from znni.core.errors import InvalidInput
from znni.core.option_types import Packing, Recheck
from znni.core.shapes import Box, Vec3
from znni.core.volume import BlockStore, NewOutput, Output, ResumeState
from znni.volumes.ledger_entries import Note
from znni.volumes.ledger_file import ledger_name

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


class Writer(ABC):
    """Makes an output at a path or URL.

    Attributes:
        place: the path or URL.
        is_staged: whether the file is written at the end, from blocks in a Zarr beside it.
    """

    is_staged: ClassVar[bool] = False

    def __init__(self, place: str) -> None:
        self.place = place

    @abstractmethod
    def resume_state(self, wanted: NewOutput) -> ResumeState:
        """Return the state of an output that a run wants to make. Nothing is changed.

        Raises:
            InvalidInput: ``create`` would raise it.
        """

    @abstractmethod
    def create(self, wanted: NewOutput) -> Output:
        """Make a new output, or open an unfinished one to continue it.

        Raises:
            InvalidInput: it cannot be made or continued.
        """

    def ledger(self) -> bytes:
        """Return the text of the ledger, in a whole output or beside a partial one, or nothing.

        Raises:
            InvalidInput: the output cannot be read.
        """
        beside = ledger_name(Path(self.place))
        return beside.read_bytes() if beside.is_file() else self.kept_ledger()

    @abstractmethod
    def kept_ledger(self) -> bytes:
        """Return the text of the ledger in a whole output, or nothing."""

    def packing(self, wanted: NewOutput) -> Packing | None:  # noqa: ARG002
        """Return how a staged file is compressed; None if blocks are written to their places."""
        return None

    def join(self, wanted: NewOutput, share: Share) -> SharedOutput:  # noqa: ARG002
        """Open an output that several processes write. This one writes the boxes of its share.

        Raises:
            InvalidInput: it cannot be made or continued, or only one process can write this format.
        """
        raise self._one_writer()

    def blocks(self, wanted: NewOutput, note: Note) -> BlockStore:  # noqa: ARG002
        """Open an output that another process has begun, to write blocks of it.

        That process keeps the ledger and completes the output. After each block is written,
        ``note`` is called with the entry for the ledger.

        Raises:
            InvalidInput: it cannot be reached, or only one process can write this format.
        """
        raise self._one_writer()

    def gather(self, recheck: Recheck, summing: Summing) -> Gathered:  # noqa: ARG002
        """Complete an output that several processes have written.

        Blocks that were written more than once are read again and compared with their checksums,
        and of the others those that ``recheck`` says.

        Args:
            recheck: which blocks are read again: ``none``, ``sample`` or ``all``.
            summing: makes the attributes of the whole run.

        Raises:
            InvalidInput: there is no such output.
            RunFailed: blocks are missing or damaged, or the output cannot be completed.
        """
        raise InvalidInput(f"{self.place}: is not computed in parts; only a .zarr is")

    def _one_writer(self) -> InvalidInput:
        return InvalidInput(f"{self.place}: only one process can write this format; name a .zarr")
