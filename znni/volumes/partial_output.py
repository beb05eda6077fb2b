"""An output that is no whole one until its end: the order of events, the same for all formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import RunFailed
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.text import counted
from znni.core.volume import SAME_COMMAND, LastSteps, NewOutput, ResumeState, Sink, at_once
from znni.volumes.block_checks import check_written, write_block
from znni.volumes.checksums import checksum_of
from znni.volumes.ledger_file import LedgerFile, MemoryLedger
from znni.volumes.output_folder import OutputFolder
from znni.volumes.partial_file import PartialFile
from znni.volumes.stored import reason

# An output of one block is held until all is known of it, if it has at most so many bytes.
# A file that is made in memory has them once more. A plan counts both among those of the process.
HELD_BYTES = 4 << 20


class PartialOutput(ABC):
    """A new output with a ledger. A format says how its file is made, read and completed.

    A block is noted in the ledger after it is written. The values of a small output of one block
    are held until it is finished: before, there is nothing to resume. So it is made in one go.

    Raises:
        InvalidInput: the output exists and may not be overwritten, cannot be made, or is the
            unfinished output of another run.
        RunFailed: a write failed.
    """

    # Errors that say that the output cannot be written. File systems and libraries raise all kinds.
    _write_errors: type[Exception] = Exception
    _inside = ""  # path of the blocks within the unfinished output
    # A format sets both, when it opens the output that it has made.
    _sink: Sink  # stores blocks
    _array: Any  # reads them again

    def __init__(
        self, wanted: NewOutput, partial: OutputFolder | PartialFile, ledger: MemoryLedger
    ) -> None:
        self._wanted = wanted
        self._partial = partial
        self._ledger = ledger
        self._earlier = ledger if isinstance(ledger, LedgerFile) and ledger.resumed else None
        self._whole = Box(ZERO, wanted.size)
        self._attributes: dict[str, Any] = {}
        self._patch = wanted.size
        self._waits = False  # the output is made when the first block comes
        self._held: NDArray[Any] | None = None
        self._held_checksum = ""

    @property
    def resume_state(self) -> ResumeState:
        """The blocks that exist already; their history is certain once the output is begun."""
        return self._ledger.content

    def begin(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Start to make the output, or check blocks of an earlier run, as ``Output.begin`` does.

        A small output of one block is not made yet: all of its values may be held.
        """
        if self._earlier:
            self._check_earlier(self._earlier)
            return
        self._attributes, self._patch, self._waits = attributes, patch, True
        one_block = patch.minimum(self._wanted.size) == self._wanted.size
        if self._wanted.nbytes > HELD_BYTES or not one_block:
            self._start_if_waiting()

    def note_plan(self, plan: str) -> None:
        """Note the plan of all boxes written from here on."""
        self._wait_until_made()
        self._ledger.note_plan(plan)

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Write the values (f', z, y, x) of a box, or hold those of a small whole output."""
        if self._waits and box == self._whole:
            self._held = np.array(values, order="C")
            self._held_checksum = checksum_of(self._held)
            return
        self._start_if_waiting()
        self._wait_until_made()
        with self._failing():
            write_block(box, values, self._sink, self._ledger.append)

    def read(self, box: Box) -> NDArray[Any]:
        """Return the values (f', z, y, x) of a box that was written."""
        if self._held is not None:
            return self._held[(slice(None), *box.slices)]
        self._wait_until_made()
        return np.asarray(self._array[(slice(None), *box.slices)])

    def finish(self, measured: dict[str, Any], last_steps: LastSteps = at_once) -> None:
        """Update attributes, and give the output its final name, maybe in the last steps."""
        if self._held is None:
            self._start_if_waiting()
            self._wait_until_made()
        if self._earlier:
            self._reopen()
            check_written(self._earlier, self.read)
        with self._failing():
            self._complete(measured, last_steps)

    def abandon(self, resume_advice: str = SAME_COMMAND, /) -> str:
        """Release the unfinished output, and delete it if it holds no block. Return a message."""
        self._release()
        place, blocks = self._partial.place, len(self._ledger.content.checksums)
        if self._is_complete():
            self._tidy()
            return f"{place} is complete"
        if not blocks:  # deleted while locked, so no other run has it yet
            self._partial.discard()
            self._ledger.discard()
            self._partial.keep()
            return f"{place} was not made"
        self._partial.keep()
        self._ledger.close()
        held_by = f"{self._partial.root}{self._inside}"
        return (
            f"{place} was not made; {held_by} holds {counted(blocks, 'finished block')}; "
            f"{resume_advice}"
        )

    @abstractmethod
    def _start_making(self) -> None:
        """Start to put the ledger and the output, without values, onto the disk."""

    def _wait_until_made(self) -> None:  # noqa: B027
        """Wait until blocks can be written and read."""

    @abstractmethod
    def _check_earlier(self, ledger: LedgerFile) -> None:
        """Strike off blocks of an earlier run that are damaged."""

    def _reopen(self) -> None:  # noqa: B027
        """Have blocks read as they are in the file now."""

    @abstractmethod
    def _complete(self, measured: dict[str, Any], last_steps: LastSteps) -> None:
        """Make the output a whole one: its attributes, its ledger and its name."""

    def _release(self) -> None:  # noqa: B027
        """Release what reads the output."""

    def _is_complete(self) -> bool:
        """Return whether the output has its final name."""
        return self._partial.is_complete

    def _tidy(self) -> None:
        """Release the complete output, and delete what is left beside it."""
        self._ledger.discard()
        self._partial.keep()

    def _start_if_waiting(self) -> None:
        """Start to make the output, if it waits for that."""
        if self._waits:
            self._waits = False
            self._start_making()

    def _summary(self) -> bytes:
        """Return the text of the whole output's ledger, with the block if it is held.

        The ledger itself stays without that block, which is not on the disk until all is.
        """
        content = self._ledger.content
        if self._held is not None:
            content = replace(content, checksums={self._whole: self._held_checksum})
        return content.summary()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn an error of writing into one that says what to do."""
        try:
            yield
        except (RunFailed, MemoryError):
            raise
        except self._write_errors as error:
            raise RunFailed(
                f"{self._partial.root}: cannot be written: {reason(error)}; make room or write "
                f"elsewhere"
            ) from error
