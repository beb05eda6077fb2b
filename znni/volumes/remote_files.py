"""A folder in an object store, to which several processes write whole files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any
from uuid import uuid4

from znni.machine.io_threads import io_threads, mapped
from znni.volumes.formats import library
from znni.volumes.ledger_entries import line
from znni.volumes.shared_files import LOG, Log
from znni.volumes.stored import reason

# A log is stored again after so much. What a killed process has not stored is computed again.
MOST_ENTRIES = 1000
MOST_SECONDS = 30.0


class RemoteFiles:
    """A folder in an object store. There, a file is written whole, and never renamed.

    Deleting a file may race with another process that writes it. So files are only replaced while
    the output is written.

    Raises:
        ImportError: the URL's protocol needs a library.
        OSError: there is no such protocol, or the library cannot use it.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        with _as_os_error():
            self._files, self._path = library("fsspec", "zarr").core.url_to_fs(root)

    def has(self, name: str) -> bool:
        """Return whether there is a file of a name, or for the empty name, anything at all."""
        with self._fresh():
            return bool(self._files.exists(self._at(name)))

    def get(self, name: str) -> bytes:
        """Return the content of a file."""
        with _as_os_error():
            return bytes(self._files.cat_file(self._at(name)))

    def put(self, name: str, *parts: bytes | memoryview) -> None:
        """Create or replace a file. Without parts, do nothing."""
        if parts:
            with _as_os_error():
                self._files.pipe_file(self._at(name), b"".join(parts))

    def stays(self, name: str) -> bool:
        """Return whether a file is there."""
        return self.has(name)

    def make_once(self, name: str, content: bytes) -> bool:
        """Make a file, unless there is one, and return whether this process has made it."""
        try:
            with _as_os_error():
                self._files.pipe_file(self._at(name), content, mode="create")
        except FileExistsError:
            return False
        except OSError:  # S3 also fails while another process is making the file
            if not self.has(name):
                raise
            return False
        return True

    def is_gone(self) -> bool:
        """Return whether there is certainly nothing of this name."""
        try:
            with self._fresh():
                self._files.info(self._path)
        except FileNotFoundError:
            return True
        except OSError:  # nobody knows
            return False
        return False

    def log(self) -> Log:
        """Return a new log of this process, in segments."""
        return _SegmentedLog(self, uuid4().hex)

    def logs(self) -> Iterator[bytes]:
        """Yield the entries of all processes, segment by segment."""
        try:
            with self._fresh():
                paths = sorted(self._files.ls(self._path, detail=False))
        except FileNotFoundError:
            return
        logs = (path for path in paths if path.endswith(LOG))
        with _as_os_error():
            yield from mapped(self._files.cat_file, logs, 2 * io_threads())

    def delete(self) -> None:
        """Delete the folder, or the file of this name."""
        with self._fresh():
            self._files.rm(self._path, recursive=True)

    def discard(self) -> None:
        """Delete the folder, if that is possible."""
        with suppress(OSError):  # a folder that stays does no harm
            self.delete()

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    @contextmanager
    def _fresh(self) -> Iterator[None]:
        """Forget what the library has listed: other processes write here, too."""
        with _as_os_error():
            self._files.invalidate_cache()
            yield


class _SegmentedLog:
    """A log where nothing can be appended: each segment has the entries since the last one.

    A segment that could not be stored may be there all the same. So its entries go to one of
    another name, and no name ever stands for two contents.
    """

    def __init__(self, files: RemoteFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._segments = 0
        self._lines: list[bytes] = []
        self._stored = monotonic()

    def append(self, entry: Mapping[str, Any]) -> None:
        self._lines.append(line(entry))
        if len(self._lines) >= MOST_ENTRIES or monotonic() - self._stored >= MOST_SECONDS:
            self.close()

    def close(self) -> None:
        if self._lines:
            name = f"{self._name}-{self._segments:06}{LOG}"
            self._segments += 1
            self._files.put(name, *self._lines)
            self._lines.clear()
        self._stored = monotonic()


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn the errors of file systems' libraries, which are of all kinds, into an OSError."""
    try:
        yield
    except (OSError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise OSError(reason(error)) from error
