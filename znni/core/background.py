"""Work in a thread of its own, whose result is asked for later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Begin work in a thread that does not keep the process from ending; return its result.

    The result raises whatever the work raises.
    """
    result: Future[Result] = Future()
    Thread(target=_finish, args=(work, result), daemon=True).start()
    return result


@contextmanager
def meanwhile(work: Callable[[], Result]) -> Iterator[Future[Result]]:
    """Do work in a thread during a ``with`` block, whose end waits for it; yield its result.

    What the work raises is raised only if the result is asked for. If the user stops the block,
    nothing waits.
    """
    result = in_background(work)
    try:
        yield result
    except Exception:
        result.exception()
        raise
    result.exception()


def _finish(work: Callable[[], Result], result: Future[Result]) -> None:
    try:
        found = work()
    except BaseException as error:
        result.set_exception(error)
    else:
        result.set_result(found)
