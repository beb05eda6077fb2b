"""Takes from znni what only Linux has, or only Linux and macOS, as if it ran on another system.

Python imports this module when it starts, if its folder is in ``PYTHONPATH``. So child processes
lack the same. ``ZNNI_TEST_SYSTEM`` names the system. Only code of znni and planner lacks the parts:
pytest, NumPy and the standard library keep those of the real system.
"""

from __future__ import annotations

import builtins
import os
import sys
from types import FrameType, ModuleType
from typing import Any

SYSTEM = os.environ.get("ZNNI_TEST_SYSTEM", "")
WINDOWS = SYSTEM == "windows"

FILES = "/proc", "/sys", "/dev/shm"
MODULES = {"fcntl", "resource", "termios", "pwd", "grp"} if WINDOWS else set[str]()
NAMES = {
    "os": {"memfd_create", "sched_getaffinity", "sched_setaffinity", "posix_fadvise", "pidfd_open"},
    "mmap": {"MADV_REMOVE", "MADV_HUGEPAGE"},
    "time": {"CLOCK_BOOTTIME"},
}
if WINDOWS:
    NAMES["os"] |= {
        *("pread", "preadv", "pwrite", "pwritev", "statvfs", "ST_RDONLY", "sync", "O_DIRECTORY"),
        *("O_CLOEXEC", "fork", "register_at_fork", "killpg", "sysconf", "getloadavg", "fchmod"),
    }
    NAMES["mmap"] |= {"MAP_PRIVATE", "MAP_ANONYMOUS", "MADV_DONTNEED"}
    NAMES["signal"] = {"SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pthread_kill"}
    NAMES["time"] |= {"clock_gettime"}
FUNCTIONS_OF_C = {"sched_yield"} if WINDOWS else {"sched_yield", "madvise"}

_import = builtins.__import__
_limited: dict[str, ModuleType] = {}


class Limited(ModuleType):
    """A module without some of its names."""

    def __init__(self, whole: ModuleType, hidden: set[str]) -> None:
        super().__init__(whole.__name__)
        self.__dict__.update({k: v for k, v in vars(whole).items() if k not in hidden})


def limited(name: str) -> ModuleType:
    """Return a module as znni sees it."""
    if name not in _limited:
        made = Limited(_import(name), NAMES.get(name, set()))
        if name == "ctypes":
            vars(made)["CDLL"] = library
        _limited[name] = made
    return _limited[name]


def library(name: str | None, *args: Any, **options: Any) -> Any:
    """Open a library. That of C has few functions."""
    import ctypes

    whole = ctypes.CDLL(name, *args, **options)
    if name is not None:
        return whole
    made = ModuleType("libc")
    vars(made).update({each: getattr(whole, each) for each in FUNCTIONS_OF_C})
    return made


def locking(descriptor: int, _mode: int, _count: int) -> None:
    """Lock a file as Windows does: that of another descriptor is refused."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "locked") from None


def of_znni(name: str) -> bool:
    """Return whether a module belongs to the code that is tested."""
    return name.partition(".")[0] in ("znni", "planner")


def import_as_there(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> ModuleType:
    """Import a module as the other system would."""
    if not level and globals is not None and of_znni(globals.get("__name__") or ""):
        if name in MODULES:
            raise ImportError(f"no module {name} on this system")
        if name in NAMES or name == "ctypes":
            return limited(name)
        if name == "msvcrt" and WINDOWS:
            made = ModuleType(name)
            vars(made).update(locking=locking, LK_NBLCK=2)
            return made
    return _import(name, globals, locals, fromlist, level)


def refuse_files(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse znni the files that only Linux has."""
    if event not in ("open", "os.listdir", "os.scandir") or not isinstance(arguments[0], str):
        return
    if arguments[0].startswith(FILES) and _is_asked_by_znni(sys._getframe(1)):
        raise FileNotFoundError(2, "no such file on this system", arguments[0])


def _is_asked_by_znni(frame: FrameType | None) -> bool:
    """Return whether the first caller outside of the modules for files is znni."""
    passing = ("pathlib", "io", "os", "glob", "codecs", "__main__", __name__)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(passing):
        frame = frame.f_back
    return frame is not None and of_znni(frame.f_globals.get("__name__", ""))


if SYSTEM:
    builtins.__import__ = import_as_there
    sys.addaudithook(refuse_files)
