"""Folders to which several processes write whole files, and the logs that each of them keeps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from znni.core import system
from znni.volumes.ledger_file import append_lines
from znni.volumes.partial_file import partial_name, write_all

LOG = ".log"


class Log(Protocol):
    """Entries of a ledger that one process appends. Nobody else writes there."""

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry.

        Raises:
            OSError: it cannot be stored.
        """

    def close(self) -> None:
        """Store what is not stored yet, and release the log; closing it again does nothing.

        Raises:
            OSError: it cannot be stored.
        """


class LocalFiles:
    """A folder on a file system, whose files appear whole or not at all.

    The file system may be one without locks or shared appending, such as NFS. All failures are an
    OSError. Names are relative to the folder.

    Attributes:
        path: the folder. It is made with its first file.
        root: the same, as text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = str(path)
        self._own = uuid4().hex

    def has(self, name: str) -> bool:
        """Return whether there is a file of a name, or for the empty name, anything at all."""
        if name:
            return (self.path / name).exists()
        return self.path.is_dir() and any(self.path.iterdir())

    def get(self, name: str) -> bytes:
        """Return the content of a file."""
        return (self.path / name).read_bytes()

    def put(self, name: str, *parts: bytes | memoryview) -> None:
        """Create or replace a file, atomically. Without parts, delete the file."""
        path = self.path / name
        put_file(path, partial_name(path.with_name(f"{path.name}.{self._own}")), parts)

    def stays(self, name: str) -> bool:  # noqa: ARG002
        """Return False: file systems delete files in the order in which they are told to."""
        return False

    def make_once(self, name: str, content: bytes) -> bool:
        """Make a file, unless there is one, and return whether this process has made it."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{uuid4().hex}.partial")
        try:
            with new.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(new, path)
        except FileExistsError:
            return False
        finally:
            new.unlink(missing_ok=True)
        return True

    def log(self) -> Log:
        """Return a new log of this process: a file."""
        return _AppendedLog(self.path / f"{uuid4().hex}{LOG}")

    def logs(self) -> Iterator[bytes]:
        """Yield the entries of all processes, log by log."""
        for path in sorted(self.path.iterdir()):
            if path.suffix == LOG:
                yield path.read_bytes()

    def discard(self) -> None:
        """Delete the folder, if that is possible."""
        with suppress(OSError):  # a folder that stays does no harm
            shutil.rmtree(self.path)


def put_file(path: Path, new: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Create or replace a file, atomically. Without parts, delete it.

    Args:
        path: the file. Its folder is made if need be.
        new: name of the new file until it is complete; nobody else writes to it.
        parts: its content.

    Raises:
        OSError: writing failed.
    """
    if not parts:
        path.unlink(missing_ok=True)
        return
    try:
        file = new.open("wb", buffering=0)
    except FileNotFoundError:  # first file in its folder
        path.parent.mkdir(parents=True, exist_ok=True)
        file = new.open("wb", buffering=0)
    with file:
        place = 0
        for part in parts:
            write_all(file.fileno(), part, place)
            place += memoryview(part).nbytes
    new.replace(path)


class _AppendedLog:
    """A file that is made with its first entry."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._end = 0

    def append(self, entry: Mapping[str, Any]) -> None:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.AS_BYTES
            self._descriptor = os.open(self._path, flags, 0o666)
        self._end = append_lines(self._descriptor, [entry], self._end)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
