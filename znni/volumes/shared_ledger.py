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
from znni.volumes.ledger_entries import Ledger, box_of, entries, struck_entry
from znni.volumes.ledger_file import differences
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
class _Written:
    """The sum of the logs' entries about a block.

    Attributes:
        checksums: one for each time that it was written.
        makers: what computed it these times; empty where that is not noted.
        struck: how many of these times are not in the output any more.
    """

    checksums: list[str] = field(default_factory=list)
    makers: list[str] = field(default_factory=list)
    struck: int = 0


@dataclass
class SharedBlocks:
    """The sum of all logs, or of what they say of some boxes.

    It does not depend on the order in which logs are read.

    Attributes:
        written: what is said of each block.
        runs: what finished processes measured.
    """

    written: dict[Box, _Written] = field(default_factory=dict)
    runs: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def finished(self) -> dict[Box, list[str]]:
        """The finished blocks in order, each with the checksums that it may have."""
        return {
            box: found.checksums
            for box, found in sorted(self.written.items())
            if len(found.checksums) > found.struck
        }

    def take(self, entry: Mapping[str, Any], within: list[Box] | None = None) -> None:
        """Take one more entry.

        Args:
            entry: from a log.
            within: boxes that blocks must lie in to be taken; None takes all.
        """
        if "block" in entry:
            box = box_of(entry["block"])
            if _inside(box, within):
                known = self.written.setdefault(box, _Written())
                known.checksums.append(entry["checksum"])
                known.makers.append(entry.get("by", ""))
        elif "struck" in entry:
            box = box_of(entry["struck"])
            if _inside(box, within):
                known = self.written.setdefault(box, _Written())
                known.struck = max(known.struck, entry["times"])
        elif "run" in entry:
            self.runs.append(entry["run"])


class SharedLedger:
    """The folder of logs of an output, and this process's own log.

    Args:
        files: the folder ``NAME.partial.ledger``.

    Attributes:
        partial: the name ``NAME.partial``.
    """

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
        found = self.session()
        assert found is not None
        self.check(found, wanted)
        return found

    def check(self, found: Session, wanted: NewOutput) -> None:
        """Check that a session is of an output.

        Raises:
            InvalidInput: it is of another one.
        """
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
        """Append an entry to this process's log.

        Raises:
            OSError: it cannot be stored.
        """
        self._log.append(entry)

    def strike_off(self, box: Box, written: int) -> None:
        """Note that a block is not as it was written, however often that was noted so far."""
        self.append(struck_entry(box, written))

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
    """Return the ledger of a whole output, as a single run would leave it.

    Args:
        session: what the processes agreed on.
        blocks: what their logs say.
        checksums: of each block, the one that it has.
    """
    whole = Ledger(identity=session.identity, checksums=dict(checksums))
    for box, checksum in checksums.items():
        found = blocks.written[box]
        if maker := dict(zip(found.checksums, found.makers, strict=True))[checksum]:
            whole.makers[box] = maker
    whole.plan = session.plan
    return whole.summary()


def _inside(box: Box, within: list[Box] | None) -> bool:
    return within is None or any(box.intersection(part) for part in within)
