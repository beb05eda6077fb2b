"""Stages that work at the same time, each on an item that the one before has handed on.

No item waits between two stages: one that is done with an item keeps it until the next stage is
free. So a chain holds as many items as it has stages, and what each stage makes exists twice at
most: once where it is made, and once where it is taken from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Condition, Thread
from typing import Any, TypeAlias

# What a stage does with an item.
Work: TypeAlias = Callable[[Any], Any]


def of_values(work: Work) -> Work:
    """The stage that does with the ``values`` of an item, a ``NamedTuple``, what ``work`` does."""
    return lambda item: item._replace(values=work(item.values))


class Over(Exception):
    """No more items come, or nobody takes any."""


class Handover:
    """Where one stage hands item after item to the next."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._offered: list[Any] = []  # one at most
        self._over = False

    def give(self, item: Any) -> None:
        """Hand an item on, once the next stage takes it.

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
        """The next item, once the stage before gives it.

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
        """Say that no more are given, or taken."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


class _Beginning(Handover):
    """Gives what there is to the first stage."""

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__()
        self._items: Iterator[Any] = iter(items)

    def take(self) -> Any:
        for item in self._items:
            return item
        raise Over


class _End(Handover):
    """Takes what the last stage gives, and forgets it."""

    def give(self, item: Any) -> None:
        pass


def run_stages(items: Iterable[Any], stages: Sequence[Work], here: int) -> None:
    """Take items through all stages, in order.

    What a stage raises ends the run: those before it stop after the item that they are at, those
    after it finish what they have, and then it is raised here. Of several errors the first is.

    Args:
        items: what the first stage takes.
        stages: what each does with an item, to give it to the next.
        here: which of them works in this thread; the others have threads of their own.
    """
    between = [_Beginning(items), *(Handover() for _ in stages[1:]), _End()]
    errors: list[BaseException] = []

    def run(index: int) -> None:
        before, after = between[index : index + 2]
        try:
            while True:  # no name keeps an item that was handed on alive
                after.give(stages[index](before.take()))
        except Over:
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            before.close()
            after.close()

    others = [Thread(target=run, args=(index,)) for index in range(len(stages)) if index != here]
    for thread in others:
        thread.start()
    try:
        run(here)
        _wait_for(others)
    finally:  # where a signal ends the waiting
        for handover in between:
            handover.close()
        _wait_for(others)
    if errors:
        raise errors[0]


def _wait_for(threads: Iterable[Thread]) -> None:
    for thread in threads:
        thread.join()
