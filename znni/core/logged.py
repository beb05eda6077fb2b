"""Warnings that are logged once, and work that takes long."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Event, Thread

log = logging.getLogger("znni")

# The log of work that takes long. On a terminal, the command line shows all its messages, and
# elsewhere only those on work that takes minutes.
log_of_waits = logging.getLogger("znni.waits")

# What a run does before it computes, if its network normalizes by the whole volume.
READING = "reading the volume for its statistics"

# Seconds after which work takes long: users begin to wonder what it does.
LONG_SECONDS = 2.0
MINUTE = 60


@cache
def warn_once(message: str) -> None:
    """Log a warning, unless this process has logged the same before."""
    log.warning("%s", message)


@contextmanager
def telling_if_long(work: str) -> Iterator[None]:
    """Log how long the work within a ``with`` block has taken: after 2 seconds, 4, 8, and so on.

    Args:
        work: the work, as "searching for the fastest plan".
    """
    over = Event()
    telling = Thread(target=_tell, args=(work, over), daemon=True)
    telling.start()
    try:
        yield
    finally:
        over.set()
        telling.join()


def _tell(work: str, over: Event) -> None:
    spent, rest = 0.0, LONG_SECONDS
    while not over.wait(rest):
        spent += rest
        rest = spent
        level = logging.WARNING if spent >= MINUTE else logging.INFO
        log_of_waits.log(level, "%s, %.0f s so far", work, spent)
