"""The last block of each process: a process that has computed it can end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Lock

from znni.engine.tiles import Tile


class LastBlocks:
    """Tells each process, once, that it has computed its last block.

    That block may not be written yet. Which process takes a block is known only when its reading
    begins. So a process is told only when the reading of all blocks has begun.

    Args:
        leaves: for each process, a function that tells it. Any thread calls this function.
    """

    def __init__(self, leaves: Iterable[Callable[[], None]]) -> None:
        self._changing = Lock()
        self._leaves = dict(enumerate(leaves))
        self._computing = dict.fromkeys(self._leaves, 0)
        # A block counts until it is read. ``all_started`` and the end of ``handed_out`` take
        # one off.
        self._pending = 2

    def handed_out(self, tiles: Iterable[Tile]) -> Iterator[Tile]:
        """Yield the tiles of a run. Each is begun afterwards."""
        for tile in tiles:
            with self._changing:
                self._pending += 1
            yield tile
        self._settle()

    def all_started(self) -> None:
        """Note that all processes have started. None may leave before."""
        self._settle()

    def begun(self, process: int) -> None:
        """Note that a process has taken a block."""
        with self._changing:
            self._computing[process] += 1
        self._settle()

    def computed(self, process: int) -> None:
        """Note that a process has computed a block that it had taken."""
        with self._changing:
            self._computing[process] -= 1
        self._tell()

    def _settle(self) -> None:
        with self._changing:
            self._pending -= 1
        self._tell()

    def _tell(self) -> None:
        with self._changing:
            through = [] if self._pending else [p for p, n in self._computing.items() if not n]
            leaving = [self._leaves.pop(process) for process in through if process in self._leaves]
        for tell in leaving:
            tell()
