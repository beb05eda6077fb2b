"""A ledger that is kept while an output is written, for a later run to go on with."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from znni.core.errors import InvalidInput, RunFailed, option
from znni.core.shapes import Box
from znni.core.text import counted
from znni.core.volume import NewOutput, Sink
from znni.volumes.io_threads import beside
from znni.volumes.ledger import (
    Ledger,
    block_entry,
    changes_entry,
    checksum_of,
    damage_entry,
    identity_entry,
    line,
    parse,
    plan_entry,
)
from znni.volumes.partial_file import write_all

log = logging.getLogger("znni")

# What differs where something else does: values are sampled where the input is read.
FOLLOWING = {
    "the input's values": {"the region", "the network"},
    "its place in space": {"the region"},
}


class MemoryLedger:
    """A ledger that is gone with the process: of an output that cannot be gone on with.

    Attributes:
        ledger: what its entries come to.
        resumed: whether blocks of an earlier run are gone on with.
    """

    resumed = False

    def __init__(self, identity: Mapping[str, str]) -> None:
        self.ledger = Ledger(identity=identity)

    def note_plan(self, plan: str) -> None:
        """Note the plan of the blocks to come, unless it is that of those before."""
        if plan != self.ledger.plan:
            self._note(plan_entry(plan))

    def write(self, box: Box, values: NDArray[Any], store: Sink) -> None:
        """Hand a block to a sink, with its checksum computed beside that, and note it after.

        Args:
            box: of the block.
            values: of it (f', z, y, x), as they are stored.
            store: writes them.
        """
        checksum = beside(lambda: checksum_of(values))
        store.write(box, values)
        self._note(block_entry(box, checksum.result()))

    def check_written(self, read: Callable[[Box], NDArray[Any]]) -> None:
        """Nothing to do: what an earlier run left has no part in the output."""

    def close(self) -> None:
        """Let go of it."""

    def discard(self) -> None:
        """Let go of it for ever."""

    def _note(self, entry: Mapping[str, Any]) -> None:
        self.ledger.take(entry)


class LedgerFile(MemoryLedger):
    """A ledger whose entries are appended to a file, ``NAME.partial.ledger``.

    An entry of a block comes after the block itself, so that whatever ends the process, a block
    that has an entry was handed to the system. What a loss of power undoes the checksums tell.

    Raises:
        InvalidInput: there is an unfinished output of something else.
        OSError: the file cannot be made there.
    """

    def __init__(self, partial: Path, wanted: NewOutput) -> None:
        """Open it, under the lock of the output.

        Args:
            partial: the unfinished output, a file or a folder.
            wanted: the output.
        """
        super().__init__(wanted.identity)
        self._partial = partial
        self._path = ledger_name(partial)
        found, self._end = _to_go_on_with(partial, wanted)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
        self._closed = False
        self._checked = 0
        try:
            os.ftruncate(self._descriptor, self._end)
            if found:
                self.ledger, self.resumed = found, True
            else:
                self._append(identity_entry(wanted.identity))
                os.fsync(self._descriptor)
        except BaseException:
            self.close()
            raise

    def note_changes(self, changes: list[tuple[int, bytes]]) -> None:
        """Note what is about to be changed in the output's file, and see it to the disk."""
        self._note(changes_entry(changes))
        os.fsync(self._descriptor)

    def check(self, read: Callable[[Box], NDArray[Any]]) -> list[Box]:
        """Read all finished blocks, and strike off those that are not as they were written.

        Args:
            read: gives the values of a box, or raises what it likes.

        Returns:
            The boxes struck off.
        """
        log.warning(
            "%s: checking %s of an earlier run",
            self._partial,
            counted(len(self.ledger.checksums), "finished block"),
        )
        damaged = self._damaged(read, self.ledger.checksums)
        for box in damaged:
            self._note(damage_entry(box))
        self._checked = len(self.ledger.history)
        if damaged:
            log.warning(
                "%s: %s damaged, to be computed again",
                self._partial,
                counted(len(damaged), "finished block"),
            )
        return damaged

    def check_written(self, read: Callable[[Box], NDArray[Any]]) -> None:
        """Read the blocks again that were written since an output was gone on with.

        They went to their places by what an earlier run left of it, beside its blocks, for which
        there are no checksums.

        Args:
            read: as for ``check``.

        Raises:
            RunFailed: one is not as it was written.
        """
        if self.resumed:
            written = (box for box, whole in self.ledger.history[self._checked :] if whole)
            damaged = self._damaged(read, written)
            if damaged:
                raise RunFailed(
                    f"{self._partial}: {counted(len(damaged), 'block')} cannot be read again as "
                    f"written: what the earlier run left is damaged; give "
                    f"{option('resume', False)} to start afresh, or write elsewhere"
                )

    def _damaged(self, read: Callable[[Box], NDArray[Any]], boxes: Iterable[Box]) -> list[Box]:
        return [box for box in boxes if _checksum(read, box) != self.ledger.checksums[box]]

    def close(self) -> None:
        """Close the file; again is no more."""
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def discard(self) -> None:
        """Close and delete the file."""
        self.close()
        with suppress(OSError):  # one that stays does no harm
            self._path.unlink()

    def _note(self, entry: Mapping[str, Any]) -> None:
        self._append(entry)
        super()._note(entry)

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry, or, where it does not fit on the disk, nothing of it."""
        data = line(entry)
        try:
            write_all(self._descriptor, data, self._end)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(data)


def ledger_name(partial: Path) -> Path:
    """What the ledger of an unfinished output is called."""
    return partial.with_name(partial.name + ".ledger")


def unfinished(partial: Path, wanted: NewOutput) -> Ledger | None:
    """The ledger of what earlier runs left of an output, if that can be gone on with.

    Args:
        partial: the unfinished output, a file or a folder, if there is one.
        wanted: the output.

    Raises:
        InvalidInput: it is of something else, or has no ledger.
        OSError: nothing could be appended to that.
    """
    with suppress(FileNotFoundError):  # all else would keep the run from opening it, too
        os.close(os.open(ledger_name(partial), os.O_WRONLY))
    return _to_go_on_with(partial, wanted)[0]


def _to_go_on_with(partial: Path, wanted: NewOutput) -> tuple[Ledger | None, int]:
    """The ledger of an output to go on with, if there is one, and the length of its entries."""
    if not wanted.resume or not _holds_anything(partial):
        return None, 0
    again, path = option("resume", False), ledger_name(partial)
    try:
        found, whole = parse(path.read_bytes())
    except FileNotFoundError:
        if wanted.overwrite:
            return None, 0
        raise InvalidInput(
            f"{partial}: is an unfinished output without the ledger {path.name}, so that nothing "
            f"tells what of it is finished; give {again} to start afresh, or write elsewhere"
        ) from None
    if found is None or not found.checksums:  # a run that was stopped before its first block
        return None, 0
    differing = _differences(found.identity, wanted.identity)
    if not differing:
        return found, whole
    if wanted.overwrite:
        return None, 0
    raise InvalidInput(
        f"{partial}: holds {counted(len(found.checksums), 'finished block')} of another run, which "
        f"differs in {'; in '.join(differing)}; give what that run was given to go on with it, "
        f"{again} or {option('overwrite', True)} to start afresh, or write elsewhere"
    )


def _holds_anything(partial: Path) -> bool:
    """Whether there is anything of an output: one of which there is nothing yet is empty."""
    if partial.is_dir():
        return any(partial.iterdir())
    return partial.exists() and partial.stat().st_size > 0


def _differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    differing = [name for name in {**now, **then} if then.get(name) != now.get(name)]
    return [
        f"{name} ({then.get(name, 'none')} then, {now.get(name, 'none')} now)"
        for name in differing
        if FOLLOWING.get(name, set()).isdisjoint(differing)
    ]


def _checksum(read: Callable[[Box], NDArray[Any]], box: Box) -> str | None:
    try:
        return checksum_of(read(box))
    except MemoryError:
        raise
    except Exception:  # libraries and their codecs raise all kinds
        return None
