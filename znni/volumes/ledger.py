"""The ledger of an output: what it is of, and which of its blocks are finished, with checksums.

It is text, a line an entry: the CRC-32 of an entry, and the entry as JSON. Entries are only ever
appended, so that one which a run was killed at is the last, and shorter than its checksum says.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.core.volume import Begun

CRC_DIGITS = 8


@dataclass
class Ledger(Begun):
    """What the entries of a ledger come to.

    Attributes:
        identity: what the output is of, by the names that people are told.
        checksums: of the blocks that are finished.
        changes: bytes with their places in the output's file, for all of them or none to be there.
    """

    identity: Mapping[str, str] = field(default_factory=dict)
    checksums: dict[Box, str] = field(default_factory=dict)
    changes: list[tuple[int, bytes]] = field(default_factory=list)

    def take(self, entry: Mapping[str, Any]) -> None:
        """Go on by one entry."""
        if "plan" in entry:
            self.plan = entry["plan"]
        elif "block" in entry:
            box = _box(entry["block"])
            self.checksums[box] = entry["checksum"]
            self.history.append((box, True))
        elif "damaged" in entry:
            box = _box(entry["damaged"])
            del self.checksums[box]
            self.history.append((box, False))
        elif "changes" in entry:
            self.changes += [(place, b64decode(data)) for place, data in entry["changes"]]

    def summary(self) -> bytes:
        """The ledger of the whole output, the same however often its run was taken up again."""
        blocks = sorted(self.checksums.items())
        entries = [
            identity_entry(self.identity),
            plan_entry(self.plan),
            *(block_entry(box, found) for box, found in blocks),
        ]
        return b"".join(map(line, entries))


def identity_entry(identity: Mapping[str, str]) -> dict[str, Any]:
    """The first entry: what the output is of."""
    return {"identity": dict(identity)}


def plan_entry(plan: str) -> dict[str, Any]:
    """The plan of the blocks after it, as JSON."""
    return {"plan": plan}


def block_entry(box: Box, checksum: str) -> dict[str, Any]:
    """A block that is written."""
    return {"block": [*box.start, *box.stop], "checksum": checksum}


def damage_entry(box: Box) -> dict[str, Any]:
    """A block that is not as it was written."""
    return {"damaged": [*box.start, *box.stop]}


def changes_entry(changes: list[tuple[int, bytes]]) -> dict[str, Any]:
    """What is about to be changed in the output's file, beside its blocks."""
    return {"changes": [(place, b64encode(data).decode()) for place, data in changes]}


def line(entry: Mapping[str, Any]) -> bytes:
    """An entry as it is stored."""
    text = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32(text), text)


def parse(text: bytes) -> tuple[Ledger | None, int]:
    """A ledger from its text, and how many bytes of it are whole entries.

    What comes after an entry that is not whole is left out. None where the first one is not.
    """
    found: Ledger | None = None
    whole = 0
    for stored in text.splitlines(keepends=True):
        content = stored[CRC_DIGITS + 1 : -1]
        if stored != b"%08x %s\n" % (crc32(content), content):
            break
        try:
            entry = json.loads(content)
            if found is None:
                found = Ledger(identity=entry["identity"])
            else:
                found.take(entry)
        except (KeyError, TypeError, ValueError):
            break
        whole += len(stored)
    return found, whole


def checksum_of(values: NDArray[Any]) -> str:
    """The CRC-32 of a block's values (f', z, y, x) as they are stored, in C order."""
    if values.flags.c_contiguous:
        return f"{crc32(values.data):08x}"
    found = 0
    for plane in (plane for image in values for plane in image):
        found = crc32(np.ascontiguousarray(plane).data, found)
    return f"{found:08x}"


def read_ledger(place: str) -> Ledger:
    """The ledger of an output, whole or partial, at a path or a URL.

    Raises:
        InvalidInput: there is none that can be read.
    """
    from znni.volumes.formats import formats

    place = place.rstrip("/")
    for form in formats():
        if form.writer and form.has(PurePosixPath(place).name):
            found, _ = parse(form.writer.ledger(place))
            if found is not None:
                return found
    raise InvalidInput(
        f"{place}: has no ledger of its blocks; only outputs of this version of znni or later do, "
        f"in HDF5 or Zarr: run it again"
    )


def _box(numbers: list[int]) -> Box:
    return Box(Vec3(*numbers[:3]), Vec3(*numbers[3:]))
