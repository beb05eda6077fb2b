"""What a test has started or opened, whatever else comes and goes in its process meanwhile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Thread
from threading import enumerate as running


def threads_here() -> set[Thread]:
    """Return the threads that run now, without the threads of znni's pools, which stay."""
    return {thread for thread in running() if not thread.name.startswith("znni")}


def open_below(folder: Path) -> list[Path]:
    """Return what this process has open in a folder. It needs Linux."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it
            found.append(descriptor.readlink())
    return [path for path in found if path.is_relative_to(folder.resolve())]
