"""Workers that record how work is divided among them, or that all take part in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Barrier

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


class JointWorkers(Workers):
    """Makes every worker take a task, if there are enough.

    On a busy machine one worker may take all. Then nobody touches the scratch memory of the others.
    """

    def for_each(self, task: Callable[[int, Item], None], items: Iterable[Item]) -> None:
        listed = list(items)
        if len(listed) < self.threads:
            super().for_each(task, listed)
            return
        all_here = Barrier(self.threads)
        begun = set[int]()

        def joint(worker: int, item: Item) -> None:
            if worker not in begun:
                begun.add(worker)
                all_here.wait(timeout=60)
            task(worker, item)

        super().for_each(joint, listed)
