"""Loading of modules by a command, whose process begins with it and ends with it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from znni.core.background import in_background

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


def begin(work: Callable[[], object] | None) -> None:
    """Begin work in a thread while modules are loaded, if this process runs one command only.

    Args:
        work: the work; None: there is none. Its error is raised when it is done again later.
    """
    if _own and work:
        in_background(work)


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
