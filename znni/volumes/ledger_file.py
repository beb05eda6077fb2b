"""A ledger that is kept while an output is written, so that a later run can resume it.

It appends entries and reads them back. The output calls it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from znni.core import system
from znni.core.errors import InvalidInput, option
from znni.core.shapes import Box
from znni.core.text import counted
from znni.core.volume import NewOutput
from znni.volumes.identity import differences
from znni.volumes.ledger_entries import (
    Ledger,
    changes_entry,
    identity_entry,
    line,
    parse,
    plan_entry,
)
from znni.volumes.partial_file import write_all

# Tells whether an unfinished output without a ledger has nothing to resume.
MadeAgain: TypeAlias = Callable[[Path], bool]


class MemoryLedger:
    """A ledger that is lost with the process, for an output that no run can resume."""

    def __init__(self, identity: Mapping[str, str]) -> None:
        self.content = Ledger(identity=identity)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry."""
        self.content.take(entry)

    def note_plan(self, plan: str) -> None:
        """Append the plan of the blocks to come, unless the blocks before have the same plan."""
        if plan != self.content.plan:
            self.append(plan_entry(plan))

    def settle(self) -> None:
        """Wait until the disk has all entries."""

    def close(self) -> None:
        """Release it."""

    def discard(self) -> None:
        """Release and delete it."""


class LedgerFile(MemoryLedger):
    """A ledger in a file, ``NAME.partial.ledger``.

    The entry of a block comes after the block itself. So however the process ends, the system has
    every block that has an entry. If power is lost, the checksums tell what is lost. Identity
    and plan are written together with the next other entry, or by ``settle``.

    Attributes:
        partial: the unfinished output, a file or a folder.
        resumed: whether the file has finished blocks of an earlier run.

    Raises:
        InvalidInput: there is an unfinished output of something else.
        OSError: the file cannot be made there.
    """

    def __init__(
        self, partial: Path, wanted: NewOutput, made_again: MadeAgain | None = None
    ) -> None:
        """Open the file, under the lock of the output.

        Args:
            partial: the unfinished output, a file or a folder.
            made_again: as for ``unfinished``. If it is given, a new file is made when it gets its
                first entry: many small outputs need none.
        """
        super().__init__(wanted.identity)
        self.partial = partial
        self.resumed = False
        self._path = ledger_name(partial)
        found, self._end = _to_resume(partial, self._path, wanted, made_again)
        self._waiting: list[Mapping[str, Any]] = []
        self._descriptor: int | None = None
        with suppress(FileNotFoundError):  # it is made with its first entry
            self._descriptor = self._opened(0 if made_again else os.O_CREAT)
        if found:
            self.content, self.resumed = found, True
        else:
            self._waiting.append(identity_entry(wanted.identity))
        self._earlier = len(self.content.history)

    @property
    def written(self) -> list[Box]:
        """The blocks written since it was opened."""
        return [box for box, whole in self.content.history[self._earlier :] if whole]

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry. A plan is written with the next other entry.

        Raises:
            OSError: it does not fit on the disk; nothing of it is left there.
        """
        if "plan" in entry:
            self._waiting.append(entry)
        else:
            self._write(entry)
        super().append(entry)

    def settle(self) -> None:
        """Wait until the disk has all entries.

        Raises:
            OSError: the disk fails.
        """
        os.fsync(self._write())

    def note_changes(self, changes: list[tuple[int, bytes]]) -> None:
        """Append what is about to be changed in the output's file, and wait for the disk."""
        self.append(changes_entry(changes))
        self.settle()

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def discard(self) -> None:
        """Close and delete the file."""
        self.close()
        with suppress(OSError):  # a file that stays does no harm
            self._path.unlink()

    def _write(self, *entries: Mapping[str, Any]) -> int:
        """Append the entries that wait to the file, and further ones. Return its descriptor."""
        if self._descriptor is None:
            self._descriptor = self._opened(os.O_CREAT)
        self._end = append_lines(self._descriptor, [*self._waiting, *entries], self._end)
        self._waiting.clear()
        return self._descriptor

    def _opened(self, flag: int) -> int:
        """Open the file, and cut off what follows the entries to resume from.

        Args:
            flag: ``os.O_CREAT`` to make a new file, or 0.
        """
        descriptor = os.open(self._path, os.O_WRONLY | system.AS_BYTES | flag, 0o666)
        try:
            os.ftruncate(descriptor, self._end)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def append_lines(descriptor: int, entries: Iterable[Mapping[str, Any]], end: int) -> int:
    """Append entries to a file, and return the new length of the file.

    Raises:
        OSError: they do not fit on the disk; nothing of them is left there.
    """
    data = b"".join(map(line, entries))
    try:
        write_all(descriptor, data, end)
    except OSError:
        os.ftruncate(descriptor, end)
        raise
    return end + len(data)


def ledger_name(partial: Path) -> Path:
    """Return the name of the ledger of an unfinished output."""
    return Path(f"{partial}.ledger")


def unfinished(
    partial: Path, wanted: NewOutput, made_again: MadeAgain | None = None
) -> Ledger | None:
    """Return the ledger of an unfinished output, if a run can resume it.

    Args:
        partial: the unfinished output, a file or a folder, if there is one.
        made_again: tells whether an output without a ledger has nothing to resume; None: every
            output has a ledger before it has anything else.

    Raises:
        InvalidInput: it is of something else, or has no ledger.
        OSError: nothing could be appended to the ledger.
    """
    # Any other error would keep the run from opening it, too.
    path = ledger_name(partial)
    with suppress(FileNotFoundError, IsADirectoryError):
        os.close(os.open(path, os.O_WRONLY))
    return _to_resume(partial, path, wanted, made_again)[0]


def _to_resume(
    partial: Path, path: Path, wanted: NewOutput, made_again: MadeAgain | None
) -> tuple[Ledger | None, int]:
    """Return the ledger of an output to resume, if there is one, and the length of its entries."""
    if path.is_dir():
        raise in_parts(str(partial))
    if not wanted.resume or not _holds_anything(partial):
        return None, 0
    again = option("resume", False)
    try:
        past, whole = parse(path.read_bytes())
    except FileNotFoundError:
        if wanted.overwrite or (made_again and made_again(partial)):
            return None, 0
        raise InvalidInput(
            f"{partial}: is an unfinished output without the ledger {path.name}, so that nothing "
            f"tells what of it is finished; give {again} to start afresh, or write elsewhere"
        ) from None
    if past is None or not past.checksums:  # a run that was stopped before its first block
        return None, 0
    differing = differences(past.identity, wanted.identity)
    if not differing:
        return past, whole
    if wanted.overwrite:
        return None, 0
    raise InvalidInput(
        f"{partial}: holds {counted(len(past.checksums), 'finished block')} of another run, which "
        f"differs in {'; in '.join(differing)}; give what that run was given to go on with it, "
        f"{again} or {option('overwrite', True)} to start afresh, or write elsewhere"
    )


def in_parts(partial: str) -> InvalidInput:
    """Return the error of a single run over an unfinished output that is computed in parts."""
    return InvalidInput(
        f"{partial}: is computed in parts; give {option('part', 'I/N')} to compute one of them, or "
        f"{option('cluster', 'FILE')} if a cluster does; or delete it and "
        f"{PurePosixPath(partial).name}.ledger to start afresh"
    )


def _holds_anything(partial: Path) -> bool:
    """Return whether there is anything of an output: a new file or folder is empty."""
    try:
        found = partial.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(partial.iterdir()) if stat.S_ISDIR(found.st_mode) else found.st_size > 0
