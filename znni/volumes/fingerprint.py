"""Fingerprints that tell one volume from another, or from an earlier state of itself.

Only samples of the volume are read.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from io import FileIO
from pathlib import Path
from time import gmtime, strftime
from typing import Any

import numpy as np

from znni.core.errors import Unreadable
from znni.core.shapes import Box, Vec3
from znni.core.volume import Volume
from znni.volumes.locate import split_dataset
from znni.volumes.stored import is_url

DIGITS = 16  # hexadecimal digits of a hash
SAMPLES = 32
SAMPLE = Vec3(1, 64, 64)  # voxels: in most files, reading them reads one chunk or plane
SAMPLE_BYTES = 4096

# Samples of values for a file. Its bytes are sampled too, so these only need to tell its datasets
# apart. Some files must be unpacked from the start to reach a value.
OF_FILE = 2


def fingerprint(
    source: object, volume: Volume, part: Box, name: str = "the input"
) -> dict[str, str]:
    """Return the marks of a volume, by the names that messages use.

    A file is marked by its length, the time of its last change, and samples of its bytes. Volumes
    in many files, on a network or in memory are marked by the values in small boxes. A change
    outside those boxes is not noticed.

    Args:
        source: object or path that the volume was opened from.
        volume: the volume.
        part: box of the volume that the run reads.
        name: name of the volume in messages.
    """
    file = _file(source)
    marks = {
        f"{name}'s extents": f"{volume.features}x{volume.size}",
        f"{name}'s values": _some_values(volume, part, OF_FILE if file else SAMPLES),
    }
    if file:
        path, found = file
        marks[f"{name}'s length in bytes"] = str(found.st_size)
        marks[f"{name}'s time of change"] = _utc(found.st_mtime_ns)
        marks[f"{name}'s bytes"] = _some_bytes(path, found.st_size)
    return marks


def _file(source: object) -> tuple[Path, os.stat_result] | None:
    """Return the local file that a volume was opened from, and what the system knows of it."""
    if not isinstance(source, str | Path):
        return None
    place = split_dataset(str(source))[0]
    if is_url(place):
        return None
    path = Path(place)
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (path, found) if stat.S_ISREG(found.st_mode) else None


def _some_values(volume: Volume, part: Box, count: int) -> str:
    """Return a hash of type and values in small boxes, spread at random over a part, in order."""
    room = (part.size - SAMPLE).maximum(Vec3(0, 0, 0))
    digest = sha256()
    for offset in _places(room, count):
        start = part.start + offset
        with suppress(Unreadable):  # if the run needs this box, it reports the error
            values: Any = volume.read(Box(start, (start + SAMPLE).minimum(part.stop)))
            digest.update(values.dtype.str.encode() + values.tobytes())
    return digest.hexdigest()[:DIGITS]


@lru_cache(maxsize=64)
def _places(room: Vec3, count: int) -> tuple[Vec3, ...]:
    """Return places from 0 to the end of a room, spread at random, in order."""
    places = np.random.default_rng(0).random((count, 3)) * (np.array(room) + 1)
    return tuple(sorted(Vec3(*place) for place in places.astype(int).tolist()))


def _some_bytes(path: Path, length: int) -> str:
    """Return a hash of the bytes at places spread evenly from start to end."""
    digest, places = sha256(), _byte_places(length, SAMPLES)
    with path.open("rb", buffering=0) as file:
        if length <= SAMPLES * SAMPLE_BYTES:  # one read is faster than many
            whole = memoryview(_read(file, length))
            for place in places:
                digest.update(whole[place : place + SAMPLE_BYTES])
            return digest.hexdigest()[:DIGITS]
        for place in places:
            file.seek(place)
            digest.update(_read(file, SAMPLE_BYTES))
    return digest.hexdigest()[:DIGITS]


@lru_cache(maxsize=64)
def _byte_places(length: int, count: int) -> tuple[int, ...]:
    """Return the places of samples in a file of a length, spread evenly from start to end."""
    last = max(length - SAMPLE_BYTES, 0)
    return tuple(np.linspace(0, last, count, dtype=np.int64).tolist())


def _read(file: FileIO, length: int) -> bytes:
    """Return the next bytes of a file, fewer only at its end.

    Some file systems give only a part of them at a time.
    """
    found = file.read(length)
    while len(found) < length and (more := file.read(length - len(found))):
        found += more
    return found


def _utc(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{strftime('%Y-%m-%d %H:%M:%S', gmtime(seconds))}.{rest:09d} UTC"
