"""The ledger of an output that several processes write at the same time.

It is the folder ``NAME.partial.ledger``. Its file ``session.json`` says what the output is of and
which plan computes all blocks. Each process has a log there of its own, ``ID.log``, with the
entries of ``ledger_entries.py``. The sum of the logs tells which blocks are finished.

Nobody else writes to a log, no file is locked, and ``session.json`` appears whole or not at all.
So the folder may lie on a file system without locks or shared appending, such as NFS.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Box
from znni.core.volume import Grid, NewOutput
from znni.volumes.ledger_entries import Ledger, box_of, entries, struck_entry
from znni.volumes.ledger_file import append_line, differences, ledger_name

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

    def to_json(self) -> str:
        """Return it as text."""
        place = {"scale": self.grid.scale, "translation": self.grid.translation}
        grid = place | {"units": self.grid.units}
        return json.dumps({"identity": dict(self.identity), "plan": self.plan, "grid": grid})

    @classmethod
    def from_json(cls, text: str) -> Session:
        """Read it back.

        Raises:
            ValueError: the text is something else.
        """
        try:
            found = json.loads(text)
            grid = {name: tuple(values) for name, values in found["grid"].items()}
            return cls(found["identity"], found["plan"], Grid(**grid))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None


@dataclass
class _Written:
    """The sum of the logs' entries about a block.

    Attributes:
        checksums: one for each time that it was written.
        struck: how many of these times are not in the output any more.
    """

    checksums: list[str] = field(default_factory=list)
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
                self.written.setdefault(box, _Written()).checksums.append(entry["checksum"])
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
        partial: the unfinished output, a folder.

    Attributes:
        path: the folder of logs.
    """

    def __init__(self, partial: Path) -> None:
        self.path = ledger_name(partial)
        self._log: int | None = None
        self._end = 0
        self._name = uuid4().hex

    def session(self) -> Session | None:
        """Return what the processes agreed on; None if none has begun.

        Raises:
            InvalidInput: the folder cannot be read, or a single process writes the output.
        """
        file = self.path / SESSION
        try:
            return Session.from_json(file.read_text())
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise InvalidInput(
                f"{self.path.with_suffix('')}: is the unfinished output of a single run; go on "
                f"with the command that began it, without {option('part', 'I/N')}, or write "
                f"elsewhere"
            ) from None
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"{file}: cannot be read: {error}; delete the unfinished output and its ledger, "
                f"and compute it again"
            ) from None

    def agree(self, wanted: NewOutput, plan: str) -> Session:
        """Return the session: a new one with this plan, or the one that another process made.

        Raises:
            InvalidInput: the session is of another output.
            OSError: it cannot be made.
        """
        self.path.mkdir(exist_ok=True)
        mine = Session(wanted.identity, plan, wanted.grid)
        make_once(self.path / SESSION, mine.to_json().encode())
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
                f"{self.path.with_suffix('')}: other parts of it are computed from something else, "
                f"which differs in {'; in '.join(differing)}; give every part the same, or write "
                f"elsewhere"
            )

    def blocks(self, within: list[Box] | None = None) -> SharedBlocks:
        """Return the sum of all logs.

        Args:
            within: boxes that blocks must lie in to be taken; None takes all.
        """
        found = SharedBlocks()
        for log in self._logs():
            for entry in entries(log.read_bytes()):
                found.take(entry, within)
        return found

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append an entry to this process's log.

        Raises:
            OSError: it does not fit on the disk; nothing of it is left there.
        """
        if self._log is None:
            path = self.path / f"{self._name}.log"
            self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._end = append_line(self._log, entry, self._end)

    def strike_off(self, box: Box, written: int) -> None:
        """Note that a block is not as it was written, however often that was noted so far."""
        self.append(struck_entry(box, written))

    def close(self) -> None:
        """Close this process's log; closing it again does nothing."""
        log, self._log = self._log, None
        if log is not None:
            os.close(log)

    def discard(self) -> None:
        """Delete the folder."""
        self.close()
        with suppress(OSError):  # a folder that stays does no harm
            rmtree(self.path)

    def _logs(self) -> Iterator[Path]:
        return (path for path in sorted(self.path.iterdir()) if path.suffix == ".log")


def summary(session: Session, checksums: Mapping[Box, str]) -> bytes:
    """Return the ledger of a whole output, as a single run would leave it."""
    whole = Ledger(identity=session.identity, checksums=dict(checksums))
    whole.plan = session.plan
    return whole.summary()


def make_once(path: Path, content: bytes) -> None:
    """Make a file with some content, unless there is one. It appears whole or not at all.

    Raises:
        OSError: it cannot be made.
    """
    new = path.with_name(f"{path.name}.{uuid4().hex}.partial")
    try:
        with new.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)


def _inside(box: Box, within: list[Box] | None) -> bool:
    return within is None or any(box.intersection(part) for part in within)
