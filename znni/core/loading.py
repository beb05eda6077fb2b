"""Loading of modules by a command, whose process begins with it and ends with it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

# Whether this process runs one command only.
_own = False


def own_process() -> None:
    """Say that this process runs one command only. So all that it loads stays to its end."""
    global _own  # noqa: PLW0603 - set once, before anything else is loaded
    _own = True
    # NumPy's BLAS would start a thread for each core when it is loaded. These threads wait busily
    # for a while. All parallel work is znni's own, and BLAS has one thread then.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def is_own_process() -> bool:
    """Return whether this process runs one command only."""
    return _own


def nothing() -> None:
    """Begin nothing."""


@contextmanager
def loading(begin: Callable[[], object] = nothing) -> Iterator[None]:
    """Load modules within a ``with`` block without garbage collections: modules leave no garbage.

    In a process that runs more than one command, nothing changes.

    Args:
        begin: work that a thread does meanwhile.
    """
    if not _own:
        yield
        return
    with without_collections():
        try:
            if begin is not nothing:
                Thread(target=_begin, args=(begin,), daemon=True).start()
            yield
        finally:
            gc.freeze()


@contextmanager
def without_collections() -> Iterator[None]:
    """Run a ``with`` block without garbage collections, for work whose objects all stay in use.

    Each collection would look at all objects so far, and find little.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _begin(work: Callable[[], object]) -> None:
    with suppress(Exception):  # doing it where it is needed raises its error
        work()
