"""What tells a volume from another, or from itself as it was, without reading all of it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from znni.core.errors import Unreadable
from znni.core.shapes import Box, Vec3
from znni.core.volume import Volume
from znni.volumes.locate import split_dataset
from znni.volumes.stored import is_url

DIGITS = 16  # of hashes, in hexadecimal
SAMPLES = 32
SAMPLE = Vec3(1, 64, 64)  # voxels: of most files one chunk or plane is read for it
SAMPLE_BYTES = 4096

# Samples of values that are read of a file, which has samples of its bytes: enough to tell one of
# its datasets from another. From some files everything before a value is unpacked to read it.
OF_FILE = 2


def fingerprint(
    source: object, volume: Volume, part: Box, name: str = "the input"
) -> dict[str, str]:
    """A volume's marks, by the names that people are told.

    A file has its length, the time of its last change, and some of its bytes. What is read from
    many files, over a network or from memory has the values of some small boxes: a change elsewhere
    in it is not seen.

    Args:
        source: what the volume was opened from.
        volume: the volume.
        part: what is read of it.
        name: what people are told that it is.
    """
    path = _file(source)
    marks = {
        f"{name}'s extents": f"{volume.features}x{volume.size}",
        f"{name}'s values": _some_values(volume, part, OF_FILE if path else SAMPLES),
    }
    if path:
        found = path.stat()
        marks[f"{name}'s length in bytes"] = str(found.st_size)
        marks[f"{name}'s time of change"] = _utc(found.st_mtime_ns)
        marks[f"{name}'s bytes"] = _some_bytes(path, found.st_size)
    return marks


def _file(source: object) -> Path | None:
    """The local file that a volume was opened from, if it is one."""
    if not isinstance(source, str | Path):
        return None
    place = split_dataset(str(source))[0]
    return Path(place) if not is_url(place) and Path(place).is_file() else None


def _some_values(volume: Volume, part: Box, count: int) -> str:
    """A hash of the type and the values of small boxes in a part, spread at random, in order."""
    room = (part.size - SAMPLE).maximum(Vec3(0, 0, 0))
    places = np.random.default_rng(0).random((count, 3)) * (np.array(room) + 1)
    digest = sha256()
    for offset in sorted(map(tuple, places.astype(int).tolist())):
        start = part.start + Vec3(*offset)
        with suppress(Unreadable):  # where it is needed, the run will say so
            values: Any = volume.read(Box(start, (start + SAMPLE).minimum(part.stop)))
            digest.update(values.dtype.str.encode() + values.tobytes())
    return digest.hexdigest()[:DIGITS]


def _some_bytes(path: Path, length: int) -> str:
    """A hash of the bytes at places that are spread evenly from the start to the end."""
    digest = sha256()
    with path.open("rb") as file:
        for place in np.linspace(0, max(length - SAMPLE_BYTES, 0), SAMPLES, dtype=np.int64):
            file.seek(int(place))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:DIGITS]


def _utc(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
