"""A file that takes its name only once it is whole."""

from __future__ import annotations

import fcntl
import os
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from znni.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def partial_name(path: Path) -> Path:
    """What a file is called until it is whole."""
    return path.with_name(path.name + ".partial")


class PartialFile(FileIO):
    """A new file ``NAME.partial``, locked against a second writer, that becomes ``NAME``.

    Writing raises nothing: the first failure is kept, and all that is written after it is
    dropped. HDF5 holds on to what it cannot write, and crashes the interpreter at its end.

    Attributes:
        path: the name asked for.
        partial: the name until the file is whole.
        failure: why a write failed, if one did.

    Raises:
        InvalidInput: another run is writing the file.
        OSError: it cannot be made there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = partial_name(path)
        self.failure: OSError | None = None
        super().__init__(os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o666), "r+")
        try:
            fcntl.flock(self, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InvalidInput(
                f"{self.partial}: is in use, as by another run; wait for it, or write elsewhere"
            ) from None
        except OSError:  # a file system without locks
            pass
        super().truncate(0)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data``, unless a write has failed."""
        view = memoryview(data).cast("B")
        written = 0
        try:
            while self.failure is None and written < len(view):
                written += super().write(view[written:])
        except OSError as error:
            self.failure = error
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the length, unless a write has failed."""
        try:
            if self.failure is None:
                return super().truncate(size)
        except OSError as error:
            self.failure = error
        return self.tell() if size is None else size

    def complete(self) -> None:
        """See the file to the disk, and give it its name.

        Raises:
            OSError: it, or an earlier write, failed.
        """
        if self.failure:
            raise self.failure
        os.fsync(self)
        self.partial.replace(self.path)
        self.close()
