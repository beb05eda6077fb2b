"""The ledger of an output that several processes write at the same time.

It is the folder ``NAME.partial.ledger``. Its file ``session.json`` says what the output is of and
which plan computes all blocks. Each process has a log there of its own, ``ID.log``, with the
entries of ``ledger_entries.py``. The sum of the logs tells which blocks are finished.

Nobody else writes to a log, no file is locked, and ``session.json`` appears whole or not at all.
So the folder may lie on a file system without locks or shared appending, such as NFS. In an object
store, nothing can be appended to, and a log is a row of files, ``ID-NUMBER.log``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Box
from znni.core.volume import Grid, NewOutput
from znni.volumes.identity import differences
from znni.volumes.ledger_entries import Ledger, box_of, entries, struck_entry
from znni.volumes.output_folder import Files
from znni.volumes.stored import reason

SESSION = "session.json"


@dataclass(frozen=True)
class Session:
    """The agreement of all processes that write an output.

    Attributes:
        identity: what the output is of, by the names that messages use.
        plan: the plan of all blocks, as JSON.
        grid: position of the output's voxels in space.
    """

    identity: Mapping[str, str]
    plan: str
    grid: Grid


SESSIONS = TypeAdapter(Session)


@dataclass
class SharedBlocks:
    """The sum of all logs, or of what they say of some boxes.

    It does not depend on the order in which logs are read.

    Attributes:
        written: of each block, checksum and maker of each time that it was written. The maker is
            empty where that is not noted.
        struck: how many of these times are not in the output any more.
        runs: what finished processes measured.
    """

    written: dict[Box, list[tuple[str, str]]] = field(default_factory=dict)
    struck: dict[Box, int] = field(default_factory=dict)
    runs: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def finished(self) -> dict[Box, list[str]]:
        """The finished blocks in order, each with the checksums that it may have."""
        return {
            box: [checksum for checksum, _ in times]
            for box, times in sorted(self.written.items())
            if len(times) > self.struck.get(box, 0)
        }

    def take(self, entry: Mapping[str, Any], within: list[Box] | None = None) -> None:
        """Take one more entry.

        Args:
            entry: from a log.
            within: boxes that blocks must lie in to be taken; None takes all.
        """
        if "run" in entry:
            self.runs.append(entry["run"])
        if (numbers := entry.get("block") or entry.get("struck")) is None:
            return
        box = box_of(numbers)
        if within is not None and not any(box.intersection(part) for part in within):
            return
        if "block" in entry:
            known = self.written.setdefault(box, [])
            known.append((entry["checksum"], entry.get("by", "")))
        else:
            self.struck[box] = max(self.struck.get(box, 0), entry["times"])


class SharedLedger:
    """The folder of logs of an output, and this process's own log."""

    def __init__(self, files: Files) -> None:
        self.partial = files.root.removesuffix(".ledger")
        self._files = files
        self._log = files.log()

    def session(self) -> Session | None:
        """Return what the processes agreed on; None if none has begun.

        Raises:
            InvalidInput: the folder cannot be read, or a single process writes the output.
        """
        file = f"{self._files.root}/{SESSION}"
        try:
            return SESSIONS.validate_json(self._files.get(SESSION))
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise InvalidInput(
                f"{self.partial}: is the unfinished output of a single run; go on "
                f"with the command that began it, without {option('part', 'I/N')}, or write "
                f"elsewhere"
            ) from None
        except OSError as error:
            raise InvalidInput(
                f"{file}: cannot be read: {reason(error)}; check that it may be read from here"
            ) from None
        except ValidationError as error:
            said = error.errors()[0]["msg"]
            raise InvalidInput(
                f"{file}: cannot be read: {said}; delete the unfinished output and its ledger, and "
                f"compute it again"
            ) from None

    def agree(self, wanted: NewOutput, plan: str) -> Session:
        """Return the session: a new one with this plan, or the one that another process made.

        Raises:
            InvalidInput: the session is of another output.
            OSError: it cannot be made.
        """
        mine = Session(wanted.identity, plan, wanted.grid)
        self._files.make_once(SESSION, SESSIONS.dump_json(mine))
        session = self.session()
        assert session is not None
        self.check(session, wanted)
        return session

    def check(self, found: Session, wanted: NewOutput) -> None:
        """Check that a session is of an output."""
        if differing := differences(found.identity, wanted.identity):
            raise InvalidInput(
                f"{self.partial}: other parts of it are computed from something else, "
                f"which differs in {'; in '.join(differing)}; give every part the same, or write "
                f"elsewhere"
            )

    def blocks(self, within: list[Box] | None = None) -> SharedBlocks:
        """Return the sum of all logs.

        Args:
            within: boxes that blocks must lie in to be taken; None takes all.
        """
        found = SharedBlocks()
        for text in self._files.logs():
            for entry in entries(text):
                found.take(entry, within)
        return found

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry to this process's log."""
        self._log.append(entry)

    def strike_off(self, box: Box, blocks: SharedBlocks) -> None:
        """Note that a block is not as it was written, however often these logs say that it was."""
        self.append(struck_entry(box, len(blocks.written[box])))

    def close(self) -> None:
        """Close this process's log; closing it again does nothing.

        Raises:
            OSError: the last entries cannot be stored.
        """
        self._log.close()

    def discard(self) -> None:
        """Delete the folder."""
        self._files.discard()


def summary(session: Session, blocks: SharedBlocks, checksums: Mapping[Box, str]) -> bytes:
    """Return the ledger of a whole output, as a single run would leave it."""
    whole = Ledger(identity=session.identity, checksums=dict(checksums))
    for box, checksum in checksums.items():
        if maker := dict(blocks.written[box])[checksum]:
            whole.makers[box] = maker
    whole.plan = session.plan
    return whole.summary()
