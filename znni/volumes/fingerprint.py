"""Fingerprints that tell one volume from another, or from an earlier state of itself.

Only samples of the volume are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from io import FileIO
from pathlib import Path
from time import gmtime, strftime
from typing import Any

import numpy as np

from znni.core.errors import Unreadable
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.volume import Volume
from znni.volumes.locate import files_of

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

    Files are marked by their length, the time of the last change, and samples of their bytes. If
    there are several, values in small boxes mark them too. Volumes on a network or in memory, and
    those with a file for each chunk, have no other marks. So some changes are not noticed.
    """
    files = files_of(source) if isinstance(source, str | Path) else []
    marks = {
        f"{name}'s extents": f"{volume.features}x{volume.size}",
        f"{name}'s values": _some_values(volume, part, OF_FILE if len(files) == 1 else SAMPLES),
    }
    if files:
        known = [file.stat() for file in files]
        lengths = [each.st_size for each in known]
        marks[f"{name}'s length in bytes"] = str(sum(lengths))
        marks[f"{name}'s time of change"] = _utc(max(each.st_mtime_ns for each in known))
        marks[f"{name}'s bytes"] = _some_bytes(files, lengths)
    return marks


def _some_values(volume: Volume, part: Box, count: int) -> str:
    """Return a hash of type and values in small boxes, spread at random over a part, in order."""
    room = (part.size - SAMPLE).maximum(ZERO)
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


def _some_bytes(files: Sequence[Path], lengths: Sequence[int]) -> str:
    """Return a hash of the bytes at places spread evenly from start to end of all files."""
    digest, places, begin = sha256(), _byte_places(sum(lengths), SAMPLES), 0
    for path, length in zip(files, lengths, strict=True):
        own = [place - begin for place in places if begin <= place < begin + length]
        begin += length
        if own:
            with path.open("rb", buffering=0) as file:
                for sample in _samples(file, length, own):
                    digest.update(sample)
    return digest.hexdigest()[:DIGITS]


def _samples(file: FileIO, length: int, places: Sequence[int]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file of a length at some places."""
    if length <= SAMPLES * SAMPLE_BYTES:  # one read is faster than many
        whole = memoryview(_read(file, length))
        yield from (whole[place : place + SAMPLE_BYTES] for place in places)
        return
    for place in places:
        file.seek(place)
        yield _read(file, SAMPLE_BYTES)


@lru_cache(maxsize=64)
def _byte_places(length: int, count: int) -> tuple[int, ...]:
    """Return the places of samples in some bytes, spread evenly from start to end."""
    last = max(length - SAMPLE_BYTES, 0)
    return tuple(np.linspace(0, last, count, dtype=np.int64).tolist())


def _read(file: FileIO, length: int) -> bytes:
    """Return the next bytes of a file, fewer only at its end.

    Some file systems give only a part of them at a time.
    """
    content = file.read(length)
    while len(content) < length and (more := file.read(length - len(content))):
        content += more
    return content


def _utc(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{strftime('%Y-%m-%d %H:%M:%S', gmtime(seconds))}.{rest:09d} UTC"
