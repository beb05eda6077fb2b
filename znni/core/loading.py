"""Loading of modules by a command, whose process begins with it and ends with it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Thread

# Whether this process runs one command only.
_own = False


def own_process() -> None:
    """Say that this process runs one command only. So all that it loads stays to its end."""
    global _own  # noqa: PLW0603 - set once, before anything else is loaded
    _own = True
    # pydantic would read the metadata of all installed packages, to find plugins. None is for znni.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # NumPy's BLAS would start a thread for each core when it is loaded. These threads wait busily
    # for a while. All parallel work is znni's own, and BLAS has one thread then.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def is_own_process() -> bool:
    """Return whether this process runs one command only."""
    return _own


def nothing() -> None:
    """Begin nothing."""


@contextmanager
def loading(*ahead: str, begin: Callable[[], object] = nothing) -> Iterator[None]:
    """Load modules within a ``with`` block without garbage collections: modules leave no garbage.

    In a process that runs more than one command, nothing changes.

    Args:
        ahead: modules that are needed afterwards. A thread loads them meanwhile.
        begin: further work that this thread begins.
    """
    if not _own:
        yield
        return
    with without_collections():
        try:
            if ahead or begin is not nothing:
                Thread(target=_load, args=(ahead, begin), daemon=True).start()
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


def _load(modules: Sequence[str], begin: Callable[[], object]) -> None:
    with suppress(Exception):  # doing it where it is needed raises its error
        for module in modules:
            import_module(module)
        begin()
