"""Stages that work at the same time, each on an item that the stage before has handed on.

A chain is a sequence of stages. Several chains may share one source of items: each item goes
through the chain that is free first.

No item waits between two stages: a stage keeps an item until the next stage is free. So a chain
holds at most as many items as it has stages. The output of a stage exists at most twice: the next
stage still reads one while the stage makes another. With several GPUs, blocks also lie in slots:
``SLOTS`` in ``workers/processes.py`` says how many each GPU has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Condition, Lock, Thread
from typing import Any, NamedTuple, Self, TypeAlias

# What a stage does with an item. It returns the item for the next stage.
Work: TypeAlias = Callable[[Any], Any]


def passing_items(stage: Work) -> Work:
    """Return a stage that calls ``item.through(stage)``, which decides what is done."""
    return lambda item: item.through(stage)


def in_turn(stages: Sequence[Work]) -> Work:
    """Return one stage that does what several do, one after the other."""

    def work(item: Any) -> Any:
        for stage in stages:
            item = stage(item)
        return item

    return work


def no_more() -> Sequence[Work]:
    """Return no stages."""
    return ()


def nothing_to_do() -> None:
    """Return at once: there is nothing to do, nor to wait for."""


class StageChain(NamedTuple):
    """Stages that items go through, in order.

    Attributes:
        stages: what each does with an item.
        here: which stage runs in the thread that calls ``finish``; 0 is the first. None: no stage.
            The others have threads of their own.
        later: returns the stages after these. It is called when their first item is waited for, so
            that the stages before work while these are made.
        over: called by the thread of the last stage once no further item comes to it.
    """

    stages: Sequence[Work]
    here: int | None = None
    later: Callable[[], Sequence[Work]] = no_more
    over: Callable[[], None] = nothing_to_do


class Over(Exception):
    """No more items come, or nobody takes any. A stage raises it if it finds none."""


class Handover:
    """The place where one stage hands item after item to the next."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._offered: list[Any] = []  # one at most
        self._over = False

    def give(self, item: Any) -> None:
        """Hand an item on, and wait until the next stage takes it.

        Raises:
            Over: it takes no more.
        """
        with self._changed:
            if not self._over:
                self._offered.append(item)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._over or not self._offered)
            if self._over:
                raise Over

    def take(self) -> Any:
        """Wait for the next item, and return it.

        Raises:
            Over: there are no more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over or bool(self._offered))
            if not self._offered:
                raise Over
            self._changed.notify_all()
            return self._offered.pop()

    def close(self) -> None:
        """Say that no more items are given, or taken."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


class _Source(Handover):
    """Gives items to the first stages of all chains."""

    def __init__(self, items: Iterable[Any], stop: Callable[[], None]) -> None:
        super().__init__()
        self._items: Iterator[Any] = iter(items)
        self._stop = stop
        self._stopped = False
        self._taking = Lock()

    def take(self) -> Any:
        with self._taking:
            if not self._over:
                for item in self._items:
                    return item
        raise Over

    def close(self) -> None:
        with self._changed:
            first, self._stopped = not self._stopped, True
        super().close()
        if first:  # several threads close it, but ``stop`` may be called only once
            self._stop()


class _End(Handover):
    """Takes what a last stage gives, and forgets it."""

    def give(self, item: Any) -> None:
        pass


class ChainThreads:
    """Threads that take items through chains of stages, within a ``with`` block.

    An error in a stage ends the work. No chain takes another item. In the same chain, the stages
    before it stop after the item that they are at, and the stages after it finish their items. The
    other chains finish their items, too.

    Args:
        items: what the first stages take.
        chains: what is done with each item.
        stop: called once, from any thread, when no more items are taken. If the items come from
            elsewhere, it must end the wait for the next one.
    """

    def __init__(
        self,
        items: Iterable[Any],
        chains: Iterable[StageChain],
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source = _Source(items, stop)
        self._errors: list[BaseException] = []
        self._handovers: list[Handover] = [source]
        self._threads: list[Thread] = []
        # What runs in this thread. A bound method would make a cycle, which would keep the stages,
        # and the memory of their arenas, until the garbage collector runs.
        self._here: list[tuple[Work, Handover, Handover, Callable[[], None]]] = []
        self._later: list[tuple[Handover, StageChain]] = []
        for chain in chains:
            after = _End() if chain.later is no_more else Handover()
            self._handovers.append(after)
            self._add(chain, 0, chain.stages, source, after)
            self._later.append((after, chain))

    def __enter__(self) -> Self:
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # a signal, or the system starts no more threads
            self.__exit__()
            raise
        return self

    def _add(
        self,
        chain: StageChain,
        first: int,
        stages: Sequence[Work],
        before: Handover,
        after: Handover,
    ) -> None:
        """Add stages of a chain, whose numbers begin with ``first``."""
        between = [before, *(Handover() for _ in stages[1:]), after]
        self._handovers += between[1:-1]
        for number, stage in enumerate(stages):
            final = isinstance(between[number + 1], _End)
            over = chain.over if final else nothing_to_do
            work = stage, between[number], between[number + 1], over
            if first + number == chain.here:
                self._here.append(work)
            else:
                self._threads.append(Thread(target=self._run, args=work))

    def meanwhile(self, work: Callable[[], None]) -> None:
        """Do something in this thread while the others work.

        Raises:
            Exception: the first that was raised in any thread, if this work raises one.
        """
        try:
            work()
        except Exception as error:
            self._errors.append(error)
        else:
            return
        raise self._errors[0]

    def finish(self) -> None:
        """Begin the later stages, do the work of those of this thread, and wait for all others.

        Raises:
            BaseException: the first that was raised in a stage.
        """
        begun = len(self._threads)
        for before, chain in self._later:
            if later := chain.later():
                self._add(chain, len(chain.stages), later, before, _End())
        for thread in self._threads[begun:]:
            thread.start()
        for work in self._here:
            self._run(*work)
        _wait_for(self._threads)
        if self._errors:
            raise self._errors[0]

    def __exit__(self, *_: object) -> None:
        for handover in self._handovers:  # a signal, or an error, may have ended the waiting
            handover.close()
        _wait_for(self._threads)

    def _run(
        self, stage: Work, before: Handover, after: Handover, over: Callable[[], None]
    ) -> None:
        try:
            with suppress(Over):
                while True:  # no name keeps an item that was handed on alive
                    after.give(stage(before.take()))
            over()
        except BaseException as error:
            self._errors.append(error)
            self._source.close()
        finally:
            before.close()
            after.close()


def run_stages(
    items: Iterable[Any],
    stages: Sequence[Work],
    here: int,
    stop: Callable[[], None] = lambda: None,
) -> None:
    """Take items through all stages, in order.

    Args:
        items: what the first stage takes.
        stages: what each does with an item.
        here: the stage that works in this thread; the others have threads of their own.
        stop: as for ``ChainThreads``.

    Raises:
        BaseException: the first that was raised in a stage; ``ChainThreads`` says what it ends.
    """
    with ChainThreads(items, [StageChain(stages, here)], stop) as threads:
        threads.finish()


def _wait_for(threads: Iterable[Thread]) -> None:
    for thread in threads:
        if thread.ident is not None:  # an error may have come before it was started
            thread.join()
