"""What tells a volume from another, or from itself as it was, without reading all of it."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from znni.shapes import Box, Vec3
from znni.volume import Volume
from znni.volumes.locate import split_dataset
from znni.volumes.stored import is_url

SAMPLES = 32
SAMPLE = Vec3(1, 64, 64)


def fingerprint(
    source: object, volume: Volume, part: Box, name: str = "the input"
) -> dict[str, str]:
    """A volume's marks, by the names that people are told.

    A file has its length and the time of its last change. Everything has its extents and the values
    of some small boxes, always at the same places: of what is read from many files, or from
    memory, or over a network, a change elsewhere is not seen.

    Args:
        source: what the volume was opened from.
        volume: the volume.
        part: what is read of it.
        name: what people are told that it is.

    Raises:
        RunFailed: a sample cannot be read.
    """
    maps = f"{volume.features}x{volume.size}"
    marks = {f"{name}'s extents": maps, f"{name}'s values": _sampled(volume, part)}
    if isinstance(source, str | Path) and not is_url(place := split_dataset(str(source))[0]):
        path = Path(place)
        if path.is_file():
            found = path.stat()
            marks[f"{name}'s length in bytes"] = str(found.st_size)
            marks[f"{name}'s time of change"] = _utc(found.st_mtime_ns)
    return marks


def _sampled(volume: Volume, part: Box) -> str:
    """A hash of the type and the values of small boxes in a part, spread at random, in order."""
    room = (part.size - SAMPLE).maximum(Vec3(0, 0, 0))
    places = np.random.default_rng(0).random((SAMPLES, 3)) * (np.array(room) + 1)
    digest = sha256()
    for offset in sorted(map(tuple, places.astype(int).tolist())):
        start = part.start + Vec3(*offset)
        values: Any = volume.read(Box(start, (start + SAMPLE).minimum(part.stop)))
        digest.update(values.dtype.str.encode() + values.tobytes())
    return digest.hexdigest()[:16]


def _utc(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
