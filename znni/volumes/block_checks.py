"""An output's blocks held to the checksums of its ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from znni.core.errors import InvalidInput, Unreachable, Unreadable
from znni.core.shapes import Box, Vec3
from znni.core.text import counted
from znni.core.volume import Volume
from znni.volumes.ledger import Ledger, checksum_of
from znni.volumes.stored import reason


@dataclass(frozen=True)
class BlockChecks:
    """How blocks compare with their checksums.

    Attributes:
        blocks: how many there are.
        checked: how many of them were read.
        damaged: those that are not as they were written, or cannot be read.
        unreadable: why the first of those cannot that cannot; empty where all can.
    """

    blocks: int
    checked: int
    damaged: tuple[Box, ...]
    unreadable: str = ""

    def __str__(self) -> str:
        """In words."""
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
    """Read blocks and compare their checksums; one that cannot be read is damaged like others.

    Args:
        output: the whole output.
        ledger: of it.
        name: of it, for messages.
        most: how many to read, chosen at random; None for all.
        generator: chooses them.
        progress: called after each with how many are read and wanted.

    Raises:
        InvalidInput: the ledger's blocks are not those of the output.
        Unreachable: the output cannot be got at.
    """
    boxes = sorted(ledger.checksums)
    whole = Box(Vec3(0, 0, 0), output.size)
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
