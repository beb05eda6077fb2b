"""The last block of each process: after it, the process can end, or another run can begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, Literal, TypeAlias

from znni.engine.stage_chain import Work
from znni.engine.tiles import Tile

# What happens to a block: the last stage takes it from the stage before, or has computed it.
Passing: TypeAlias = Literal["taken", "computed"]


class LastBlocks:
    """Tells each process, once, that its last block is taken, and that it is computed.

    That block may not be written yet. Which process takes a block is known only when its reading
    begins. So a process is told only when the reading of all blocks has begun.

    Args:
        leaves: for each process, functions that tell it. Any thread calls these functions.
    """

    def __init__(self, leaves: Iterable[dict[Passing, Callable[[], None]]]) -> None:
        self._changing = Lock()
        self._leaves = {
            (process, passing): tell
            for process, tells in enumerate(leaves)
            for passing, tell in tells.items()
        }
        # The blocks that are begun, and not yet taken, or computed.
        self._before = dict.fromkeys(self._leaves, 0)
        # A block counts until it is read. ``all_started`` and the end of ``handed_out`` take
        # one off.
        self._pending = 2

    def handed_out(self, columns: Iterable[Sequence[Tile]]) -> Iterator[Sequence[Tile]]:
        """Yield the tiles of each column of a run. Each tile is begun afterwards."""
        for column in columns:
            with self._changing:
                self._pending += len(column)
            yield column
        self._settle()

    def all_started(self) -> None:
        """Note that all processes have started. None may leave before."""
        self._settle()

    def begun(self, process: int) -> None:
        """Note that a process has begun a block."""
        with self._changing:
            for key in self._before:
                self._before[key] += key[0] == process
        self._settle()

    def passing(self, process: int, passing: Passing, first: Callable[[], None]) -> Work:
        """Return a stage that notes that a block of a process has come so far.

        Args:
            process: the process.
            passing: how far the block has come.
            first: called before that is noted.
        """

        def note(block: Any) -> Any:
            first()
            with self._changing:
                self._before[process, passing] -= 1
            self._tell()
            return block

        return note

    def _settle(self) -> None:
        with self._changing:
            self._pending -= 1
        self._tell()

    def _tell(self) -> None:
        with self._changing:
            through = [] if self._pending else [key for key, n in self._before.items() if not n]
            leaving = [self._leaves.pop(key) for key in through if key in self._leaves]
        for tell in leaving:
            tell()
