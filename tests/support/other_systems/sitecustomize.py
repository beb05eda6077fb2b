"""Takes from the project what only Linux has, or only Linux and macOS, as on another system.

Python imports this module when it starts, if its folder is in ``PYTHONPATH``. So child processes
lack the same. ``ZNNI_TEST_SYSTEM`` names the system: ``macos`` or ``windows``. Only code of this
project lacks the parts, tests included: pytest, NumPy and the standard library keep those of the
real system. On ``windows``, the project cannot open folders, nor rename or remove open files, and
text files without a stated encoding are in that of Western Europe.
"""

# ruff: noqa: PTH112, PTH115, PTH118, PTH208

from __future__ import annotations

import builtins
import ctypes
import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any

SYSTEM = os.environ.get("ZNNI_TEST_SYSTEM", "")
WINDOWS = SYSTEM == "windows"
PROJECT = os.path.realpath(__file__).rsplit(os.sep, 4)[0] + os.sep

FILES = "/proc", "/sys", "/dev/shm"
MODULES = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp"} if WINDOWS else set[str]()
NAMES = {
    "ctypes": set[str](),
    "platform": set[str](),
    "os": {
        *("memfd_create", "sched_getaffinity", "sched_setaffinity", "posix_fadvise", "pidfd_open"),
        *("posix_fallocate", "O_DIRECT", "getxattr", "setxattr", "copy_file_range", "splice"),
    },
    "mmap": {"MADV_REMOVE", "MADV_HUGEPAGE"},
    "resource": {"prlimit"},
    "select": {"epoll"},
    "signal": {"SIGRTMIN", "SIGRTMAX", "SIGPOLL", "SIGPWR", "SIGSTKFLT", "SIGCLD", "sigtimedwait"},
    "time": {"CLOCK_BOOTTIME"},
}
if WINDOWS:
    NAMES["os"] |= {
        *("pread", "preadv", "pwrite", "pwritev", "statvfs", "ST_RDONLY", "sync", "O_DIRECTORY"),
        *("O_CLOEXEC", "fork", "forkpty", "register_at_fork", "killpg", "getpgid", "setsid"),
        *("sysconf", "getloadavg", "fchmod", "fchown", "chown", "mkfifo", "openpty", "uname"),
        *("getuid", "geteuid", "seteuid", "setuid", "posix_spawn", "wait", "wait4", "nice"),
        *("WIFSIGNALED", "WIFEXITED", "WTERMSIG", "WNOHANG"),
    }
    NAMES["mmap"] |= {name for name in vars(__import__("mmap")) if name[:4] in ("MAP_", "MADV")}
    NAMES["mmap"] |= {"PROT_READ", "PROT_WRITE", "PROT_EXEC"}
    NAMES["select"] |= {"poll"}
    NAMES["signal"] |= {name for name in vars(signal) if name.startswith("SIG")}
    NAMES["signal"] -= {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}
    NAMES["signal"] -= {"SIG_DFL", "SIG_IGN"}
    NAMES["signal"] |= {"alarm", "setitimer", "pause", "pthread_kill", "pthread_sigmask", "sigwait"}
    NAMES["time"] |= {"clock_gettime"}
FUNCTIONS_OF_C = {"sched_yield"} if WINDOWS else {"sched_yield", "madvise"}

# Modules that open, rename and remove files for others.
PASSING = "pathlib", "io", "os", "glob", "codecs", "shutil", "tempfile", "contextlib", __name__

_import = builtins.__import__
_open = io.open
_library = ctypes.CDLL
_limited: dict[str, ModuleType] = {}
_wholes: dict[str, ModuleType] = {}
_replaced: dict[str, dict[str, Any]] = {}


class Limited(ModuleType):
    """A module without some of its names. What is set in it is set in the whole module."""

    __dict__ = property(lambda self: vars(_wholes[self.__name__]))  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name in _replaced.get(self.__name__, {}):
            return _replaced[self.__name__][name]
        if name in NAMES[self.__name__]:
            raise AttributeError(f"no {self.__name__}.{name} on this system")
        return getattr(_wholes[self.__name__], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in NAMES[self.__name__]:
            _replaced.setdefault(self.__name__, {})[name] = value
        else:
            setattr(_wholes[self.__name__], name, value)

    def __delattr__(self, name: str) -> None:
        if name in NAMES[self.__name__]:
            _replaced[self.__name__].pop(name)
        else:
            delattr(_wholes[self.__name__], name)


def limited(name: str) -> ModuleType:
    """Return a module as the project sees it."""
    if name not in _limited:
        _wholes[name] = _import(name)
        _limited[name] = Limited(name)
    return _limited[name]


def library(name: str | None, *args: Any, **options: Any) -> Any:
    """Open a library. That of C has few functions."""
    whole = _library(name, *args, **options)
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


def of_project(variables: dict[str, Any]) -> bool:
    """Return whether a module, known by its variables, belongs to the code that is tested."""
    file = variables.get("__file__") or ""
    return file.startswith(PROJECT) and file != __file__ and "site-packages" not in file


def import_as_there(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> ModuleType:
    """Import a module as the other system would."""
    if level or globals is None or not of_project(globals):
        return _import(name, globals, locals, fromlist, level)
    if name in MODULES:
        raise ModuleNotFoundError(f"no module {name} on this system", name=name)
    if name == "msvcrt" and WINDOWS:
        made = ModuleType(name)
        vars(made).update(locking=locking, LK_NBLCK=2)
        return made
    whole = _import(name, globals, locals, fromlist, level)
    return limited(whole.__name__) if whole.__name__ in NAMES else whole


def open_as_there(
    file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *rest: Any, **named: Any
) -> Any:
    """Open a file. Windows has another encoding for texts."""
    if encoding in (None, "locale") and "b" not in mode and _is_asked_by_project():
        encoding = "cp1252"
    return _open(file, mode, buffering, encoding, *rest, **named)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse the project what the other system refuses."""
    if event in ("open", "os.listdir", "os.scandir"):
        path = arguments[0]
        asker = sys._getframe().f_back
        if asker is None or asker.f_code is _is_open.__code__:
            return
        if not isinstance(path, (str, os.PathLike)):
            return
        if event == "os.scandir" and asker.f_globals.get("__name__") == "pathlib":
            return  # of Path.glob, which has looked whether there is such a folder
        path = os.fspath(path)
        if str(path).startswith(FILES) and _is_asked_by_project():
            raise FileNotFoundError(2, "no such file on this system", path)
        if WINDOWS and event == "open" and of_project(asker.f_globals) and os.path.isdir(path):
            raise PermissionError(13, "this system opens no folders", path)
    elif WINDOWS and event in ("os.rename", "os.remove") and _is_asked_by_project():
        for path in arguments[: 2 if event == "os.rename" else 1]:
            if _is_open(path):
                raise PermissionError(13, "this system leaves open files as they are", path)


def _is_open(path: Any) -> bool:
    """Return whether this process has opened a file, or a file of a folder."""
    found = os.path.realpath(path)
    inside = os.path.join(found, "")
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            place = os.readlink(f"/proc/self/fd/{descriptor}")
            if place == found or place.startswith(inside):
                return True
    return False


def _is_asked_by_project() -> bool:
    """Return whether the first caller outside of the modules for files belongs to the project."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(PASSING):
        frame = frame.f_back
    return frame is not None and of_project(frame.f_globals)


if SYSTEM:
    _replaced["ctypes"] = {"CDLL": library}
    _replaced["platform"] = {"system": lambda: "Windows" if WINDOWS else "Darwin"}
    builtins.__import__ = import_as_there
    if WINDOWS:
        builtins.open = io.open = open_as_there  # type: ignore[assignment]
    sys.addaudithook(refuse)
