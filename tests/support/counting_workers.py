"""Workers that record how finely work is divided among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from znni.primitives.cpu.common.workers import Item, Workers


class CountingWorkers(Workers):
    """Records how many tasks each call hands out."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.tasks: list[int] = []

    def for_each(self, task: Callable[[int, Item], None], items: Iterable[Item]) -> None:
        listed = list(items)
        self.tasks.append(len(listed))
        super().for_each(task, listed)
