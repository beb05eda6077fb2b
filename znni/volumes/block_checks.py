"""The blocks of an output and the checksums of its ledger: written together, and compared later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, RunFailed, Unreachable, Unreadable, option
from znni.core.shapes import ZERO, Box
from znni.core.text import counted
from znni.core.volume import Sink, Volume
from znni.volumes.checksums import begin_checksum, checksum_of
from znni.volumes.ledger_entries import Ledger, Note, block_entry, damage_entry
from znni.volumes.ledger_file import LedgerFile
from znni.volumes.stored import reason

log = logging.getLogger("znni")

LONG_CHECK = 2**31  # voxels that take many seconds to read again

# Returns the values (f', z, y, x) of a box of an output; it may raise any error.
ReadBlock: TypeAlias = Callable[[Box], NDArray[Any]]


def write_block(box: Box, values: NDArray[Any], sink: Sink, note: Note) -> None:
    """Hand a block to a sink, and note it in a ledger after that.

    Its checksum is computed by other threads while it is written.
    """
    checksum = begin_checksum(values)
    sink.write(box, values)
    note(block_entry(box, checksum()))


def strike_off_damaged(ledger: LedgerFile, read: ReadBlock) -> list[Box]:
    """Read all finished blocks, and note in the ledger which are not as they were written.

    Returns:
        The damaged blocks, which are no longer among the finished ones.
    """
    checksums = ledger.content.checksums
    finished = counted(len(checksums), "finished block")
    many = sum(box.size.volume for box in checksums) > LONG_CHECK
    # A run reports by itself that it continues. A long check comes before that, so it is reported.
    log.log(
        logging.WARNING if many else logging.INFO,
        "%s: checking %s of an earlier run",
        ledger.partial,
        finished,
    )
    damaged = _damaged(read, checksums, checksums)
    for box in damaged:
        ledger.append(damage_entry(box))
    warn_of_damaged(ledger.partial, damaged)
    return damaged


def warn_of_damaged(partial: Path | str, damaged: Sequence[Box]) -> None:
    """Warn that finished blocks of an unfinished output are damaged, if there are any."""
    if damaged:
        lost = counted(len(damaged), "finished block")
        log.warning("%s: %s damaged, to be computed again", partial, lost)


def check_written(ledger: LedgerFile, read: ReadBlock) -> None:
    """Read the blocks again that this run wrote to an output of an earlier run.

    They went to their places by what that run left beside its blocks, which has no checksums.
    """
    if damaged := _damaged(read, ledger.written, ledger.content.checksums):
        raise RunFailed(
            f"{ledger.partial}: {counted(len(damaged), 'block')} cannot be read again as "
            f"written: what the earlier run left is damaged; give "
            f"{option('resume', False)} to start afresh, or write elsewhere"
        )


def _damaged(read: ReadBlock, boxes: Iterable[Box], checksums: Mapping[Box, str]) -> list[Box]:
    return [box for box in boxes if checksum_or_none(read, box) != checksums[box]]


def checksum_or_none(read: ReadBlock, box: Box) -> str | None:
    """Return the checksum of a block as it is read, or None if it cannot be read.

    Raises:
        Unreachable: ``read`` raises it, because nothing is known of the block.
    """
    try:
        return checksum_of(read(box))
    except (MemoryError, Unreachable):
        raise
    except Exception:  # libraries and their codecs raise all kinds
        return None


@dataclass(frozen=True)
class BlockChecks:
    """The comparison of an output's blocks with their checksums.

    Attributes:
        blocks: how many there are.
        checked: how many of them were read.
        damaged: those that are not as they were written, or cannot be read.
        unreadable: why the first unreadable block cannot be read; empty if all can be read.
    """

    blocks: int
    checked: int
    damaged: tuple[Box, ...]
    unreadable: str = ""

    def __str__(self) -> str:
        """Return this in words."""
        if not self.checked:
            return f"none of {counted(self.blocks, 'block')} read, so that other voxels may differ"
        of = f" of {self.blocks:,}" * (self.checked < self.blocks)
        if self.damaged:
            count = counted(len(self.damaged), "block")
            why = f" ({self.unreadable})" * bool(self.unreadable)
            return f"{count}{of} damaged, the first one at {self.damaged[0]}{why}"
        are = "has its checksum" if self.checked == 1 else "have their checksums"
        return f"{counted(self.checked, 'block')}{of} {are}"


def check_blocks(
    output: Volume,
    ledger: Ledger,
    name: str,
    most: int | None,
    generator: np.random.Generator,
    progress: Callable[[int, int], None],
) -> BlockChecks:
    """Read blocks of a whole output and compare their checksums.

    A block that cannot be read counts as damaged.

    Args:
        output: the whole output.
        name: its name, for messages.
        most: how many blocks to read, chosen at random; None for all.
        generator: chooses them.
        progress: called after each with how many are read and wanted.

    Raises:
        InvalidInput: the ledger's blocks are not those of the output.
        Unreachable: the output cannot be reached.
    """
    boxes = sorted(ledger.checksums)
    whole = Box(ZERO, output.size)
    covered = sum(box.size.volume for box in boxes if box.within(whole))
    if covered != output.size.volume:
        raise InvalidInput(
            f"{name}: its ledger has blocks of {covered:,} voxels and it holds "
            f"{output.size.volume:,}; compute it again"
        )
    if most is not None and most < len(boxes):
        chosen = sorted(generator.choice(len(boxes), most, replace=False))
        wanted = [boxes[index] for index in chosen]
    else:
        wanted = boxes
    damaged: list[Box] = []
    unreadable = ""
    for done, box in enumerate(wanted, start=1):
        try:
            found = checksum_of(output.read(box))
        except Unreachable:
            raise
        except Unreadable as error:
            found, unreadable = "", unreadable or reason(error.__cause__ or error)
        if found != ledger.checksums[box]:
            damaged.append(box)
        progress(done, len(wanted))
    return BlockChecks(len(boxes), len(wanted), tuple(damaged), unreadable)
