"""The entries of a ledger, which says what an output is of and which of its blocks are finished.

A ledger is text with one entry a line: the CRC-32 of the entry, and the entry as JSON. Entries are
only appended. So if a run is killed in the middle of one, it is the last, and its checksum is
wrong.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from zlib import crc32

from znni.core.shapes import Box, Vec3
from znni.core.volume import ResumeState

CRC_DIGITS = 8
MOST_PLANS = 16  # whose entries are kept

# Appends an entry to a ledger.
Note: TypeAlias = Callable[[Mapping[str, Any]], None]


@dataclass
class Ledger(ResumeState):
    """The sum of a ledger's entries.

    Attributes:
        identity: what the output is of, by the names that messages use.
        checksums: one for each block that is finished.
        makers: what computed these blocks, where that is noted.
        changes: bytes with their places in the output's file; all of them belong there, or none.
    """

    identity: Mapping[str, str] = field(default_factory=dict)
    checksums: dict[Box, str] = field(default_factory=dict)
    makers: dict[Box, str] = field(default_factory=dict)
    changes: list[tuple[int, bytes]] = field(default_factory=list)

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take one more entry."""
        if "plan" in entry:
            self.plan = entry["plan"]
        elif "block" in entry:
            box = box_of(entry["block"])
            self.checksums[box] = entry["checksum"]
            if maker := entry.get("by"):
                self.makers[box] = maker
            self.history.append((box, True))
        elif "damaged" in entry:
            box = box_of(entry["damaged"])
            del self.checksums[box]
            self.history.append((box, False))
        elif "changes" in entry:
            self.changes += [(place, b64decode(data)) for place, data in entry["changes"]]

    def summary(self) -> bytes:
        """Return the text for a whole output, the same however often its run was resumed."""
        blocks = sorted(self.checksums.items())
        entries = (block_entry(box, found, self.makers.get(box, "")) for box, found in blocks)
        before = line(identity_entry(self.identity)), _plan_line(self.plan)
        return b"".join([*before, *map(line, entries)])


def identity_entry(identity: Mapping[str, str]) -> dict[str, Any]:
    """Return the first entry: what the output is of."""
    return {"identity": dict(identity)}


def plan_entry(plan: str) -> dict[str, Any]:
    """Return the entry of a plan, as JSON. It is the plan of the blocks after it."""
    return {"plan": plan}


def block_entry(box: Box, checksum: str, maker: str = "") -> dict[str, Any]:
    """Return the entry of a block that is written, and what computed it if that is to be noted."""
    entry = {"block": [*box.start, *box.stop], "checksum": checksum}
    return entry | {"by": maker} if maker else entry


def damage_entry(box: Box) -> dict[str, Any]:
    """Return the entry of a block that is not as it was written."""
    return {"damaged": [*box.start, *box.stop]}


def struck_entry(box: Box, times: int) -> dict[str, Any]:
    """Return the entry of a block that several processes may have written, and that is damaged.

    Args:
        box: where the block lies.
        times: how often it had been written; none of these times counts any more.
    """
    return {"struck": [*box.start, *box.stop], "times": times}


def changes_entry(changes: list[tuple[int, bytes]]) -> dict[str, Any]:
    """Return the entry of bytes about to be changed in the output's file, beside its blocks."""
    return {"changes": [(place, b64encode(data).decode()) for place, data in changes]}


def line(entry: Mapping[str, Any]) -> bytes:
    """Return an entry as it is stored."""
    text = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32(text), text)


@lru_cache(maxsize=MOST_PLANS)
def _plan_line(plan: str) -> bytes:
    """Return the entry of a plan as it is stored. It is long, and many outputs have the same."""
    return line(plan_entry(plan))


def parse(text: bytes) -> tuple[Ledger | None, int]:
    """Return the ledger of a text, and how many bytes of the text are whole entries.

    All after the first damaged entry is left out. There is no ledger if the first entry is damaged.
    """
    ledger: Ledger | None = None
    whole = 0
    for entry, length in _entries(text):
        try:
            if ledger is None:
                ledger = Ledger(identity=entry["identity"])
            else:
                ledger.take(entry)
        except (KeyError, TypeError, ValueError):
            break
        whole += length
    return ledger, whole


def entries(text: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a text, as far as the first damaged one."""
    return (entry for entry, _ in _entries(text))


def _entries(text: bytes) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield the entries of a text, each with its length in bytes, as far as the first damaged."""
    for stored in text.splitlines(keepends=True):
        content = stored[CRC_DIGITS + 1 : -1]
        if stored != b"%08x %s\n" % (crc32(content), content):
            return
        try:
            entry = json.loads(content)
        except ValueError:
            return
        yield entry, len(stored)


def box_of(numbers: list[int]) -> Box:
    """Return the box of an entry."""
    return Box(Vec3(*numbers[:3]), Vec3(*numbers[3:]))
