"""Work in a thread of its own, whose result is asked for later."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
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


def _finish(work: Callable[[], Result], result: Future[Result]) -> None:
    try:
        found = work()
    except BaseException as error:
        result.set_exception(error)
    else:
        result.set_result(found)
